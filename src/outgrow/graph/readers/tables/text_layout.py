"""Layout of tables in text files, found from their first lines: what separates columns, names, quotes, decimals."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from outgrow.core.errors import InputError
from outgrow.graph.readers.tables.column_names import assign_column_roles, looks_like_name
from outgrow.graph.readers.tables.text_blocks import TextBlock, encoding_error, split_records

_COMMENT = re.compile(rb"[ \t]*[#%]")
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")
_DECIMAL_POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_BLANKS = re.compile(r'"[^"]*"|[ \t]+')
_MOST_COLUMNS = 1 << 16
_SAMPLE_LINES = 200
SAMPLE_BYTES = 1 << 18
"""How much of a file is looked at."""


class TextLayout(NamedTuple):
    """Layout of a text file.

    Attributes:
        delimiter: The character between columns; a blank stands for any number of blanks and tabs.
        names: Name of each column; numbers if there is no header.
        header: Number of the header's line, from 1; 0 if there is none.
        lines: How many lines the header takes, which is more than one if a name has line ends.
        quoted: Whether values may be in double quotes.
        decimal: Decimal point of numbers, or comma.
        padded: Whether a blank follows every delimiter, and belongs to no value.
    """

    delimiter: str
    names: tuple[str, ...]
    header: int
    lines: int
    quoted: bool
    decimal: str
    padded: bool = False


def detect_layout(
    block: TextBlock, path: Path, *, header: bool | None = None, named: Collection[str] = ()
) -> TextLayout | None:
    """Detect the layout of a file.

    Args:
        block: Its first lines, whole; those of comments above them need not be among them.
        path: The file.
        header: Whether its first line, comments aside, has the names of columns; None to decide by what it holds.
        named: Names of columns that the caller asks for: a line that has one of them is a header.

    Returns:
        The layout; None if there are only comments.

    Raises:
        InputError: There are more than 65,536 columns.
    """
    records = _sample_records(block, quoted=True)
    if not records:
        return None
    # The limit keeps one long line from becoming millions of strings.
    if max(records[0][1].count(mark) for mark in (b",", b";", b"\t", b"|", b" ")) >= _MOST_COLUMNS:
        raise _too_many_columns_error(path, block.line + records[0][0])
    lines = _decode(records)
    delimiter = _choose_delimiter(lines, path, quoted=True)
    quoted = _are_quotes(lines, delimiter)
    if not quoted:
        records = _sample_records(block, quoted=False)
        lines = _decode(records)
        delimiter = _choose_delimiter(lines, path, quoted=False)
    rows = [split_row(line, delimiter, quoted=quoted) for line in lines]
    is_header = _is_header(rows[0], rows[1:], named) if header is None else header
    names = _name_columns(rows[0]) if is_header else tuple(str(at) for at in range(len(rows[0])))
    at, first = records[0]
    if is_header and "\ufffd" in lines[0] and "\ufffd".encode() not in first:
        raise encoding_error(path, block.line + at, "LATIN1", repr(lines[0][:80]))
    fields = [field.strip() for row in rows[is_header:] for field in row]
    decimal = "." if delimiter == "," else _find_decimal(fields, delimiter)
    padded = delimiter != " " and all(0 < line.count(delimiter) == line.count(delimiter + " ") for line in lines)
    header_line = block.line + at if is_header else 0
    return TextLayout(delimiter, names, header_line, first.count(b"\n") + 1, quoted, decimal, padded)


def _sample_records(block: TextBlock, *, quoted: bool) -> list[tuple[int, bytes]]:
    sample = block.text[: block.text.find(b"\n", SAMPLE_BYTES) + 1 or None]
    records = split_records(sample, quoted=quoted)[: 4 * _SAMPLE_LINES]
    return [(at, line) for at, line in records if line.strip() and not _COMMENT.match(line)][:_SAMPLE_LINES]


def _decode(records: Sequence[tuple[int, bytes]]) -> list[str]:
    return [line.decode(errors="replace").strip("\r\n") for _, line in records]


def split_row(line: str, delimiter: str, *, quoted: bool) -> list[str]:
    """Return the values of a row."""
    if delimiter == " ":
        line = _BLANKS.sub(lambda found: " " if found[0].isspace() else found[0], line.strip(" \t"))
    return _split_quoted(line, delimiter)[0] if quoted and '"' in line else line.split(delimiter)


def _split_quoted(line: str, delimiter: str) -> tuple[list[str], bool]:
    """Return the values of a row, some in quotes, and whether all quotes that begin a value end it."""
    values: list[str] = []
    at, is_right = 0, True
    while at <= len(line):
        inner = ""
        if line.startswith('"', at) and (found := _QUOTED.match(line, at)):
            inner, at = found[1].replace('""', '"'), found.end()
            is_right = is_right and (at == len(line) or line[at] == delimiter or line[at:].isspace())
        elif line.startswith('"', at):
            is_right = False
        end = line.find(delimiter, at)
        end = len(line) if end < 0 else end
        values.append(inner + line[at:end])
        at = end + 1
    return values, is_right


def _name_columns(fields: Sequence[str]) -> tuple[str, ...]:
    return tuple(field.strip() or str(at) for at, field in enumerate(fields))


def _are_quotes(lines: Sequence[str], delimiter: str) -> bool:
    """Whether quotes enclose values: one that begins with a quote ends with another."""
    return all(_split_quoted(line, delimiter)[1] for line in lines if '"' in line)


def _choose_delimiter(lines: Sequence[str], path: Path, *, quoted: bool) -> str:
    rows = {mark: [split_row(line, mark, quoted=quoted) for line in lines] for mark in "\t;,| "}
    steady = [mark for mark, split in rows.items() if len({len(row) for row in split}) == 1 and len(split[0]) > 1]
    if "\t" in steady:
        # KONECT separates ids by a blank, and what follows by a tab.
        mixed = " " in steady and len(rows[" "][0]) > len(rows["\t"][0])
        return " " if mixed and all(_NUMBER.fullmatch(field) for row in rows[" "] for field in row) else "\t"
    if ";" in steady and "," in steady:
        commas = [field for row in rows[";"] for field in row if "," in field]
        return ";" if all(_DECIMAL_COMMA.fullmatch(field.strip()) for field in commas) else ","
    if marks := [mark for mark in ";,|" if mark in steady]:
        return marks[0]
    if " " in steady:
        return " "
    # Lines differ: an error will name the first one that differs from the first line.
    order = "\t,;|" if path.name.lower().partition(".")[2].startswith("tsv") else ",;\t|"
    return next((mark for mark in order if mark in lines[0]), " ")


def _is_header(first: Sequence[str], body: Sequence[Sequence[str]], named: Collection[str]) -> bool:
    fields = [field.strip() for field in first]
    if any(field in named for field in fields):
        return True
    if any(_NUMBER.fullmatch(field) for field in fields):
        return False
    # Where values of a column are numbers below a word, the word is a name.
    for at in range(len(fields)):
        values = [row[at].strip() for row in body if at < len(row)]
        if fields[at] and 2 * sum(bool(_NUMBER.fullmatch(value)) for value in values) > len(values):
            return True
    roles = assign_column_roles(fields)
    ends = roles["src"] and roles["dst"]
    if ends and min(map(len, (*roles["src"], *roles["dst"]))) > 1:
        return True
    # A node may have any name, but one that occurs once only, and looks like that of a column, is none.
    again = {*fields} & {value.strip() for row in body for value in row}
    return not again and (bool(ends) or any(looks_like_name(field) for field in fields))


def _find_decimal(fields: Sequence[str], delimiter: str) -> str:
    commas = [field for field in fields if _DECIMAL_COMMA.fullmatch(field)]
    if not commas or any(_DECIMAL_POINT.fullmatch(field) for field in fields):
        return "."
    # Three digits after every comma may be thousands as well, but not where the comma does not separate columns.
    thousands = all(len(field.rpartition(",")[2]) == 3 for field in commas)
    return "." if thousands and delimiter != ";" else ","


def _too_many_columns_error(path: Path, line: int) -> InputError:
    return InputError(
        f"{path}, line {line}: too many columns",
        needed=f"at most {_MOST_COLUMNS:,} columns",
        got="more",
        repair="check what separates the columns; keep wide rows in a .npz file, or in parquet as lists",
    )
