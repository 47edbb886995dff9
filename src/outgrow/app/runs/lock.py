"""One at a time: who trains in the directory of a run holds it, whatever host of a shared disk it is on."""

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
    """The file of a directory that only one process has locked; it is gone when that lets go, or was killed. Final.

    Args:
        folder: The directory, which exists.

    Attributes:
        is_exclusive: Whether nobody else can hold it; not so on file systems that know no locks.

    Raises:
        InputError: Another process holds it.
        OSError: The file cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self.is_exclusive = folder / NAME, False
        self._finalizer = weakref.finalize(self, _release_lock, self._acquire_file(), self._path)

    def release(self) -> None:
        """Let others have it. A second time nothing happens."""
        self._finalizer()

    def _acquire_file(self) -> BinaryIO:
        while True:
            file = self._path.open("a+b", buffering=0)
            try:
                self.is_exclusive = _try_lock(file)
                if self.is_exclusive and not _is_same_file(file, self._path):  # its holder has removed it in between
                    file.close()
                    continue
                file.truncate(0)
                file.write(f"process {os.getpid()} on {platform.node()}".encode())
            except BlockingIOError as error:
                file.seek(0)
                holder = file.read(200).decode(errors="replace") or "another process"
                file.close()
                raise _already_locked_error(self._path.parent, holder) from error
            except BaseException:
                file.close()
                raise
            return file


def _release_lock(file: BinaryIO, path: Path) -> None:
    path.unlink(missing_ok=True)
    file.close()


def _try_lock(file: BinaryIO) -> bool:
    """Whether it is locked; some file systems cannot.

    Raises:
        BlockingIOError: Another process has locked it.
    """
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
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
        repair="wait for it or end it, also where it stands still; or start a new run in another --out",
    )
