"""Tables made of others: in memory, several read as one, columns chosen and renamed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice
from outgrow.graph.readers.tables.table import DataType, RecordBatch, Table

_BATCH_ROWS = 1 << 17
_SHOWN = 8


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
                        f"{self._name}: the column {name[:40]} has values of another type",
                        needed=f"values of type {kinds[name]}",
                        got=str(error).splitlines()[0],
                        repair="convert the column",
                    ) from error
            yield pa.RecordBatch.from_arrays(arrays, list(columns))

    def locate_row(self, row: int) -> str:
        """Return the number of the row."""
        return f"{self._name}, row {row}"


@final
class ChainedTable(Table):
    """The rows of several tables with the same columns, one table after the other.

    Args:
        tables: At least one.
        path: Where they are in messages.

    Raises:
        InputError: A table lacks a column of the first one, or has others.
    """

    def __init__(self, tables: Sequence[Table], path: Path) -> None:
        self._tables = list(tables)
        self._path = path
        for table in tables[1:]:
            if set(table.names) != set(tables[0].names):
                other = sorted(set(table.names) ^ set(tables[0].names))
                raise InputError(
                    f"the columns of {table.path} are not those of {tables[0].path}",
                    needed="the same columns in all files of one table",
                    got=f"only one of them has {', '.join(other[:_SHOWN])}",
                    repair="write the files with the same columns",
                )

    @property
    def path(self) -> Path:
        """As given."""
        return self._path

    @property
    def names(self) -> tuple[str, ...]:
        """Columns of the first table."""
        return self._tables[0].names

    @property
    def has_names(self) -> bool:
        """Whether those of the first table have names."""
        return self._tables[0].has_names

    def read_batches(
        self, columns: Sequence[str], types: Mapping[str, DataType] | None = None
    ) -> Iterator[RecordBatch]:
        """Yield the rows of all tables; other columns than those of ``types`` have the type of the first table.

        Raises:
            InputError: A value that has not its column's type.
        """
        kinds = dict(types or {})
        for table in self._tables:
            for batch in table.read_batches(columns, kinds):
                for field in batch.schema:
                    kinds.setdefault(field.name, field.type)
                yield batch

    def locate_row(self, row: int) -> str:
        """Return the file of the row, and where it is there."""
        for table in self._tables[:-1]:
            count = sum(len(batch) for batch in table.read_batches(table.names[:1]))
            if row < count:
                return table.locate_row(row)
            row -= count
        return self._tables[-1].locate_row(row)


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


def select_columns(table: Table, left_out: Collection[str]) -> Table:
    """Return a table without some of its columns; the table itself if it has none of them."""
    kept = {name: name for name in table.names if name not in left_out}
    return table if len(kept) == len(table.names) else SelectedTable(table, kept)
