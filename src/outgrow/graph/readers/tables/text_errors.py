"""Errors of rows of text files: which line, and which column."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outgrow.core.errors import InputError
from outgrow.graph.readers.tables.column_types import describe_type, shorten_name
from outgrow.graph.readers.tables.table import DataType
from outgrow.graph.readers.tables.text_blocks import TextBlock, encoding_error, split_records
from outgrow.graph.readers.tables.text_layout import TextLayout, split_row

Kinds = Mapping[int, DataType | None]
Parse = Callable[[bytes, Kinds], Any]
_SHOWN = 80


def find_row_error(
    path: Path, layout: TextLayout, block: TextBlock, kinds: Kinds, parse: Parse, why: str
) -> InputError:
    """Return the error of the first row of a block that cannot be parsed, with its line and column.

    Args:
        path: The file.
        layout: Its layout.
        block: Text that cannot be parsed.
        kinds: Type of each column that is read, by its number; None if any will do.
        parse: Parses text.
        why: What the parser said of the block.
    """
    records = split_records(block.text, quoted=layout.quoted)
    found = _find_first_bad(records, lambda text: parse(text, kinds))
    # Only the block as a whole was refused, so no line can be named.
    if found is None:
        return _error(f"{path}, line {block.line}: cannot be read", "rows of a table", why[:200])
    line, record = block.line + found[0], found[1]
    try:
        text = record.decode().strip("\r\n")
    except UnicodeDecodeError:
        return encoding_error(path, line, "LATIN1", _quote(record.decode(errors="replace")))
    values = split_row(text, layout.delimiter, quoted=layout.quoted)
    width = len(layout.names)
    if len(values) != width:
        return _error(f"{path}, line {line}: not as many columns as before", f"{width} columns", _quote(text))
    for at, kind in kinds.items():
        if kind is not None and not _parses(record, {at: kind}, parse):
            where = f"{path}, line {line}, column {shorten_name(layout.names[at])}"
            return _error(f"{where}: a value of another type", describe_type(kind), _quote(values[at]))
    return _error(f"{path}, line {line}: cannot be read", "a row of the table", f"{_quote(text)}: {why[:200]}")


def leading_zero_error(path: Path, line: int, name: str) -> InputError:
    """Return the error of integers that begin with a 0, somewhere in a block."""
    return InputError(
        f"{path}, lines from {line} on, column {shorten_name(name)}: integers that begin with a 0",
        needed="integers without leading zeros, or texts in all rows",
        got="values such as 007",
        repair="read the column as texts",
    )


def _find_first_bad(records: list[tuple[int, bytes]], parse: Callable[[bytes], Any]) -> tuple[int, bytes] | None:
    """Return the first record that cannot be parsed, by bisection; None if each can be parsed alone."""
    first = 0
    last = len(records)
    # Each step parses half of the rest, so all steps together cost one more pass over the block.
    while last - first > 1:
        middle = (first + last) // 2
        part = b"".join(record + b"\n" for _, record in records[first:middle])
        first, last = (middle, last) if _succeeds(parse, part) else (first, middle)
    return None if first == last or _succeeds(parse, records[first][1] + b"\n") else records[first]


def _parses(record: bytes, kinds: Kinds, parse: Parse) -> bool:
    return _succeeds(lambda text: parse(text, kinds), record + b"\n")


def _succeeds(parse: Callable[[bytes], Any], text: bytes) -> bool:
    from pyarrow.lib import ArrowInvalid

    try:
        parse(text)
    except ArrowInvalid:
        return False
    return True


def _error(what: str, needed: str, got: str) -> InputError:
    return InputError(what, needed=needed, got=got, repair="correct the line; begin comments with #")


def _quote(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")
