"""Tables in lines of JSON: one object a line, its keys are columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from outgrow.core.errors import InputError
from outgrow.graph.readers.tables.column_types import column_name_error, shorten_name
from outgrow.graph.readers.tables.table import DataType, RecordBatch, Table
from outgrow.graph.readers.tables.text_blocks import TextBlock, TextFile, encoding_error, open_bytes


@final
class JsonTable(Table):
    """Table in a file of JSON lines. Keys that an object lacks are missing values.

    All of the file is read once to find its columns and their types.

    Args:
        path: The file; one that ends in ``.gz`` or ``.zst`` is decompressed while it is read.

    Raises:
        InputError: A line is no JSON object, or a column has values of several types.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        from pyarrow.lib import ArrowException

        self._file = TextFile(path)
        self._schema = pa.schema([])
        for block in self._file.read_blocks():
            here = self._parse(block, None).schema
            try:
                self._schema = pa.unify_schemas([self._schema, here], promote_options="permissive")
            except ArrowException as error:
                raise self._mixed_error(here, block.line) from error

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def names(self) -> tuple[str, ...]:
        """Keys, in the order in which they first occur."""
        return tuple(self._schema.names)

    @property
    def has_names(self) -> bool:
        """Whether columns have names: always."""
        return True

    @property
    def bytes_read(self) -> int:
        """How many bytes of the file were read."""
        return self._file.bytes_read

    def find_type(self, name: str) -> DataType | None:
        """Return the type of a column."""
        if self.names.count(name) != 1:
            raise column_name_error(self, name)
        return self._schema.field(name).type

    def read_batches(
        self, columns: Sequence[str], types: Mapping[str, DataType] | None = None
    ) -> Iterator[RecordBatch]:
        """Yield the rows; see `Table.read_batches`."""
        import pyarrow as pa
        from pyarrow.lib import ArrowException

        own = pa.schema([self._schema.field(name) for name in columns if self.find_type(name)])
        wanted = pa.schema([(name, (types or {}).get(name, own.field(name).type)) for name in columns])
        # The parser takes texts that look like times for times, which are then written in another form.
        own = pa.schema([b if pa.types.is_timestamp(a.type) else a for a, b in zip(own, wanted, strict=True)])
        for block in self._file.read_blocks():
            table = self._parse(block, own)
            try:
                yield from table.select([*columns]).cast(wanted).to_batches()
            except (ArrowException, NotImplementedError) as error:
                raise InputError(
                    f"{self.path}: a column cannot be used as asked for",
                    needed=", ".join(f"{shorten_name(field.name)} of type {field.type}" for field in wanted),
                    got=f"{str(error)[:200]}, in the lines from {block.line} on",
                    repair="write values of one type",
                ) from error

    def locate_row(self, row: int) -> str:
        """Return the file and the line of a row."""
        for block in self._file.read_blocks():
            for at, line in enumerate(block.text.split(b"\n")):
                if line.strip():
                    if not row:
                        return f"{self.path}, line {block.line + at}"
                    row -= 1
        return f"{self.path}, row {row}"

    def _parse(self, block: TextBlock, schema: Any) -> Any:
        import pyarrow as pa
        from pyarrow.lib import ArrowInvalid

        if not block.text.strip():
            return (schema or pa.schema([])).empty_table()
        try:
            return self._parse_text(block.text, schema)
        except ArrowInvalid as error:
            raise self._line_error(block, schema, error) from error

    @staticmethod
    def _parse_text(text: bytes, schema: Any) -> Any:
        from pyarrow import json

        parse = json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
        )
        return json.read_json(open_bytes(text), json.ReadOptions(block_size=len(text) + 1), parse)

    def _line_error(self, block: TextBlock, schema: Any, why: Exception) -> InputError:
        from pyarrow.lib import ArrowInvalid

        for at, line in enumerate(block.text.split(b"\n")):
            try:
                text = line.decode()
                if text.strip():
                    self._parse_text(line, schema)
            except UnicodeDecodeError:
                return encoding_error(self.path, block.line + at, "LATIN1", repr(line[:80].decode(errors="replace")))
            except ArrowInvalid:
                return self._error(f"{self.path}, line {block.line + at}: not a JSON object", repr(text[:80]))
        return self._error(f"{self.path}, lines from {block.line} on: cannot be read", str(why)[:200])

    def _mixed_error(self, here: Any, line: int) -> InputError:
        import pyarrow as pa

        for field in here:
            before = self._schema.field(field.name).type if field.name in self._schema.names else field.type
            try:
                pa.unify_schemas([pa.schema([(field.name, before)]), pa.schema([field])], promote_options="permissive")
            except pa.lib.ArrowException:
                where = f"{self.path}, lines from {line} on: the column {shorten_name(field.name)} has several types"
                return self._error(where, f"{field.type} after {before}")
        return self._error(f"{self.path}, lines from {line} on: columns differ", str(here)[:200])

    @staticmethod
    def _error(what: str, got: str) -> InputError:
        return InputError(
            what,
            needed="one JSON object a line, with values of one type for each key",
            got=got,
            repair="correct the lines",
        )
