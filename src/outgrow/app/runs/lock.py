"""Lock file of a run directory: one process at a time trains there, even on a disk that hosts share."""

from __future__ import annotations

import os
import platform
import sys
import weakref
from pathlib import Path
from typing import BinaryIO

from outgrow.core.errors import InputError

NAME = ".lock"


class RunLock:
    """Exclusive lock on a run directory, which the system releases if the process is killed. Final.

    Args:
        folder: Existing run directory.
        name: Name of the lock file in it.

    Attributes:
        is_exclusive: Whether the lock keeps other processes out; False on file systems without locks.

    Raises:
        InputError: Another process holds the lock.
        OSError: The lock file cannot be created.
    """

    def __init__(self, folder: Path, name: str = NAME) -> None:
        self._path = folder / name
        self.is_exclusive = False
        # A finalizer also removes the file when the interpreter exits, or nobody refers to the lock any more.
        self._finalizer = weakref.finalize(self, _release_lock, self._acquire_file(), self._path)

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        self._finalizer()

    def _acquire_file(self) -> BinaryIO:
        while True:
            # Append mode creates the file but does not truncate it: it may name the holder of the lock.
            file = self._path.open("a+b", buffering=0)
            try:
                self.is_exclusive = _try_lock(file)
                # The previous holder may have removed the file after it was opened here. A lock on a file
                # without a name keeps nobody out, so try again with the file that now has the name.
                if self.is_exclusive and not _is_same_file(file, self._path):
                    file.close()
                    continue
                # For the error message of those that find the directory locked.
                file.truncate(0)
                file.write(f"process {os.getpid()} on {platform.node()}".encode())
            except BlockingIOError as error:
                file.seek(0)
                holder = file.read(200).decode(errors="replace") or "another process"
                file.close()
                raise _already_locked_error(self._path.parent, holder) from error
            except BaseException:
                # Closing releases the lock: Ctrl-C at this point must not leave the directory locked.
                file.close()
                raise
            return file


def _release_lock(file: BinaryIO, path: Path) -> None:
    # Remove the file before releasing its lock: afterwards it may already belong to the next holder.
    path.unlink(missing_ok=True)
    file.close()


def _try_lock(file: BinaryIO) -> bool:
    """Lock a file; return False where the file system has no locks.

    Raises:
        BlockingIOError: Another process has locked the file.
    """
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        # Some network file systems are mounted without locks: train there all the same, with a warning.
        return False
    return True


def _is_same_file(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _already_locked_error(folder: Path, holder: str) -> InputError:
    return InputError(
        f"another run is at work in {folder}",
        needed="a directory in which nobody trains",
        got=holder,
        repair="wait for it to finish, or stop it (even if it hangs); or start a new run in another --out",
    )
