"""Edge lists: text files with one edge per line, optionally compressed by gzip.

Columns are separated by commas, semicolons, tabs or spaces. Lines that begin with ``#`` or ``%`` are
comments, as in files of SNAP and KONECT. A first line of names is a header: ``src``, ``dst``, ``relation``,
``weight`` and their synonyms (``columns.py``) are read, other columns are not, with a warning. A file without a
header must have two columns, source and destination, or its columns must be named by the caller.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple, final

import numpy as np

from outgrow.core.errors import InputError
from outgrow.graph.readers.columns import RelabelledSource, assign_column_roles, make_edge_chunk, unread_columns
from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource
from outgrow.graph.readers.text import BLOCK_BYTES, TextBlock, find_first_bad, read_text_blocks

_COMMENT = re.compile(rb"^[ \t]*[#%][^\n]*\n?", re.MULTILINE)
_BLANKS = re.compile(rb"[ \t]+")
_EDGES = re.compile(rb"^ +| +$", re.MULTILINE)
_INTEGER = re.compile(rb"[+-]?\d+")
_MOST_COLUMNS = 4096
_DTYPES = {"src": "int64", "dst": "int64", "relation": "int32", "weight": "float64"}


class ColumnLayout(NamedTuple):
    """Layout of a file, as detected from its first lines.

    Attributes:
        delimiter: The byte between columns.
        width: Number of columns.
        names: Name of each column.
        roles: Column number of each role.
        header: Number of the header line; 0 if there is none.
    """

    delimiter: bytes
    width: int
    names: tuple[str, ...]
    roles: dict[str, int]
    header: int


@final
class EdgeListSource(GraphSource):
    """Reader of an edge list.

    Args:
        path: The file; one that ends in ``.gz`` is decompressed while it is read.
        num_nodes: ``V``; None for one more than the largest id.
        relabel: Renumber ids from 0 in ascending order; they may then be any integers. Reads the file twice.
        columns: Names of the columns in order, for a file without header; other names are skipped.
    """

    def __init__(
        self,
        path: Path,
        *,
        num_nodes: int | None = None,
        relabel: bool = False,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._path = Path(path)
        self._num_nodes = num_nodes
        self._columns = columns
        self._read: GraphSource = (
            RelabelledSource(_LineSource(self._path, columns)) if relabel else _LineSource(self._path, columns)
        )
        if relabel and num_nodes is not None:
            raise InputError(
                "num_nodes and relabel exclude each other",
                needed="one of them",
                got=f"num_nodes {num_nodes} and relabel",
                repair="drop num_nodes: renumbered nodes are those that have edges",
            )

    @property
    def name(self) -> str:
        """Name of the file without its suffix."""
        return self._read.name

    def read_tables(self) -> NodeTableSource:
        """Return the number of nodes, if it is known."""
        return self._read.read_tables() if self._num_nodes is None else NodeTableSource(num_nodes=self._num_nodes)

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges, in chunks of 2 MiB of text.

        Raises:
            InputError: A line that is not an edge, with its number; or a broken file.
        """
        return self._read.read_edges()

    def list_unread(self) -> tuple[str, ...]:
        """Return the names of the columns that are not read."""
        return self._read.list_unread()


@final
class _LineSource(GraphSource):
    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        self._path = path
        self._columns = columns

    @property
    def name(self) -> str:
        return self._path.name.split(".")[0]

    def read_tables(self) -> NodeTableSource:
        return NodeTableSource()

    def read_edges(self) -> Iterator[EdgeChunk]:
        layout = None
        for block in read_text_blocks(self._path):
            text = block.text
            if layout is None:
                layout = _detect_layout(block, self._columns, self._path)
                if layout is None:
                    continue
                text = _without_header(text) if layout.header else text
            if text:
                yield _parse_block(block, text, layout, self._path)

    def list_unread(self) -> tuple[str, ...]:
        for block in read_text_blocks(self._path):
            if layout := _detect_layout(block, self._columns, self._path):
                return unread_columns(layout.names, layout.roles)
        return ()


def _parse_block(block: TextBlock, text: bytes, layout: ColumnLayout, path: Path) -> EdgeChunk:
    from pyarrow.lib import ArrowInvalid

    try:
        return _parse_edges(text, layout)
    except ArrowInvalid:
        # Comments between edges and ragged blanks are rare: they cost time only where they occur.
        try:
            return _parse_edges(_normalise_lines(text, layout), layout)
        except ArrowInvalid as error:
            raise _bad_line_error(block, layout, path, str(error)) from error


def _parse_edges(text: bytes, layout: ColumnLayout) -> EdgeChunk:
    from pyarrow import csv

    # Numbers as names: those of the header may occur twice or hold any character.
    names = [str(at) for at in range(layout.width)]
    roles = {at: role for role, at in layout.roles.items()}
    # The parser refuses empty text; a block of blank lines has no edges.
    if not text.strip():
        empty = {at: np.empty(0, _DTYPES[role]) for at, role in roles.items()}
        return make_edge_chunk(empty.__getitem__, layout.roles)
    table = csv.read_csv(
        BytesIO(text),
        # Two blocks for each text, so that two threads parse it.
        csv.ReadOptions(column_names=names, use_threads=True, block_size=BLOCK_BYTES // 2),
        # Without quotes: one stray quote would otherwise swallow all lines up to the next.
        csv.ParseOptions(delimiter=layout.delimiter.decode(), quote_char=False),
        csv.ConvertOptions(
            column_types={str(at): _DTYPES[role] for at, role in roles.items()},
            include_columns=[str(at) for at in roles],
            # An empty field must be an error, not a missing value that becomes a float.
            null_values=[],
            check_utf8=False,
        ),
    )
    return make_edge_chunk(lambda at: table.column(str(at)).to_numpy(), layout.roles)


def _detect_layout(block: TextBlock, columns: Sequence[str] | None, path: Path) -> ColumnLayout | None:
    for number, line in enumerate(block.text.split(b"\n"), block.line):
        text = line.strip()
        if not text or text[:1] in (b"#", b"%"):
            continue
        delimiter = next((d for d in (b",", b";", b"\t") if d in text), b" ")
        # The limit keeps one long line from becoming millions of strings.
        split = text.split(None if delimiter == b" " else delimiter, _MOST_COLUMNS)
        if len(split) > _MOST_COLUMNS:
            raise _too_many_columns_error(path, number)
        fields = [field.strip() for field in split]
        # A header has no integers: names of columns are words, and every edge has two ids.
        header = not any(_INTEGER.fullmatch(field) for field in fields)
        names = [field.decode(errors="replace") for field in fields] if header else columns
        if names is None:
            if len(fields) != 2:
                raise _unnamed_columns_error(path, number, len(fields))
            names = ("src", "dst")
        if len(names) != len(fields):
            raise _column_count_error(path, number, len(names), line)
        roles = assign_column_roles(names, str(path))
        return ColumnLayout(delimiter, len(fields), tuple(names), roles, number if header else 0)
    return None


def _without_header(text: bytes) -> bytes:
    """Return the text after the first line that is neither empty nor a comment."""
    start = 0
    while True:
        end = text.find(b"\n", start)
        line = text[start : end if end >= 0 else None].strip()
        start = end + 1 if end >= 0 else len(text)
        if line and line[:1] not in (b"#", b"%"):
            return text[start:]


def _normalise_lines(text: bytes, layout: ColumnLayout) -> bytes:
    text = _COMMENT.sub(b"", text).replace(b"\r", b"")
    return _EDGES.sub(b"", _BLANKS.sub(b" ", text)) if layout.delimiter == b" " else text


def _bad_line_error(block: TextBlock, layout: ColumnLayout, path: Path, why: str) -> InputError:
    from pyarrow.lib import ArrowInvalid

    lines = block.text.split(b"\n")
    if 0 <= layout.header - block.line < len(lines):
        # The header is no edge, and would be reported as the first bad line.
        lines[layout.header - block.line] = b""
    at = find_first_bad(lines, lambda text: _parse_edges(_normalise_lines(text, layout), layout), ArrowInvalid)
    # Only the block as a whole was refused, so no line can be named.
    if at is None:
        return _not_an_edge_error(path, block.line, why.encode())
    number = block.line + at
    fields = _normalise_lines(lines[at], layout).split(layout.delimiter)
    if len(fields) != layout.width:
        return _column_count_error(path, number, layout.width, lines[at])
    return _not_an_edge_error(path, number, lines[at])


def _column_count_error(path: Path, line: int, width: int, got: bytes) -> InputError:
    return InputError(
        f"{path}, line {line}: not as many columns as before",
        needed=f"{width} columns",
        got=_quote_line(got),
        repair="correct the line",
    )


def _not_an_edge_error(path: Path, line: int, got: bytes) -> InputError:
    return InputError(
        f"{path}, line {line}: not an edge",
        needed="integer ids and relations that fit 64 and 32 bits, and numbers as weights",
        got=_quote_line(got),
        repair="correct the line; begin comments with #, and number nodes whose ids are names",
    )


def _too_many_columns_error(path: Path, line: int) -> InputError:
    return InputError(
        f"{path}, line {line}: too many columns",
        needed=f"at most {_MOST_COLUMNS} columns",
        got="more",
        repair="keep source and destination, and what is known of each edge",
    )


def _unnamed_columns_error(path: Path, line: int, width: int) -> InputError:
    return InputError(
        f"{path}, line {line}: the meaning of the columns is unclear",
        needed="two columns, or a header with src, dst, relation, weight",
        got=f"{width} columns without names",
        repair="add a header line, such as src,dst,weight",
    )


def _quote_line(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return repr(text if len(text) <= 80 else text[:77] + "...")
