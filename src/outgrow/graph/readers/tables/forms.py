"""Forms of tables, by the names of files; nothing is opened."""

from __future__ import annotations

from pathlib import Path

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
    return path.is_dir() and bool(list_parts(path))


def list_parts(folder: Path) -> list[Path]:
    """Return the parts of a table in a folder, by name; empty if its files are none: nothing is opened.

    Parts are of one form, and their names are numbered, or begin with ``part``. Files whose names begin with ``_`` or
    ``.`` are marks of the program that wrote them.
    """
    files = sorted(path for path in folder.iterdir() if path.name[0] not in "._")
    forms = {table_suffix(path) if path.is_file() else None for path in files}
    numbered = all(
        path.name.startswith("part") or any(map(str.isdecimal, path.name.partition(".")[0])) for path in files
    )
    return files if len(forms) == 1 and None not in forms and numbered else []
