"""A hard cap on the memory of a command, page cache included: a control group of Linux. Needs root."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

_ROOTS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
_LIMITS, _PEAKS = ("memory.limit_in_bytes", "memory.max"), ("memory.max_usage_in_bytes", "memory.peak")
_TRIES = 100
"""To remove a group, a tenth of a second apart."""


def unavailable() -> str | None:
    """Why memory cannot be capped here; None if it can."""
    try:
        with group(1 << 30):
            return None
    except OSError as error:
        return f"no control group for memory can be made: {error}"


@contextmanager
def group(limit: int) -> Iterator[Path]:
    """A control group with a limit of so many bytes, which ends with the context."""
    version = 0 if (_ROOTS[0] / _LIMITS[0]).exists() else 1
    folder = _ROOTS[version] / f"outgrow-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / _LIMITS[version]).write_text(str(limit))
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove an empty group; a process that was killed stays in its own for a moment."""
    for _ in range(_TRIES):
        with suppress(OSError):
            return folder.rmdir()
        time.sleep(0.1)
    raise TimeoutError(f"processes stay in the control group {folder}")


class Peaks(NamedTuple):
    """The most bytes of a command and its children.

    Attributes:
        held: In memory that no file backs, and shared memory, looked at ten times a second.
        group: In its control group, with the pages of files that are cached for it.
    """

    held: int
    group: int


def run(command: Sequence[str], limit: int, **options: Any) -> tuple[subprocess.CompletedProcess[str], Peaks]:
    """Run a command under a cap; gives how it ended, and the most that it took."""
    with group(limit) as folder:

        def join() -> None:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

        def pids() -> list[int]:
            return [int(line) for line in (folder / "cgroup.procs").read_text().split()]

        with Watch(pids) as watch:
            done = subprocess.run(command, preexec_fn=join, text=True, stdout=subprocess.PIPE, check=False, **options)
        peaks = [int((folder / name).read_text()) for name in _PEAKS if (folder / name).exists()]
        return done, Peaks(watch.most, peaks[0] if peaks else 0)


class Watch:
    """The most that some processes hold together while this context is open.

    Args:
        pids: Gives their ids.

    Attributes:
        most: Bytes.
    """

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self.most = 0
        self._pids, self._done = pids, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._done.wait(0.05):
            self.most = max(self.most, sum(map(held_bytes, self._pids())))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()


def held_bytes(pid: int) -> int:
    """What a process holds of memory that no file backs, and of shared memory; 0 if it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
    return 0
