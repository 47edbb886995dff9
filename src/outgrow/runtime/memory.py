"""How much memory this process holds, and how much it may."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from types import TracebackType

_STATUS = Path("/proc/self/status")
_INTERVAL_SECONDS = 0.02
_M_MMAP_THRESHOLD, _THRESHOLD_BYTES = -3, 131072


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


def available_bytes() -> int:
    """Memory that this process may still take: what the system has, and no more than its control group allows."""
    import psutil

    free = int(psutil.virtual_memory().available)
    limit, used = _group_memory()
    return free if limit is None else min(free, max(0, limit - used))


def return_freed_memory() -> None:
    """Have large tensors go back to the system when they are freed, also those that are allocated often (glibc)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)


def _group_memory() -> tuple[int | None, int]:
    """Limit and use of the control group of this process; None without a limit."""
    for line in _lines(Path("/proc/self/cgroup")):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, names = Path("/sys/fs/cgroup") / path.lstrip("/"), ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            folder = Path("/sys/fs/cgroup/memory") / path.lstrip("/")
            names = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        limit, used = (next(iter(_lines(folder / name)), "") for name in names)
        if limit.isdigit() and used.isdigit():
            return int(limit), int(used)
    return None, 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
