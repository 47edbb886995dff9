"""Sparse matrices of the Matrix Market (``.mtx``), taken for the edges of a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from outgrow.core.errors import InputError
from outgrow.graph.readers.tables.table import DataType, RecordBatch, Table
from outgrow.graph.readers.tables.text_blocks import TextFile
from outgrow.graph.readers.tables.text_layout import TextLayout
from outgrow.graph.readers.tables.text_table import TextTable

_BANNER = "%%matrixmarket"
_VALUES = {"pattern": (), "real": ("weight",), "integer": ("weight",)}
_SYMMETRIES = ("general", "symmetric")


@final
class MatrixTable(Table):
    """Edges of a square matrix of coordinates: an entry in row ``i`` and column ``j`` is an edge ``i -> j``.

    Rows and columns are numbered from 1 in the file, and from 0 here. Of a symmetric matrix the file has one half; each
    entry outside the diagonal is read as an edge in either direction. Values are weights.

    Args:
        path: The file; one that ends in ``.gz`` or ``.zst`` is decompressed while it is read.

    Raises:
        InputError: The matrix is dense, complex or not square, or the file is broken.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        head, line = self._read_head()
        words = head[0].lower().split()
        if len(words) != 5 or words[0] != _BANNER or words[1] != "matrix":
            raise self._error("begins with no line of the Matrix Market", f"{_BANNER} matrix coordinate ...", head[0])
        if words[2] != "coordinate" or words[3] not in _VALUES or words[4] not in _SYMMETRIES:
            needed = f"coordinate, one of {'/'.join(_VALUES)} and one of {'/'.join(_SYMMETRIES)}"
            raise self._error("holds another kind of matrix", needed, " ".join(words[2:]))
        sizes = head[-1].split()
        if len(sizes) != 3 or not all(size.isdecimal() for size in sizes):
            raise self._error("has no size", f"rows, columns and entries in line {line}", head[-1])
        rows, columns, self._entries = map(int, sizes)
        if rows != columns:
            raise self._error("is not square", "as many rows as columns, one of each node", f"{rows} x {columns}")
        self._num_nodes = rows
        self._names = ("src", "dst", *_VALUES[words[3]])
        self._symmetric = words[4] == "symmetric"
        self._text = TextTable(path, layout=TextLayout(" ", self._names, line, 1, quoted=False, decimal="."))

    def _read_head(self) -> tuple[list[str], int]:
        """Return the first line and that of the size, and the number of the latter."""
        lines: list[str] = []
        before = 0
        for block in TextFile(self._path).read_blocks():
            for at, line in enumerate(block.text.split(b"\n")[:-1] or [block.text]):
                text = line.decode(errors="replace").strip()[:200]
                lines = lines or [text]
                if text and not text.startswith("%"):
                    return [lines[0], text], block.line + at
            before = block.line
        return [*lines, ""] if lines else ["", ""], before

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def names(self) -> tuple[str, ...]:
        """``src``, ``dst`` and, if there are values, ``weight``."""
        return self._names

    @property
    def has_names(self) -> bool:
        """Whether columns have names: always."""
        return True

    @property
    def num_nodes(self) -> int | None:
        """Number of rows of the matrix."""
        return self._num_nodes

    @property
    def bytes_read(self) -> int:
        """How many bytes of the file were read."""
        return self._text.bytes_read

    def find_type(self, name: str) -> DataType | None:
        """Return the type of a column."""
        import pyarrow as pa

        return pa.float64() if name == "weight" else pa.int64()

    def read_batches(
        self, columns: Sequence[str], types: Mapping[str, DataType] | None = None
    ) -> Iterator[RecordBatch]:
        """Yield the edges; see `Table.read_batches`."""
        import pyarrow as pa

        kinds = {name: self.find_type(name) for name in self._names}
        wanted = pa.schema([(name, (types or {}).get(name, kinds[name])) for name in columns])
        entries = 0
        for batch in self._text.read_batches(self._names, kinds):
            arrays = {name: batch.column(at).to_numpy(zero_copy_only=False) for at, name in enumerate(self._names)}
            for name in ("src", "dst"):
                self._check_numbers(arrays[name], entries)
                arrays[name] = arrays[name] - 1
            entries += len(batch)
            if self._symmetric:
                arrays = _mirror(arrays)
            yield pa.record_batch([pa.array(arrays[field.name]).cast(field.type) for field in wanted], schema=wanted)
        if entries != self._entries:
            raise self._error("is cut off, or its size is wrong", f"{self._entries:,} entries", f"{entries:,}")

    def locate_row(self, row: int) -> str:
        """Return the file and the line of an edge; of a symmetric matrix only the file."""
        return str(self._path) if self._symmetric else self._text.locate_row(row)

    def _check_numbers(self, numbers: Any, first: int) -> None:
        bad = np.flatnonzero((numbers < 1) | (numbers > self._num_nodes))
        if len(bad):
            where = self._text.locate_row(first + int(bad[0]))
            raise InputError(
                f"{where}: no row or column of the matrix",
                needed=f"numbers from 1 to {self._num_nodes}",
                got=f"{numbers[bad[0]]}",
                repair="correct the line, or the size of the matrix",
            )

    def _error(self, what: str, needed: str, got: str) -> InputError:
        return InputError(
            f"{self._path} {what}",
            needed=needed,
            got=repr(got[:80]),
            repair="write the matrix again, for example by scipy.io.mmwrite, or as a list of edges",
        )


def _mirror(arrays: dict[str, Any]) -> dict[str, Any]:
    both = np.flatnonzero(arrays["src"] != arrays["dst"])
    made = {name: np.concatenate([values, values[both]]) for name, values in arrays.items()}
    count = len(arrays["src"])
    made["src"][count:], made["dst"][count:] = arrays["dst"][both], arrays["src"][both]
    return made
