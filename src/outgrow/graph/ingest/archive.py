"""Arrays of an ``.npz`` file, mapped instead of read where they are large."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError

_LARGE_BYTES = 1 << 26
_LOCAL_HEADER_BYTES = 30


class Archive:
    """The arrays of one file by key; nothing is unpickled. Final.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept: dict[str, NDArray[Any]] = {}

    def get(self, key: str) -> NDArray[Any] | None:
        """The array, or None where the file has no such key.

        Raises:
            InputError: The file is broken.
        """
        if key not in self._kept:
            try:
                with zipfile.ZipFile(self.path) as file:
                    names = {name.removesuffix(".npy"): name for name in file.namelist()}
                    if key not in names:
                        return None
                    self._kept[key] = self._array(file, file.getinfo(names[key]))
            except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
                raise InputError(
                    f"{self.path} cannot be read",
                    needed="a NumPy .npz file whose arrays hold numbers or text",
                    got=f"{type(error).__name__} at {key}: {error}",
                    repair="write the file again with numpy.savez, without object arrays",
                ) from error
        return self._kept[key]

    def __getitem__(self, key: str) -> NDArray[Any]:
        values = self.get(key)
        if values is None:
            raise InputError(
                f"{self.path} has no {key}",
                needed=f"an array under the key {key}",
                got=f"the keys {', '.join(self.keys()) or 'none'}",
                repair="write the file again with this key",
            )
        return values

    def keys(self) -> list[str]:
        """All keys."""
        with zipfile.ZipFile(self.path) as file:
            return [name.removesuffix(".npy") for name in file.namelist()]

    def _array(self, file: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
        if member.file_size < _LARGE_BYTES:
            with file.open(member) as stream:
                values: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
                stream.read()
            return values
        if member.compress_type == zipfile.ZIP_STORED:
            with self.path.open("rb") as raw:
                raw.seek(member.header_offset)
                header = raw.read(_LOCAL_HEADER_BYTES)
                extra = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
                return _mapped(raw, member.header_offset + _LOCAL_HEADER_BYTES + extra)
        with tempfile.TemporaryFile() as unpacked:
            with file.open(member) as stream:
                shutil.copyfileobj(stream, unpacked, 1 << 20)
            unpacked.flush()
            return _mapped(unpacked, 0)


def _mapped(file: Any, offset: int) -> NDArray[Any]:
    file.seek(offset)
    stream: BinaryIO = file
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("object arrays are not read")
    order: Any = "F" if fortran else "C"
    return np.memmap(file, dtype=dtype, mode="r", offset=file.tell(), shape=shape, order=order)
