"""A hard cap on the memory of a command, page cache included: a control group of Linux. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_ROOTS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
_LIMITS, _PEAKS = ("memory.limit_in_bytes", "memory.max"), ("memory.max_usage_in_bytes", "memory.peak")


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
        folder.rmdir()


def run(command: Sequence[str], limit: int, **options: object) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run a command under a cap; gives how it ended, and the most that it and its page cache took, in bytes."""
    with group(limit) as folder:

        def join() -> None:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

        done = subprocess.run(command, preexec_fn=join, text=True, stdout=subprocess.PIPE, check=False, **options)  # type: ignore[call-overload]
        peaks = [int((folder / name).read_text()) for name in _PEAKS if (folder / name).exists()]
        return done, peaks[0] if peaks else 0
