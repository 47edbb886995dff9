"""The one way to write a file: whole or not at all, on the disk when it is said to be, with an error that helps."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from outgrow.core.errors import InputError

# Network file systems cannot flush a folder; a folder that one may write to, but not list, cannot be opened for it.
_FOLDER_CANNOT = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)


@contextmanager
def atomic_write(path: Path, *, temporary: str | None = None) -> Iterator[Path]:
    """Write a file beside its place, and put it there at the end of the context: flushed, and in one step.

    Whatever goes wrong, and whenever the machine stops, there is the old file or the new one. An error removes what was
    written; a killed process leaves it behind.

    Args:
        path: The file, in a folder that exists; one that is there is replaced.
        temporary: The name until then. None takes a new one, so that several writers of one file do not meet. A writer
            that is known to be the only one gives a fixed name, so that it overwrites what a killed one has left.

    Yields:
        Where to write; the context's body makes the file.

    Raises:
        OSError: It cannot be written.
    """
    written = path.with_name(temporary or f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield written
        # Before the rename: some file systems bring the new name to the disk before the bytes.
        fsync_path(written)
        os.replace(written, path)
    except BaseException:
        # What cannot be removed must not hide why.
        with suppress(OSError):
            written.unlink(missing_ok=True)
        raise
    fsync_path(path.parent)


@contextmanager
def os_errors_as_input_errors(
    what: str, *, needed: str, repair: str, also: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Turn a refusal of the system into an error that tells the user what to do.

    Args:
        what: One line that says what went wrong.
        needed: What would have been right.
        repair: What to do next.
        also: Other errors that mean the same here. Their texts alone say little, so the type is then part of what came.

    Raises:
        InputError: There was such an error; what came instead is its text.
    """
    expected: tuple[type[Exception], ...] = (OSError, *also)
    try:
        yield
    except expected as error:
        got = f"{type(error).__name__}: {error}" if also else str(error)
        raise InputError(what, needed=needed, got=got, repair=repair) from error


def fsync_path(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk; some file systems cannot with a folder.

    Raises:
        OSError: The disk has failed, or is full.
    """
    folder = path.is_dir()
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if not (folder and error.errno in _FOLDER_CANNOT):
            raise
