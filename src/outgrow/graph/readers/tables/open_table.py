"""Detection of the form of a table by the name of its file."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from outgrow.core.errors import InputError
from outgrow.graph.readers.tables.table import Table
from outgrow.graph.readers.tables.text_blocks import CODECS

TEXT = (".csv", ".tsv", ".txt", ".edges", ".edgelist", ".el")
MATRIX_MARKET = (".mtx",)
JSON_LINES = (".jsonl", ".ndjson")
PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc", ".arrows")
FORMS = f"{', '.join((*TEXT, *JSON_LINES, *MATRIX_MARKET))} (also with .gz or .zst), {', '.join((*PARQUET, *ARROW))}"
"""What a table may be, in messages."""


def table_suffix(path: Path) -> str | None:
    """Return the ending of the form of a table, such as ``.csv`` for ``edges.csv.gz``; None if it is of no form.

    Only the name is looked at.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = bool(suffixes) and suffixes[-1] in CODECS
    ending = suffixes[-2 if packed else -1 :][:1] if len(suffixes) > packed else []
    known = (*TEXT, *JSON_LINES, *MATRIX_MARKET) if packed else (*TEXT, *JSON_LINES, *MATRIX_MARKET, *PARQUET, *ARROW)
    return ending[0] if ending and ending[0] in known else None


def is_table(path: Path) -> bool:
    """Whether the name of a file, or the names of the files of a folder, say that it is a table; nothing is opened."""
    if path.is_file():
        return table_suffix(path) is not None
    from outgrow.graph.readers.tables.parts import list_parts

    return path.is_dir() and bool(list_parts(path))


def open_table(path: Path, *, header: bool | None = None, named: Collection[str] = ()) -> Table:
    """Return the table in a file, or in a folder of parts; only its first lines or its schema are read.

    Args:
        path: The file, or a folder with parts of one form.
        header: Whether the first line of a text file has the names of columns; None to decide by what it holds.
        named: Names of columns that the caller asks for: a first line that has one of them is a header.

    Raises:
        InputError: No such file, an unknown form, or a broken file.
    """
    path = Path(path)
    if path.is_dir():
        from outgrow.graph.readers.tables.parts import PartsTable

        return PartsTable(path, header=header, named=named)
    suffix = table_suffix(path) if path.is_file() else None
    if suffix in TEXT:
        from outgrow.graph.readers.tables.text_table import TextTable

        return TextTable(path, header=header, named=named)
    if suffix in JSON_LINES:
        from outgrow.graph.readers.tables.json_table import JsonTable

        return JsonTable(path)
    if suffix in MATRIX_MARKET:
        from outgrow.graph.readers.tables.matrix_market import MatrixTable

        return MatrixTable(path)
    if suffix in (*PARQUET, *ARROW):
        from outgrow.graph.readers.tables.arrow_table import IpcTable, ParquetTable

        return ParquetTable(path) if suffix in PARQUET else IpcTable(path)
    raise InputError(
        f"{path} is of no known form" if path.exists() else f"{path} does not exist",
        needed=f"a table: {FORMS}, or a folder of parts of one of these forms",
        got=f"a file that ends in {path.suffix!r}" if path.exists() else "nothing at that path",
        repair="convert or rename it" if path.exists() else "correct the path",
    )
