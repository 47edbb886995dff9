"""Tables in text files: comma-separated values and their kin, parsed by pyarrow block by block."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from outgrow.graph.readers.tables.column_types import column_name_error, is_number, unify_types
from outgrow.graph.readers.tables.table import DataType, RecordBatch, Table
from outgrow.graph.readers.tables.text_blocks import BLOCK_BYTES, TextBlock, TextFile, open_bytes, split_records
from outgrow.graph.readers.tables.text_errors import find_row_error, leading_zero_error
from outgrow.graph.readers.tables.text_layout import SAMPLE_BYTES, TextLayout, detect_layout

_COMMENT = re.compile(rb"^[ \t]*[#%][^\n]*", re.MULTILINE)
# In a column of texts a value may begin so: "#news" is one, "# news" is not.
_CLEAR_COMMENT = re.compile(rb"^[ \t]*[#%](?:[ \t\r#%][^\n]*)?$", re.MULTILINE)
_COMMENTS_ABOVE = re.compile(rb"(?:[ \t\r]*(?:[#%][^\n]*)?\n)*")
_RAGGED = re.compile(rb'"[^"]*"|[ \t\r]+$|^[ \t]+|[ \t]+', re.MULTILINE)


@final
class TextTable(Table):
    """Table in a text file, whose layout is found from its first lines.

    Args:
        path: The file.
        header: Whether the first line has names; None to decide by what it holds.
        named: Names of columns that the caller asks for: a line that has one of them is a header.
        layout: Layout of the file, if it is known.
    """

    def __init__(
        self,
        path: Path,
        *,
        header: bool | None = None,
        named: Collection[str] = (),
        layout: TextLayout | None = None,
    ) -> None:
        self._file = TextFile(path)
        self._comment = _COMMENT
        self._layout = layout or self._detect(header, named)
        self._exact: set[int] = set()
        self._zero: tuple[re.Pattern[bytes], ...] = ()
        self._loose_zero = re.compile(b"")
        self._inferred: dict[str, DataType] = {}

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each column; numbers if there is no header; none if the file has no rows."""
        return self._layout.names if self._layout else ()

    @property
    def has_names(self) -> bool:
        """Whether there is a header."""
        return bool(self._layout and self._layout.header)

    def refuse_leading_zeros(self, columns: Sequence[str]) -> None:
        """Refuse, from now on, texts such as ``007`` where integers of these columns are read."""
        if self._layout is not None:
            self._exact = {self._find_place(name) for name in columns}
            mark = re.escape(self._layout.delimiter.encode())
            self._zero = re.compile(rb"\n0[0-9]"), re.compile(mark + rb"0[0-9]")
            self._loose_zero = re.compile(rb"(?:^|[\n" + mark + rb"])[ \t\"]*0[0-9]")

    @property
    def bytes_read(self) -> int:
        """How many bytes of the file were read."""
        return self._file.bytes_read

    def read_batches(
        self, columns: Sequence[str], types: Mapping[str, DataType] | None = None
    ) -> Iterator[RecordBatch]:
        """Yield the rows; see `Table.read_batches`."""
        given = dict(types or {})
        given |= self.infer_types([name for name in columns if name not in given])
        places = [self._find_place(name) for name in columns]
        kinds = [given[name] for name in columns]
        for block in self._read_blocks():
            table = self._parse_block(block, dict(zip(places, kinds, strict=True)))
            yield from table.rename_columns([*columns]).to_batches()

    def locate_row(self, row: int) -> str:
        """Return the file and the line of a row."""
        return f"{self.path}, line {self._find_line(row)}"

    def _find_place(self, name: str) -> int:
        if self.names.count(name) != 1:
            raise column_name_error(self, name)
        return self.names.index(name)

    def _find_line(self, row: int) -> int:
        import pyarrow as pa

        assert self._layout is not None
        for block in self._read_blocks():
            text = self._clean(block.text)
            rows = self._parse(text, {0: pa.large_string()}).num_rows
            if row < rows:
                records = split_records(text, quoted=self._layout.quoted)
                return block.line + [at for at, line in records if line.strip(b"\r")][row]
            row -= rows
        return 0

    def infer_types(self, columns: Sequence[str]) -> dict[str, DataType]:
        """Return the type of each column, which holds the values of all rows; all are read, once."""
        if missing := [name for name in columns if name not in self._inferred]:
            self._inferred |= self._infer_missing(missing)
        return {name: self._inferred[name] for name in columns}

    def _infer_missing(self, columns: Sequence[str]) -> dict[str, DataType]:
        # All rows are looked at: the first ones do not show that a later one is a text, or has a fraction.
        import pyarrow as pa

        places = {self._find_place(name): None for name in columns}
        found: list[DataType] = [pa.null()] * len(columns)
        for block in self._read_blocks():
            here = self._parse_block(block, places).schema.types
            found = [unify_types(one, other) for one, other in zip(found, here, strict=True)]
        return dict(zip(columns, found, strict=True))

    def _detect(self, header: bool | None, named: Collection[str]) -> TextLayout | None:
        text, line = b"", 1
        for block in self._file.read_blocks():
            text += block.text
            # Files may begin with more comments than a sample holds.
            skipped = _COMMENTS_ABOVE.match(text)
            assert skipped is not None
            line += skipped[0].count(b"\n")
            text = text[skipped.end() :]
            if len(text) >= SAMPLE_BYTES:
                break
        return detect_layout(TextBlock(text, line), self.path, header=header, named=named)

    def _read_blocks(self) -> Iterator[TextBlock]:
        layout = self._layout
        if layout is None:
            return
        for block in self._file.read_blocks(quoted=layout.quoted):
            at = layout.header - block.line
            if layout.header and 0 <= at <= block.text.count(b"\n"):
                yield _blank_lines(block, at + layout.lines)
            else:
                yield block

    def _parse_block(self, block: TextBlock, kinds: Mapping[int, DataType | None]) -> Any:
        from pyarrow.lib import ArrowInvalid

        assert self._layout is not None
        # Known before the search for a bad row, which must see the same rows.
        self._comment = _COMMENT if is_number(kinds.get(0)) else _CLEAR_COMMENT
        text = self._clean(block.text)
        try:
            self._check_leading_zeros(TextBlock(text, block.line), kinds)
            return self._parse(text, kinds)
        except ArrowInvalid as error:
            raise find_row_error(
                self.path, self._layout, TextBlock(text, block.line), kinds, self._parse, str(error)
            ) from error

    def _check_leading_zeros(self, block: TextBlock, kinds: Mapping[int, DataType | None]) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        assert self._layout is not None
        text = block.text
        places = [
            at for at, kind in kinds.items() if kind is not None and at in self._exact and pa.types.is_integer(kind)
        ]
        if not places:
            return
        # The first search, of two bytes, is several times as fast; the other one is for the first line, and for blanks.
        plain = b'"' not in text and (b" " not in text or self._layout.delimiter == " ")
        if not (
            any(zero.search(text) for zero in self._zero)
            or self._loose_zero.search(text, 0, 1 << 6 if plain else len(text))
        ):
            return
        table = self._parse(text, dict.fromkeys(places, pa.large_string()))
        for at, values in zip(places, table.columns, strict=True):
            if pc.any(pc.match_substring_regex(values, "^[ \t]*[+-]?0[0-9]")).as_py():
                raise leading_zero_error(self.path, block.line, self.names[at])

    def _clean(self, text: bytes) -> bytes:
        """Return text without comments and ragged blanks, with as many lines as before."""
        assert self._layout is not None
        if b"#" in text or b"%" in text:
            text = self._comment.sub(b"", text)
        if self._layout.delimiter == " " and _is_ragged(text):
            text = _RAGGED.sub(_straighten, text)
        if self._layout.padded:
            mark = self._layout.delimiter.encode()
            text = re.sub(
                rb'"[^"]*"|' + re.escape(mark) + b"[ \t]+",
                lambda found: found[0] if found[0][:1] == b'"' else mark,
                text,
            )
        return text

    def _parse(self, text: bytes, kinds: Mapping[int, DataType | None]) -> Any:
        import pyarrow as pa
        from pyarrow import csv
        from pyarrow.lib import ArrowInvalid

        layout = self._layout
        assert layout is not None
        # The parser refuses empty text.
        if text[:1] in (b"", b"\r", b"\n") and not text.strip(b"\r\n"):
            return pa.table({str(at): pa.array([], kind or pa.null()) for at, kind in kinds.items()})
        # Numbers as names: those of the header may occur twice or hold any character.
        names = csv.ReadOptions(column_names=[str(at) for at in range(len(layout.names))])
        # Two blocks for each text, so that two threads parse it; but a row must fit one.
        names.block_size = len(text) + 1 if len(text) > 2 * BLOCK_BYTES else max(BLOCK_BYTES // 2, 1 << 16)
        quotes = layout.quoted and b'"' in text
        parse = csv.ParseOptions(
            delimiter=layout.delimiter, quote_char='"' if quotes else False, newlines_in_values=quotes
        )
        convert = csv.ConvertOptions(
            column_types={str(at): kind for at, kind in kinds.items() if kind is not None},
            include_columns=[str(at) for at in kinds],
            decimal_point=layout.decimal,
            strings_can_be_null=False,
        )
        file = open_bytes(text)
        try:
            return csv.read_csv(file, names, parse, convert)
        except ArrowInvalid as error:
            if "straddl" not in str(error):
                raise
            names.block_size = len(text) + 1
            file.seek(0)
            return csv.read_csv(file, names, parse, convert)


def _is_ragged(text: bytes) -> bool:
    marks = (b"\t", b"  ", b"\n ", b" \n", b" \r")
    return text[:1] == b" " or text[-1:] == b" " or any(mark in text for mark in marks)


def _straighten(found: re.Match[bytes]) -> bytes:
    blank = found[0]
    if blank[:1] == b'"':
        return blank
    return b"" if found.start() == 0 or _ends_line(found) else b" "


def _ends_line(found: re.Match[bytes]) -> bool:
    text, first, last = found.string, found.start(), found.end()
    return text[first - 1 : first] == b"\n" or text[last : last + 1] in (b"", b"\n")


def _blank_lines(block: TextBlock, count: int) -> TextBlock:
    end = 0
    for _ in range(count):
        end = block.text.find(b"\n", end) + 1 or len(block.text)
    return TextBlock(b"\n" * block.text.count(b"\n", 0, end) + block.text[end:], block.line)
