"""A table in a file or in several: the names of its columns, and its rows in batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RecordBatch = Any
"""A record batch of pyarrow."""
DataType = Any
"""A type of pyarrow."""


class Table(ABC):
    """Rows that can be read repeatedly, each time the same."""

    @property
    @abstractmethod
    def path(self) -> Path:
        """The file or folder."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Name of each column; ``"0"``, ``"1"``, ... if `has_names` is False."""

    @property
    @abstractmethod
    def has_names(self) -> bool:
        """Whether the columns have names: those of a text file may have none."""

    @abstractmethod
    def read_batches(
        self, columns: Sequence[str], types: Mapping[str, DataType] | None = None
    ) -> Iterator[RecordBatch]:
        """Yield the rows, in batches of bounded size.

        Args:
            columns: Names of the columns to read, in the order of the batches' columns.
            types: Arrow type of some columns; others are inferred, the same in every batch. Ids that must not lose
                their form (leading zeros, large numbers) are read as ``pa.large_string()``.

        Raises:
            InputError: A value that has not its column's type, with file, line or row group, and column; a file that
                is cut off, of another encoding, or broken.
        """

    @abstractmethod
    def locate_row(self, row: int) -> str:
        """Return where a row is, counted from 0 over all batches: ``nodes.csv, line 7``, or of parquet its row."""

    def find_type(self, name: str) -> DataType | None:
        """Return the type that a column has in its file; None in text, where it has none."""
        return None

    def infer_types(self, columns: Sequence[str]) -> dict[str, DataType]:
        """Return the type of each column, which holds the values of all rows; of text, all of it is read."""
        return {name: self.find_type(name) for name in columns}

    def refuse_leading_zeros(self, columns: Sequence[str]) -> None:  # noqa: B027
        """Refuse, from now on, texts such as ``007`` where integers of these columns are read."""

    @property
    def num_nodes(self) -> int | None:
        """``V``, if the file says it, as one of Matrix Market does."""
        return None

    @property
    def num_bytes(self) -> int:
        """Size of the file or files, for displays of progress."""
        return self.path.stat().st_size

    @property
    def bytes_read(self) -> int:
        """How much of it the newest call of `read_batches` has read so far."""
        return 0
