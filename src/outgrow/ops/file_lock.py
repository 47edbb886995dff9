"""Locks of files, by which processes take turns to compile a kernel."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_PATIENCE_SECONDS = 120.0
"""Time to wait for the compiler of another process, which may have hung, before compiling here."""
_LOOK_SECONDS = 0.02


@contextmanager
def hold_file_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file within the context: the first process compiles a kernel, the others load it.

    A function keeps its lock while it waits for one that it calls; no two functions call each other, so there
    is no deadlock. If the file system has no locks, or the holder keeps its lock for too long, continue
    without: code that is compiled twice is the same.

    Raises:
        OSError: The file cannot be created.
    """
    with path.open("a") as file:
        held = os.name == "posix" and _try_lock_until(file)
        try:
            yield
        finally:
            if held:
                _release_lock(file)


def _try_lock_until(file: IO[str]) -> bool:
    import fcntl

    latest = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > latest:
                return False
            time.sleep(_LOOK_SECONDS)
        # The file system has no locks.
        except OSError:
            return False
        else:
            return True


def _release_lock(file: IO[str]) -> None:
    """Release the lock, also for copies of the file descriptor in forked processes."""
    import fcntl

    fcntl.flock(file, fcntl.LOCK_UN)
