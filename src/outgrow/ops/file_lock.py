"""A lock that processes of a host share: the first compiles a kernel, and the others load it from disk."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PATIENCE_SECONDS = 120.0
"""How long a process waits for another's compiler, which may have been stopped, before it compiles itself."""
_LOOK_SECONDS = 0.02


@contextmanager
def hold_file_lock(path: Path) -> Iterator[None]:
    """Hold a file's lock. A function keeps its own while it waits for one that it calls; no two call each other.

    Where there are no locks, or the one who has it keeps it for too long, go on without: what is compiled
    twice is the same.

    Raises:
        OSError: There can be no such file.
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

    latest = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > latest:
                return False
            time.sleep(_LOOK_SECONDS)
        except OSError:  # a file system without locks
            return False
        else:
            return True


def _release_lock(file: IO[str]) -> None:
    """Let go also of what a fork has of the file."""
    import fcntl

    fcntl.flock(file, fcntl.LOCK_UN)
