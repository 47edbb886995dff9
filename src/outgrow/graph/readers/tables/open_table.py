"""Detection of the form of a table by the name of its file."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from outgrow.core.errors import InputError
from outgrow.graph.readers.tables.forms import ARROW, FORMS, JSON_LINES, MATRIX_MARKET, PARQUET, TEXT, table_suffix
from outgrow.graph.readers.tables.table import Table


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

        return PartsTable(path, open_table, header=header, named=named)
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
