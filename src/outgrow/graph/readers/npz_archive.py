"""Arrays of an ``.npz`` file; large ones are mapped instead of read."""

from __future__ import annotations

import errno
import math
import os
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.readers.tables.column_types import shorten_name

# Smaller arrays are read: a mapping each would cost more than it saves.
_LARGE_BYTES = 1 << 26
_LOCAL_HEADER_BYTES = 30
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Without objects: loading them would unpickle, and so run code of the file.
_KINDS = "biufSU"
# Everything that the decompressor, the archive and the header raise for damaged files.
_BROKEN = (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)


class NpzArchive:
    """Archive of arrays by key; nothing is unpickled. Final.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._arrays: dict[str, NDArray[Any]] = {}

    def get(self, key: str) -> NDArray[Any] | None:
        """Return an array, or None if the file has no such key.

        Raises:
            InputError: The file is broken.
        """
        if key not in self._arrays:
            with self._open_zip(f"at {key}") as file:
                names = {name.removesuffix(".npy"): name for name in file.namelist()}
                if key not in names:
                    return None
                self._arrays[key] = self._read_member(file, file.getinfo(names[key]))
        return self._arrays[key]

    def __getitem__(self, key: str) -> NDArray[Any]:
        values = self.get(key)
        if values is None:
            keys = self.keys()
            raise InputError(
                f"{self.path} has no {key}",
                needed=f"an array under the key {key}",
                got=f"the keys {', '.join(shorten_name(name) for name in keys[:20]) or 'none'}",
                repair="write the file again with this key",
            )
        return values

    def keys(self) -> list[str]:
        """Return all keys.

        Raises:
            InputError: The file is broken.
        """
        with self._open_zip("in its list of keys") as file:
            return [name.removesuffix(".npy") for name in file.namelist()]

    @contextmanager
    def _open_zip(self, where: str) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self.path) as file:
                yield file
        except _BROKEN as error:
            raise InputError(
                f"{self.path} cannot be read",
                needed="a NumPy .npz file whose arrays hold numbers or text",
                got=f"{type(error).__name__} {where}: {str(error)[:200]}",
                repair="write the file again with numpy.savez, without object arrays",
            ) from error

    def _read_member(self, file: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
        # Other methods need modules that a build of Python may lack.
        if member.compress_type not in _PACKINGS:
            raise ValueError(f"packed by the method {member.compress_type}")
        with file.open(member) as stream:
            form = _read_npy_header(stream, member.file_size)
            if member.file_size < _LARGE_BYTES:
                # A bytearray, so that the array is writable: torch warns about others.
                return form.array_from_bytes(bytearray(stream.read()))
        if member.compress_type == zipfile.ZIP_STORED:
            with self.path.open("rb") as raw:
                raw.seek(member.header_offset)
                header = raw.read(_LOCAL_HEADER_BYTES)
                # Lengths of name and extra field as in the local header, which may differ from the directory
                # of the archive.
                extra = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
                return form.map_array(raw, member.header_offset + _LOCAL_HEADER_BYTES + extra)
        # Before unpacking: a small archive may claim more than the disk holds.
        if shutil.disk_usage(tempfile.gettempdir()).free < member.file_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        # Unnamed: the system deletes it when the last mapping is gone.
        with tempfile.TemporaryFile() as unpacked:
            with file.open(member) as stream:
                shutil.copyfileobj(stream, unpacked, 1 << 20)
            unpacked.flush()
            return form.map_array(unpacked, 0)


class _NpyHeader(NamedTuple):
    """Header of an array, whose data have exactly the size that it claims."""

    shape: tuple[int, ...]
    order: Any
    dtype: np.dtype[Any]
    offset: int

    def array_from_bytes(self, data: bytearray) -> NDArray[Any]:
        """Return the array of some data."""
        return np.frombuffer(data, self.dtype, math.prod(self.shape)).reshape(self.shape, order=self.order)

    def map_array(self, file: Any, first: int) -> NDArray[Any]:
        """Map the array of a file whose header begins at ``first``."""
        return np.memmap(file, self.dtype, "r", first + self.offset, self.shape, self.order)


def _read_npy_header(stream: Any, size: int) -> _NpyHeader:
    """Read a header, and check it against the ``size`` of the member.

    Raises:
        ValueError: It is broken, claims another size, or belongs to an array of neither numbers nor text.
    """
    file: BinaryIO = stream
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        sizes, fortran, dtype = read(file)
    # NumPy evaluates the header as a literal, which can raise nearly anything.
    except Exception as error:
        raise ValueError(f"a header that cannot be read, {type(error).__name__}: {str(error)[:150]}") from error
    shape = tuple(map(int, sizes))
    if dtype.kind not in _KINDS or dtype.subdtype is not None:
        raise ValueError(f"arrays of type {str(dtype)[:40]} are not read")
    # Python integers do not overflow, however large the claimed shape.
    needed = math.prod(shape) * dtype.itemsize + file.tell()
    if min(shape, default=0) < 0 or max(shape, default=0) > size or needed != size:
        raise ValueError(f"{size} bytes for an array of {dtype} and shape {list(shape)}")
    return _NpyHeader(shape, "F" if fortran else "C", dtype, file.tell())
