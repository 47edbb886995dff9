"""Detection of the form of a table by the name of its file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import final

from outgrow.core.errors import InputError
from outgrow.graph.readers.tables.table import DataType, RecordBatch, Table

SUFFIXES = (".csv", ".tsv", ".parquet")


def open_table(path: Path) -> Table:
    """Return the table in a file; only its first lines or its schema are read.

    Raises:
        InputError: No such file, an unknown form, or a broken file.
    """
    if path.suffix == ".parquet":
        return _ParquetTable(path)
    if path.suffix in SUFFIXES:
        return _TextTable(path)
    raise InputError(
        f"{path} is of no known form",
        needed=f"a table: {', '.join(SUFFIXES)}",
        got=f"a file that ends in {path.suffix!r}",
        repair="convert or rename it",
    )


@final
class _TextTable(Table):
    def __init__(self, path: Path) -> None:
        from pyarrow import csv

        self._path = path
        self._parse = csv.ParseOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
        with csv.open_csv(path, parse_options=self._parse) as reader:
            self._schema = reader.schema

    @property
    def path(self) -> Path:
        return self._path

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._schema.names)

    @property
    def has_names(self) -> bool:
        return True

    def read_batches(
        self, columns: Sequence[str], types: Mapping[str, DataType] | None = None
    ) -> Iterator[RecordBatch]:
        from pyarrow import csv

        kinds = {name: self._schema.field(name).type for name in columns} | dict(types or {})
        convert = csv.ConvertOptions(include_columns=list(columns), column_types=kinds)
        with csv.open_csv(self._path, parse_options=self._parse, convert_options=convert) as reader:
            yield from reader

    def locate_row(self, row: int) -> str:
        return f"{self._path}, line {row + 2}"


@final
class _ParquetTable(Table):
    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        self._path = path
        self._schema = parquet.read_schema(path)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._schema.names)

    @property
    def has_names(self) -> bool:
        return True

    def read_batches(
        self, columns: Sequence[str], types: Mapping[str, DataType] | None = None
    ) -> Iterator[RecordBatch]:
        import pyarrow as pa
        from pyarrow import parquet

        with parquet.ParquetFile(self._path) as file:
            for batch in file.iter_batches(columns=list(columns)):
                kinds = types or {}
                yield pa.RecordBatch.from_arrays(
                    [batch.column(name).cast(kinds.get(name, batch.column(name).type)) for name in columns],
                    list(columns),
                )

    def locate_row(self, row: int) -> str:
        return f"{self._path}, row {row}"
