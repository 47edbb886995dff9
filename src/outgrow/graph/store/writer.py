"""Writing of stores: arrays are appended in a temporary directory, which is renamed once it is complete."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.files import exchange_paths, fsync_path
from outgrow.core.validation import require_local_path
from outgrow.graph.store.manifest import FILE, HEADER_BYTES, ArrayEntry, Manifest, write_manifest

PARTIAL = ".partial"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class ArrayWriter:
    """Writer of one array of a store, block by block. Final.

    The header is written last, when the number of rows is known; the checksum is updated with each block.

    Args:
        path: The file; it must not exist.
        dtype: Type of the elements.
        row_shape: Shape of a row; empty for a vector.
        name: Name of the type in the manifest; None for NumPy's name.
    """

    def __init__(
        self, path: Path, dtype: np.dtype[Any], row_shape: tuple[int, ...] = (), name: str | None = None
    ) -> None:
        # Little-endian on every machine, so that stores can be copied between them.
        self._dtype = dtype.newbyteorder("<")
        self._row_shape = row_shape
        self._name = name or self._dtype.str
        self._rows = 0
        self._path = path
        self._sum = hashlib.sha256()
        # Unbuffered: blocks are large, and errors of a full disk come from the write that causes them.
        self._file: BinaryIO = path.open("xb", buffering=0)
        # The header has a fixed size, so that it can be written after the data.
        self._file.seek(HEADER_BYTES)

    def append_rows(self, rows: NDArray[Any]) -> None:
        """Append rows ``[n, *row_shape]``."""
        assert rows.shape[1:] == self._row_shape
        block = np.ascontiguousarray(rows, dtype=self._dtype).reshape(-1).view(np.uint8).data
        self._sum.update(block)
        write_fully(self._file, block)
        self._rows += len(rows)

    def map_rows(self) -> NDArray[Any]:
        """Return the rows so far, mapped."""
        shape = (self._rows, *self._row_shape)
        if not math.prod(shape):
            return np.empty(shape, self._dtype)
        return np.memmap(self._path, self._dtype, "r", HEADER_BYTES, shape)

    def finish_array(self) -> ArrayEntry:
        """Write the header, flush the file to disk and return its manifest entry."""
        size = self._file.tell()
        shape = (self._rows, *self._row_shape)
        entry = ArrayEntry(shape=shape, dtype=self._name, size=size, sha256=self._sum.hexdigest())
        self._file.seek(0)
        write_fully(self._file, memoryview(entry.encode_header()))
        # Before the rename: the manifest must never name data that a power failure can still lose.
        os.fsync(self._file.fileno())
        self._file.close()
        return entry

    def close(self) -> None:
        """Close the file without finishing it."""
        self._file.close()


class StoreWriter:
    """Writer of a store; made by `open_store_writer`. Final.

    Attributes:
        scratch_dir: A folder for temporary files; it is deleted when the store is finished or given up.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._arrays: dict[str, ArrayWriter] = {}
        self.scratch_dir = folder / "scratch"
        self.scratch_dir.mkdir()

    def create_array(
        self,
        name: str,
        dtype: np.dtype[Any] | type[np.generic],
        row_shape: tuple[int, ...] = (),
        type_name: str | None = None,
    ) -> ArrayWriter:
        """Start the array ``name`` and return its writer."""
        self._arrays[name] = ArrayWriter(self._folder / f"{name}.npy", np.dtype(dtype), row_shape, type_name)
        return self._arrays[name]

    def has_array(self, name: str) -> bool:
        """Whether an array was started."""
        return name in self._arrays

    def map_array(self, name: str) -> NDArray[Any]:
        """Map what has been written of an array so far, to read."""
        return self._arrays[name].map_rows()

    def require_free_space(self, num_bytes: int) -> None:
        """Fail early if the disk is too small.

        Raises:
            OSError: Fewer than ``num_bytes`` are available.
        """
        if shutil.disk_usage(self._folder).free < num_bytes:
            raise _NoSpaceError(num_bytes)

    def finish_store(self, manifest: Manifest) -> None:
        """Finish all arrays and write the manifest with their entries, which replace ``manifest.arrays``."""
        entries = {name: array.finish_array() for name, array in self._arrays.items()}
        shutil.rmtree(self.scratch_dir)
        # Last: a directory without a manifest is not a store, so a crash until here leaves none.
        write_manifest(replace(manifest, arrays=entries), self._folder)
        # The directory too: without it, the entries of new files may be lost.
        for path in (self._folder / FILE, self._folder):
            fsync_path(path)

    def close(self) -> None:
        """Close all files without finishing them."""
        for array in self._arrays.values():
            array.close()


class _NoSpaceError(OSError):
    def __init__(self, needed: int) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.needed = needed


@contextmanager
def open_store_writer(dest: Path, *, overwrite: bool) -> Iterator[StoreWriter]:
    """Write a store next to ``dest`` and move it into place at the end; a failed attempt is removed.

    Args:
        dest: Path of the new store.
        overwrite: Replace an existing store; it is kept until the new one is complete.

    Raises:
        InputError: ``dest`` exists or is no local path, its folder cannot be written to, or the disk is full.
    """
    require_local_path(Path(dest))
    dest = Path(dest).absolute()
    _check_destination(dest, overwrite)
    # On the same file system, so that the rename is atomic; the random part keeps two writers apart.
    folder = dest.parent / f".{dest.name}.{secrets.token_hex(4)}{PARTIAL}"
    writer = None
    # A folder of large arrays, each flushed as it ends, and an old folder that goes aside: so no atomic_write.
    try:
        folder.mkdir(parents=True)
        writer = StoreWriter(folder)
        yield writer
        _move_into_place(folder, dest)
    except OSError as error:
        if error.errno in _FULL:
            raise _disk_full_error(dest, folder, error) from error
        # Only making the folder failed; errors that come later are not about the destination.
        if writer is None:
            raise _unwritable_error(dest, error) from error
        raise
    finally:
        if writer is not None:
            # Closing may report a write that failed before; the first error is the one to show.
            with suppress(OSError):
                writer.close()
        shutil.rmtree(folder, ignore_errors=True)


def write_fully(file: BinaryIO, data: memoryview) -> None:
    """Write all of ``data`` to an unbuffered file."""
    while data:
        # A raw write may be partial, for instance at a signal or near the end of the disk.
        data = data[file.write(data) :]


def _check_destination(dest: Path, overwrite: bool) -> None:
    # An empty directory may be replaced, as `rename` does.
    if not dest.exists() or (dest.is_dir() and not any(dest.iterdir())):
        return
    # Never replace a folder of other files, whatever the caller asked for.
    if not (dest / FILE).is_file():
        raise InputError(
            f"{dest} is not a store, and is not replaced",
            needed="a path that does not exist, or a store to overwrite",
            got="a directory with other files" if dest.is_dir() else "a file",
            repair="choose another destination",
        )
    if not overwrite:
        raise InputError(
            f"{dest} exists",
            needed="a path that does not exist",
            got="a store",
            repair="choose another destination, or replace it: --overwrite (overwrite=True)",
        )


def _move_into_place(folder: Path, dest: Path) -> None:
    if not (dest / FILE).is_file():
        folder.rename(dest)
        fsync_path(dest.parent)
        return
    # A directory that is not empty cannot be renamed over. The old one is then removed as a failed attempt is.
    if exchange_paths(folder, dest):
        fsync_path(dest.parent)
        return
    # Else the old store moves aside first: there is none for a moment.
    old = folder.with_name(f"{folder.name.removesuffix(PARTIAL)}.old{PARTIAL}")
    dest.rename(old)
    try:
        folder.rename(dest)
    # Also at Ctrl-C: the old store must come back.
    except BaseException:
        old.rename(dest)
        raise
    fsync_path(dest.parent)
    shutil.rmtree(old, ignore_errors=True)


def _disk_full_error(dest: Path, folder: Path, error: OSError) -> InputError:
    free = shutil.disk_usage(dest.parent).free
    used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    needed = f"{error.needed:,}" if isinstance(error, _NoSpaceError) else f"more than {free:,}"
    return InputError(
        f"the disk is full: {dest} cannot be written",
        needed=f"{needed} bytes beside the {used:,} bytes written so far, which are given back",
        got=f"{free:,} bytes available",
        repair="make room, or choose a destination on another disk",
    )


def _unwritable_error(dest: Path, error: OSError) -> InputError:
    return InputError(
        f"{dest} cannot be written",
        needed="a folder that can be written to",
        got=f"{type(error).__name__}: {error}",
        repair="choose another destination, or change its permissions",
    )
