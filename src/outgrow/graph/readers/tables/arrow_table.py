"""Tables in parquet and in Arrow's own files (IPC, feather)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from outgrow.core.errors import InputError
from outgrow.graph.readers.tables.column_types import column_name_error, describe_type, shorten_name
from outgrow.graph.readers.tables.table import DataType, RecordBatch, Table

_BATCH_ROWS = 1 << 17
_BUFFER_BYTES = 1 << 20


class _SchemaTable(Table):
    """Table whose file has names and types of columns."""

    def __init__(self, path: Path, schema: Any) -> None:
        self._path = path
        self._schema = schema
        self._bytes_read = 0

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each column."""
        return tuple(self._schema.names)

    @property
    def has_names(self) -> bool:
        """Whether columns have names: always."""
        return True

    @property
    def bytes_read(self) -> int:
        """How many bytes of the file were read, about."""
        return self._bytes_read

    def find_type(self, name: str) -> DataType | None:
        """Return the type of a column; that of its values if they are dictionary-encoded."""
        import pyarrow as pa

        if self.names.count(name) != 1:
            raise column_name_error(self, name)
        kind = self._schema.field(name).type
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    def _convert(
        self, batch: RecordBatch, columns: Sequence[str], types: Mapping[str, DataType], row: int
    ) -> RecordBatch:
        import pyarrow as pa

        arrays = [
            self._cast(batch.column(name), name, types.get(name) or self.find_type(name), row) for name in columns
        ]
        return pa.RecordBatch.from_arrays(arrays, [*columns])

    def _cast(self, values: Any, name: str, kind: DataType, row: int) -> Any:
        from pyarrow.lib import ArrowException

        if values.type == kind:
            return values
        try:
            return values.cast(kind)
        except (ArrowException, NotImplementedError) as error:
            raise self._type_error(values, name, kind, row) from error

    def _type_error(self, values: Any, name: str, kind: DataType, row: int) -> InputError:
        """Return the error of the first value that has not a type, found by halves."""
        from pyarrow.lib import ArrowException

        first, last = 0, len(values)
        while last - first > 1:
            middle = (first + last) // 2
            try:
                values[first:middle].cast(kind)
                first = middle
            except (ArrowException, NotImplementedError):
                last = middle
        value = str(values[first])[:80] if len(values) and not _is_nested(values.type) else "values"
        return InputError(
            f"{self.locate_row(row + first)}: the column {shorten_name(name)} cannot be used",
            needed=describe_type(kind),
            got=f"{value} of type {str(values.type)[:80]}",
            repair="write the file again with values of that type",
        )


def _is_nested(kind: DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_nested(kind))


@contextmanager
def _refused(path: Path, form: str, where: str = "") -> Iterator[None]:
    from pyarrow.lib import ArrowException

    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, NotImplementedError, ArrowException) as error:
        raise InputError(
            f"{path}{where} cannot be read",
            needed=f"a whole file of {form}",
            got=f"{type(error).__name__}: {str(error)[:200]}",
            repair="check that the file is there and complete",
        ) from error


@final
class ParquetTable(_SchemaTable):
    """Table in a parquet file.

    Args:
        path: The file.

    Raises:
        InputError: The file is broken.
    """

    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        with _refused(path, "parquet"), parquet.ParquetFile(path) as file:
            super().__init__(path, file.schema_arrow)
            self._group_rows = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]

    def read_batches(
        self, columns: Sequence[str], types: Mapping[str, DataType] | None = None
    ) -> Iterator[RecordBatch]:
        """Yield the rows, 131,072 at a time; see `Table.read_batches`."""
        from pyarrow import parquet

        for name in columns:
            self.find_type(name)
        row, size = 0, self.num_bytes
        self._bytes_read = 0
        total = max(1, sum(self._group_rows))
        # Without `pre_buffer`, and with a buffer: pages are read one after the other, not whole groups at once.
        with _refused(self.path, "parquet"):
            file = parquet.ParquetFile(self.path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        with file:
            batches = file.iter_batches(_BATCH_ROWS, columns=[*columns])
            while True:
                with _refused(self.path, "parquet", f", {self._locate_group(row)}"):
                    batch = next(batches, None)
                    if batch is None:
                        return
                    # Values of dictionaries may be anything in a file that was made to do harm.
                    batch.validate(full=True)
                    made = self._convert(batch, columns, types or {}, row)
                row += len(batch)
                self._bytes_read = size * row // total
                yield made

    def locate_row(self, row: int) -> str:
        """Return the file, the row group and the row, from 0."""
        return f"{self.path}, {self._locate_group(row)}, row {row}"

    def _locate_group(self, row: int) -> str:
        for group, rows in enumerate(self._group_rows):
            if row < rows:
                return f"row group {group}"
            row -= rows
        return f"row group {max(0, len(self._group_rows) - 1)}"


@final
class IpcTable(_SchemaTable):
    """Table in an Arrow IPC file, which feather's second version is too, or a stream.

    Args:
        path: The file.

    Raises:
        InputError: The file is broken.
    """

    def __init__(self, path: Path) -> None:
        with _refused(path, "Arrow IPC"), path.open("rb") as raw:
            super().__init__(path, self._open(raw).schema)

    @staticmethod
    def _open(raw: Any) -> Any:
        from pyarrow import ipc
        from pyarrow.lib import ArrowInvalid

        try:
            return ipc.open_file(raw)
        except ArrowInvalid:
            raw.seek(0)
            return ipc.open_stream(raw)

    def read_batches(
        self, columns: Sequence[str], types: Mapping[str, DataType] | None = None
    ) -> Iterator[RecordBatch]:
        """Yield the rows; see `Table.read_batches`."""
        for name in columns:
            self.find_type(name)
        row = 0
        self._bytes_read = 0
        with self.path.open("rb") as raw:
            batches = self._read_all(raw)
            while True:
                with _refused(self.path, "Arrow IPC", f", after row {row}"):
                    batch = next(batches, None)
                    if batch is None:
                        return
                    batch.validate(full=True)
                self._bytes_read = raw.tell()
                # Writers may put all rows in one batch.
                for first in range(0, len(batch), _BATCH_ROWS):
                    part = batch.slice(first, _BATCH_ROWS)
                    yield self._convert(part, columns, types or {}, row)
                    row += len(part)

    def _read_all(self, raw: Any) -> Iterator[RecordBatch]:
        reader = self._open(raw)
        if not hasattr(reader, "num_record_batches"):
            yield from reader
            return
        for at in range(reader.num_record_batches):
            yield reader.get_batch(at)

    def locate_row(self, row: int) -> str:
        """Return the file and the row, from 0."""
        return f"{self.path}, row {row}"
