"""How much memory this process holds."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

_STATUS = Path("/proc/self/status")
_INTERVAL_SECONDS = 0.02


def resident_bytes() -> int:
    """Anonymous and shared resident memory of this process, interpreter included.

    Mapped file pages do not count: the kernel evicts them when it needs to. Where the system does not tell them apart
    (not Linux), all resident memory counts.
    """
    if not _STATUS.exists():
        import psutil

        return int(psutil.Process().memory_info().rss)
    kilobytes = 0
    for line in _STATUS.read_text().splitlines():
        if line.startswith(("RssAnon:", "RssShmem:")):
            kilobytes += int(line.split()[1])
    return kilobytes * 1024


class PeakMemory:
    """The most that `resident_bytes` has been while this context is open, sampled every 20 ms."""

    def __init__(self) -> None:
        self.peak_bytes = resident_bytes()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="outgrow-peak-memory", daemon=True)

    def _watch(self) -> None:
        while not self._done.wait(_INTERVAL_SECONDS):
            self.peak_bytes = max(self.peak_bytes, resident_bytes())

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self.peak_bytes = max(self.peak_bytes, resident_bytes())
