"""Sections of a worker's embedding rows: the vectors, their gradients and moments; in memory, on a GPU, or in files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from outgrow.runtime.storage.row_file import IoPool, RowFile


class RowSection(Protocol):
    """Rows ``[m, W]`` of a worker, zeros at first. Rows are selected by ascending and distinct numbers."""

    @property
    def num_rows(self) -> int:
        """``m``."""

    def read_rows(self, rows_N: Tensor) -> Tensor:
        """Return a copy of some rows, ``[N, W]``."""

    def write_rows(self, rows_N: Tensor, values_NW: Tensor) -> None:
        """Write some rows."""

    def read_range(self, first: int, last: int) -> Tensor:
        """Return the rows ``first`` to ``last - 1``: a copy, or a view, which `write_range` need not write back."""

    def write_range(self, first: int, values_NW: Tensor) -> None:
        """Write rows from ``first`` on."""

    def close(self) -> None:
        """Release the rows."""


MakeSection = Callable[[str, int, int, torch.dtype], RowSection]
"""Makes a section of a name, a number of rows, a width and a type."""


class TensorSection:
    """Rows of a tensor in memory or on a GPU. Final.

    Args:
        values_VW: ``[m, W]``, written in place.
    """

    def __init__(self, values_VW: Tensor) -> None:
        self.values = values_VW

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.values)

    def read_rows(self, rows_N: Tensor) -> Tensor:
        """Return a copy of some rows."""
        return self.values.index_select(0, rows_N.to(self.values.device))

    def write_rows(self, rows_N: Tensor, values_NW: Tensor) -> None:
        """Write some rows."""
        self.values.index_copy_(0, rows_N.to(self.values.device), values_NW)

    def read_range(self, first: int, last: int) -> Tensor:
        """Return a view of some rows."""
        return self.values[first:last]

    def write_range(self, first: int, values_NW: Tensor) -> None:
        """Write rows from ``first`` on."""
        here = self.values[first : first + len(values_NW)]
        if here.data_ptr() != values_NW.data_ptr():
            here.copy_(values_NW)

    def close(self) -> None:
        """Release the tensor."""
        self.values = self.values[:0]


class FileSection:
    """Rows of a file. Final.

    Args:
        file: The file, which is open for writing.
    """

    def __init__(self, file: RowFile) -> None:
        self._file = file

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._file.num_rows

    def read_rows(self, rows_N: Tensor) -> Tensor:
        """Return a copy of some rows."""
        out = torch.empty(len(rows_N), self._file.width, dtype=self._file.dtype)
        self._file.read_rows(rows_N, out, torch.arange(len(rows_N)))
        return out

    def write_rows(self, rows_N: Tensor, values_NW: Tensor) -> None:
        """Write some rows."""
        self._file.write_rows(rows_N, values_NW, torch.arange(len(rows_N)))

    def read_range(self, first: int, last: int) -> Tensor:
        """Return a copy of some rows."""
        out = torch.empty(last - first, self._file.width, dtype=self._file.dtype)
        self._file.read_range(first, last, out)
        return out

    def write_range(self, first: int, values_NW: Tensor) -> None:
        """Write rows from ``first`` on."""
        self._file.write_range(first, values_NW)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def section_maker(device: torch.device) -> MakeSection:
    """Return what makes sections in the memory of a device."""
    return lambda name, num_rows, width, dtype: TensorSection(torch.zeros(num_rows, width, dtype=dtype, device=device))


def file_section_maker(folder: Path, io_pool: IoPool) -> MakeSection:
    """Return what makes sections in files of a folder."""
    return lambda name, num_rows, width, dtype: FileSection(
        RowFile.create(io_pool, folder / f"{name}.rows", num_rows, width, dtype)
    )
