"""The folder on disk in which strategy `offload` keeps what does not fit into memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from outgrow.core.errors import InputError
from outgrow.runtime.storage.tempdir_reaper import temporary_directory

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


@contextmanager
def scratch_directory(parent: Path | None, needed_bytes: int) -> Iterator[Path]:
    """A new folder ``outgrow-offload-...`` on a disk, removed when the context ends, or else when this process does.

    Args:
        parent: Where to make it; None for the system's folder of temporary files.
        needed_bytes: How much will be written, at least.

    Raises:
        InputError: There is no such place, nothing can be made there, it lies in memory, or it has too little room.
    """
    parent = (Path(tempfile.gettempdir()) if parent is None else parent).resolve()
    _validate_scratch(parent, needed_bytes)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(temporary_directory("outgrow-offload-", parent))
        except OSError as error:
            needed = "a folder that may be written"
            raise _scratch_error(parent, "cannot be written", needed=needed, got=str(error)) from error
        yield folder


def validate_free_space(folder: Path, needed_bytes: int) -> None:
    """Refuse a folder on a disk that has not got so much room.

    Raises:
        InputError: It has less.
    """
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        needed, got = f"{needed_bytes:,} bytes", f"{free:,} bytes available"
        raise _scratch_error(folder, "has too little room", needed=needed, got=got)


def is_in_memory(path: Path) -> bool:
    """Whether a path lies on a file system whose files are in memory."""
    return _filesystem_type(path) in _IN_MEMORY


def _filesystem_type(path: Path) -> str:
    """The type of the file system that is mounted nearest above a path."""
    path, found, length = path.resolve(), "", 0
    for mount in psutil.disk_partitions(all=True):
        parts = len(Path(mount.mountpoint).parts)
        if parts >= length and path.is_relative_to(mount.mountpoint):  # of two mounts on one folder, the later is seen
            found, length = mount.fstype, parts
    return found


def _validate_scratch(parent: Path, needed_bytes: int) -> None:
    if not parent.is_dir():
        raise _scratch_error(parent, "is no folder", needed="a folder on a disk", got="no such folder")
    if is_in_memory(parent):
        got = f"a file system of type {_filesystem_type(parent)}, whose files are in memory"
        raise _scratch_error(parent, "is in memory", needed="a folder on a disk", got=got)
    validate_free_space(parent, needed_bytes)


def _scratch_error(parent: Path, why: str, *, needed: str, got: str) -> InputError:
    return InputError(
        f"scratch: {parent} {why}",
        needed=needed,
        got=got,
        repair="choose a folder on a disk with enough room by the option `scratch`",
    )
