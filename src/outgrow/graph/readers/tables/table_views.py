"""Tables in memory, and tables made of others: columns chosen and renamed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice
from outgrow.graph.readers.tables.column_types import shorten_name
from outgrow.graph.readers.tables.table import DataType, RecordBatch, Table

_BATCH_ROWS = 1 << 17


@final
class MemoryTable(Table):
    """Table of a ``pyarrow.Table`` in memory.

    Args:
        table: The table.
        name: What it is called in errors.
    """

    def __init__(self, table: Any, name: str) -> None:
        self._table = table
        self._name = name

    @property
    def path(self) -> Path:
        """The name, as a path that does not exist."""
        return Path(self._name)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each column."""
        return tuple(self._table.column_names)

    @property
    def has_names(self) -> bool:
        """True."""
        return True

    def read_batches(
        self, columns: Sequence[str], types: Mapping[str, DataType] | None = None
    ) -> Iterator[RecordBatch]:
        """Yield the rows: views, but for columns of another type.

        Raises:
            InputError: A value that has not its column's type.
        """
        import pyarrow as pa

        kinds = types or {}
        for batch in self._table.select(list(columns)).to_batches(max_chunksize=_BATCH_ROWS):
            arrays = []
            for name, array in zip(columns, batch.columns, strict=True):
                try:
                    arrays.append(array.cast(kinds[name]) if name in kinds else array)
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                    raise InputError(
                        f"{self._name}: the column {shorten_name(name)} has values of another type",
                        needed=f"values of type {kinds[name]}",
                        got=str(error).splitlines()[0],
                        repair="convert the column",
                    ) from error
            yield pa.RecordBatch.from_arrays(arrays, list(columns))

    def locate_row(self, row: int) -> str:
        """Return the number of the row."""
        return f"{self._name}, row {row}"

    def find_type(self, name: str) -> DataType | None:
        """Return the type of a column."""
        return self._table.schema.field(name).type

    @property
    def num_bytes(self) -> int:
        """Size of the table in memory."""
        return int(self._table.nbytes)


@final
class SelectedTable(Table):
    """Some columns of a table, under other names.

    Args:
        table: The table.
        columns: For each name the column of the table.
        texts: Names of columns that are read as texts.

    Raises:
        InputError: The table has no such column.
    """

    def __init__(self, table: Table, columns: Mapping[str, str], texts: Collection[str] = ()) -> None:
        for column in columns.values():
            validate_choice(f"column of {table.path}", column, dict.fromkeys(table.names))
        self._table = table
        self._columns = dict(columns)
        self._texts = frozenset(texts)

    @property
    def path(self) -> Path:
        """That of the table."""
        return self._table.path

    @property
    def names(self) -> tuple[str, ...]:
        """The new names."""
        return tuple(self._columns)

    @property
    def has_names(self) -> bool:
        """True."""
        return True

    def read_batches(
        self, columns: Sequence[str], types: Mapping[str, DataType] | None = None
    ) -> Iterator[RecordBatch]:
        """Yield the rows of these columns.

        Raises:
            InputError: As the table does.
        """
        import pyarrow as pa

        wanted = {name: pa.large_string() for name in columns if name in self._texts} | dict(types or {})
        kinds = {self._columns[name]: kind for name, kind in wanted.items() if name in columns}
        # Two names may stand for one column.
        given = list(dict.fromkeys(self._columns[name] for name in columns))
        for batch in self._table.read_batches(given, kinds):
            yield pa.RecordBatch.from_arrays([batch.column(self._columns[name]) for name in columns], list(columns))

    def locate_row(self, row: int) -> str:
        """Return where the table has the row."""
        return self._table.locate_row(row)

    def find_type(self, name: str) -> DataType | None:
        """Return the type that the table's column has in its file."""
        import pyarrow as pa

        return pa.large_string() if name in self._texts else self._table.find_type(self._columns[name])

    def infer_types(self, columns: Sequence[str]) -> dict[str, DataType]:
        """Return the types of the table's columns."""
        import pyarrow as pa

        found = self._table.infer_types([self._columns[name] for name in columns if name not in self._texts])
        return {name: pa.large_string() if name in self._texts else found[self._columns[name]] for name in columns}

    def refuse_leading_zeros(self, columns: Sequence[str]) -> None:
        """Refuse, from now on, texts such as ``007`` where integers of these columns are read."""
        self._table.refuse_leading_zeros([self._columns[name] for name in columns])

    @property
    def num_bytes(self) -> int:
        """Size of the file or files of the table."""
        return self._table.num_bytes

    @property
    def bytes_read(self) -> int:
        """How much of them was read."""
        return self._table.bytes_read
