"""Scratch folder on disk for rows that do not fit into memory."""

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
    """Create a folder ``outgrow-offload-...`` on disk, removed when the context or this process ends.

    Args:
        parent: Folder to create it in; None for the system's folder of temporary files.
        needed_bytes: Minimum number of bytes that will be written.

    Yields:
        The folder.

    Raises:
        InputError: The parent does not exist, is not writable, is in memory, or has too little free space.
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


def free_disk_bytes(folder: Path) -> int:
    """Return the bytes that the disk of a folder has available."""
    return shutil.disk_usage(folder).free


def validate_free_space(folder: Path, needed_bytes: int) -> None:
    """Check that the disk of a folder has enough free space.

    Raises:
        InputError: It has less than ``needed_bytes``.
    """
    free = free_disk_bytes(folder)
    if free < needed_bytes:
        needed, got = f"{needed_bytes:,} bytes", f"{free:,} bytes available"
        raise _scratch_error(folder, "has too little room", needed=needed, got=got)


def is_in_memory(path: Path) -> bool:
    """Whether a path is on a file system that keeps its files in memory."""
    return _filesystem_type(path) in _IN_MEMORY


def _filesystem_type(path: Path) -> str:
    """Return the type of the file system that contains a path."""
    path, found, length = path.resolve(), "", 0
    for mount in psutil.disk_partitions(all=True):
        parts = len(Path(mount.mountpoint).parts)
        # The longest mount point wins; of two mounts on the same folder, the later one hides the other.
        if parts >= length and path.is_relative_to(mount.mountpoint):
            found, length = mount.fstype, parts
    return found


def _validate_scratch(parent: Path, needed_bytes: int) -> None:
    if not parent.is_dir():
        raise _scratch_error(parent, "is no folder", needed="a folder on a disk", got="no such folder")
    # Often the case for /tmp: writing there would use up the memory that offloading is to save.
    if is_in_memory(parent):
        got = f"a file system of type {_filesystem_type(parent)}, whose files are in memory"
        raise _scratch_error(parent, "is in memory", needed="a folder on a disk", got=got)
    validate_free_space(parent, needed_bytes)


def _scratch_error(parent: Path, why: str, *, needed: str, got: str) -> InputError:
    return InputError(
        f"scratch: {parent} {why}",
        needed=needed,
        got=got,
        repair="choose a folder on a disk with enough room, by TMPDIR or by scratch_dir of offload and tensor",
    )
