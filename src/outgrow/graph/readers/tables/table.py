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
