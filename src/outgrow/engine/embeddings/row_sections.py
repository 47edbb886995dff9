"""Sections of a worker's embedding rows: the vectors, their gradients and moments; in memory, on a GPU, or in files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from outgrow.runtime.storage.row_file import IoPool, RowFile

MEMORY_SHARE = 0.25
"""Share of the memory of a worker that vectors with their gradients and moments may take; more are kept in files."""


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


class SectionGroup(Protocol):
    """Sections of the same rows that are read and written together, such as vectors and their moments."""

    @property
    def sections(self) -> Sequence[RowSection]:
        """The sections one by one."""

    def read(self, rows: slice | Tensor) -> list[Tensor]:
        """Return the rows of each section: of a range copies or views, see `RowSection.read_range`, else copies."""

    def write(self, rows: slice | Tensor, values: Sequence[Tensor]) -> None:
        """Write rows of each section."""

    def read_joined(self, first: int, last: int) -> Tensor:
        """Return ``[n, count * W]``: a copy of a range of rows of all sections, side by side."""

    def write_joined(self, first: int, joined: Tensor) -> None:
        """Write rows of all sections, side by side, from ``first`` on."""

    def close(self) -> None:
        """Release the rows."""


class SeparateSections:
    """Sections that are kept apart. Final.

    Args:
        sections: The sections.
    """

    def __init__(self, sections: Sequence[RowSection]) -> None:
        self.sections = sections

    def read(self, rows: slice | Tensor) -> list[Tensor]:
        """Return the rows of each section."""
        if isinstance(rows, slice):
            return [each.read_range(rows.start, rows.stop) for each in self.sections]
        return [each.read_rows(rows) for each in self.sections]

    def write(self, rows: slice | Tensor, values: Sequence[Tensor]) -> None:
        """Write rows of each section."""
        for section, updated in zip(self.sections, values, strict=True):
            if isinstance(rows, slice):
                section.write_range(rows.start, updated)
            else:
                section.write_rows(rows, updated)

    def read_joined(self, first: int, last: int) -> Tensor:
        """Return a range of rows, side by side."""
        return torch.cat(self.read(slice(first, last)), 1)

    def write_joined(self, first: int, joined: Tensor) -> None:
        """Write rows from ``first`` on."""
        parts = joined.chunk(len(self.sections), 1)
        self.write(slice(first, first + len(joined)), [each.contiguous() for each in parts])

    def close(self) -> None:
        """Release the rows."""
        for section in self.sections:
            section.close()


class JoinedSections:
    """Sections side by side in the rows of one file, so that one request brings all that there is of a row. Final.

    For rows that are read and written here and there: a disk moves whole pages, which hold several rows of a section.

    Args:
        file: The file, of rows as wide as all sections, open for writing.
        count: Number of sections, all of one width.
    """

    def __init__(self, file: RowFile, count: int) -> None:
        self._file = FileSection(file)
        self.width = file.width // count
        self.sections: Sequence[RowSection] = [JoinedSection(self, number) for number in range(count)]

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._file.num_rows

    def read(self, rows: slice | Tensor) -> list[Tensor]:
        """Return the rows of each section, copies."""
        return [each.contiguous() for each in torch.split(self._read(rows), self.width, 1)]

    def read_one(self, rows: slice | Tensor, number: int) -> Tensor:
        """Return the rows of a section, a copy."""
        return self._read(rows)[:, number * self.width : (number + 1) * self.width].contiguous()

    def write(self, rows: slice | Tensor, values: Sequence[Tensor]) -> None:
        """Write rows of each section."""
        joined = torch.cat([*values], 1)
        if isinstance(rows, slice):
            self.write_joined(rows.start, joined)
        else:
            self._file.write_rows(rows, joined)

    def read_joined(self, first: int, last: int) -> Tensor:
        """Return a range of rows as they are in the file."""
        return self._file.read_range(first, last)

    def write_joined(self, first: int, joined: Tensor) -> None:
        """Write rows from ``first`` on."""
        self._file.write_range(first, joined)

    def write_one(self, rows: slice | Tensor, number: int, values: Tensor) -> None:
        """Write rows of a section; those of the others are read first."""
        every = self.read(rows)
        every[number] = values
        self.write(rows, every)

    def _read(self, rows: slice | Tensor) -> Tensor:
        return self.read_joined(rows.start, rows.stop) if isinstance(rows, slice) else self._file.read_rows(rows)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class JoinedSection:
    """One of joined sections. Final.

    Args:
        group: All of them.
        number: Its number.
    """

    def __init__(self, group: JoinedSections, number: int) -> None:
        self._group = group
        self._number = number

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._group.num_rows

    def read_rows(self, rows_N: Tensor) -> Tensor:
        """Return a copy of some rows."""
        return self._group.read_one(rows_N, self._number)

    def write_rows(self, rows_N: Tensor, values_NW: Tensor) -> None:
        """Write some rows."""
        self._group.write_one(rows_N, self._number, values_NW)

    def read_range(self, first: int, last: int) -> Tensor:
        """Return a copy of some rows."""
        return self._group.read_one(slice(first, last), self._number)

    def write_range(self, first: int, values_NW: Tensor) -> None:
        """Write rows from ``first`` on."""
        self._group.write_one(slice(first, first + len(values_NW)), self._number, values_NW)

    def close(self) -> None:
        """Close the file of all."""
        self._group.close()


class SectionMaker(Protocol):
    """Makes sections, of zeros."""

    @property
    def io_pool(self) -> IoPool | None:
        """Reads and writes their files, and counts bytes; None for sections in memory."""

    def make(self, name: str, num_rows: int, width: int, dtype: torch.dtype) -> RowSection:
        """Return a section of a name, a number of rows, a width and a type."""

    def make_group(self, name: str, count: int, num_rows: int, width: int, dtype: torch.dtype) -> SectionGroup:
        """Return sections that are read and written together, of which some rows are read at a time."""


class TensorSections:
    """Makes sections in the memory of a device. Final.

    Args:
        device: The device.
    """

    io_pool = None

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def make(self, name: str, num_rows: int, width: int, dtype: torch.dtype) -> RowSection:
        """Return a section in memory."""
        return TensorSection(torch.zeros(num_rows, width, dtype=dtype, device=self._device))

    def make_group(self, name: str, count: int, num_rows: int, width: int, dtype: torch.dtype) -> SectionGroup:
        """Return sections in memory."""
        return SeparateSections([self.make(name, num_rows, width, dtype) for _ in range(count)])


class FileSections:
    """Makes sections in files of a folder. Final.

    Args:
        folder: The folder.
        io_pool: Reads and writes the files.
    """

    def __init__(self, folder: Path, io_pool: IoPool) -> None:
        self._folder = folder
        self.io_pool = io_pool

    def make(self, name: str, num_rows: int, width: int, dtype: torch.dtype) -> RowSection:
        """Return a section in a file."""
        return FileSection(RowFile.create(self.io_pool, self._folder / f"{name}.rows", num_rows, width, dtype))

    def make_group(self, name: str, count: int, num_rows: int, width: int, dtype: torch.dtype) -> SectionGroup:
        """Return sections side by side in a file."""
        path = self._folder / f"{name}.rows"
        return JoinedSections(RowFile.create(self.io_pool, path, num_rows, count * width, dtype), count)
