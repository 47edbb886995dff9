"""Arrays that grow, in memory or in temporary files."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outgrow.core.files import reserve_space

_FEWEST = 64


def make_scratch_array(count: int, dtype: np.dtype[Any] | type[np.generic], folder: Path | None) -> NDArray[Any]:
    """Return an array of zeros, mapped from a file without a name in a folder, or in memory if that is None.

    Raises:
        OSError: The disk is full.
    """
    kind = np.dtype(dtype)
    if folder is None or not count:
        return np.zeros(count, kind)
    with tempfile.TemporaryFile(dir=folder) as file:
        return _map_file(file.fileno(), count, kind)


def _map_file(file: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    # Blocks for all of it: writing through the mapping could only be ended by SIGBUS when the disk is full.
    reserve_space(file, count * dtype.itemsize)
    return np.frombuffer(mmap.mmap(file, count * dtype.itemsize), dtype)


@final
class ScratchArray:
    """One-dimensional array to which values are appended.

    Views of its values stay valid, and as they were, when it grows.

    Args:
        dtype: Type of the values.
    """

    def __init__(self, dtype: np.dtype[Any] | type[np.generic]) -> None:
        self._dtype = np.dtype(dtype)
        self._values: NDArray[Any] = np.empty(0, self._dtype)
        self._count = 0
        self._file: int | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> NDArray[Any]:
        """The values, without a copy."""
        return self._values[: self._count]

    @property
    def capacity_bytes(self) -> int:
        """Bytes that the array takes with what is reserved of it."""
        return int(self._values.nbytes)

    def extend(self, count: int) -> NDArray[Any]:
        """Append ``count`` values of any content, and return them to be written.

        Raises:
            OSError: The disk is full.
        """
        if self._count + count > len(self._values):
            self._reserve(max(_FEWEST, self._count + count, len(self._values) * 3 // 2))
        self._count += count
        return self._values[self._count - count : self._count]

    def append_values(self, values: NDArray[Any]) -> None:
        """Append values.

        Raises:
            OSError: The disk is full.
        """
        self.extend(len(values))[:] = values

    def move_to_file(self, folder: Path) -> None:
        """Move the values to a file without a name in a folder.

        Raises:
            OSError: The disk is full.
        """
        if self._file is None:
            with tempfile.TemporaryFile(dir=folder) as file:
                self._file = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._file)
            self._reserve(max(_FEWEST, len(self._values)))

    def _reserve(self, count: int) -> None:
        before = self.values
        if self._file is None:
            self._values = np.empty(count, self._dtype)
            self._values[: self._count] = before
            return
        was_mapped = self._values.base is not None
        # The file is mapped anew, as it is longer: nothing is copied but what was in memory.
        self._values = _map_file(self._file, count, self._dtype)
        if not was_mapped:
            self._values[: self._count] = before
