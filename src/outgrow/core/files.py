"""Atomic, durable writes of files, and helpful errors when they fail."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from outgrow.core.errors import InputError

# Network file systems cannot flush a folder. A folder with write but no read permission cannot be opened to
# do so.
_FOLDER_CANNOT = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)
# AT_FDCWD and RENAME_EXCHANGE of Linux.
_HERE, _EXCHANGE = -100, 2


@contextmanager
def atomic_write(path: Path, *, temporary: str | Path | None = None) -> Iterator[Path]:
    """Write a file under a temporary name; flush it and rename it into place when the context ends.

    After any error or crash, either the old or the new file exists. An error removes the temporary file; a
    killed process leaves it behind.

    Args:
        path: Target file, in an existing folder; an existing file is replaced.
        temporary: Temporary name, in the same folder. None for a unique one, so that concurrent writers do
            not collide. The only writer of a file may give a fixed name, to overwrite what a killed process
            has left. Or a path on the same file system, such as in a folder that is removed if the process is killed.

    Yields:
        Path to write to; the body of the context creates the file.

    Raises:
        OSError: The file cannot be written.
    """
    # In the same folder: a rename across file systems would be a copy, which is not atomic.
    name = temporary or f".{path.name}.{secrets.token_hex(4)}.partial"
    written = name if isinstance(name, Path) else path.with_name(name)
    try:
        yield written
        # Before the rename: some file systems write the new name to disk before the data.
        fsync_path(written)
        os.replace(written, path)
    except BaseException:
        # A failed clean-up must not hide the original error.
        with suppress(OSError):
            written.unlink(missing_ok=True)
        raise
    # The rename itself is durable only once the folder is flushed.
    fsync_path(path.parent)


def exchange_folders(one: Path, other: Path) -> bool:
    """Exchange two folders by one atomic step; return False, with nothing done, where the system has no such step."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    # The paths are absolute or relative to the working directory; not every file system can exchange.
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def reserve_space(file: int, num_bytes: int) -> None:
    """Make an open file at least this long, with blocks for all of it.

    A full disk is then an error here, and neither one of a later write nor SIGBUS in a mapping. Elsewhere than on
    Linux the file only gets its length.

    Args:
        file: File descriptor, open for writing.
        num_bytes: Length; 0 changes nothing.

    Raises:
        OSError: The disk is full.
    """
    if not num_bytes:
        return
    if sys.platform == "linux":
        os.posix_fallocate(file, 0, num_bytes)
    else:
        os.truncate(file, num_bytes)


@contextmanager
def os_errors_as_input_errors(
    what: str, *, needed: str, repair: str, also: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Turn an `OSError` into an `InputError` that tells the user what to do.

    Args:
        what: One line that says what went wrong.
        needed: Valid input or state.
        repair: Next step for the user.
        also: Other exceptions to convert. Their messages alone say little, so ``got`` then includes the type.

    Raises:
        InputError: The body raised such an error; its message becomes ``got``.
    """
    expected: tuple[type[Exception], ...] = (OSError, *also)
    try:
        yield
    except expected as error:
        got = f"{type(error).__name__}: {error}" if also else str(error)
        raise InputError(what, needed=needed, got=got, repair=repair) from error


def fsync_path(path: Path) -> None:
    """Flush a file, or the entries of a folder where the file system can do that, to disk.

    Raises:
        OSError: The disk has failed or is full.
    """
    is_folder = path.is_dir()
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if not (is_folder and error.errno in _FOLDER_CANNOT):
            raise
