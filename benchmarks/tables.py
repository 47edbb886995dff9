"""Rows of figures as a table on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def show(
    title: str, rows: Sequence[Mapping[str, Any]], *, shares: Collection[str] = (), hidden: Collection[str] = ()
) -> None:
    """Print a table with a column for each name.

    Args:
        title: Its title.
        rows: Figures by name; where a row lacks one, or has None, its cell is empty.
        shares: Names of those that are shown in percent.
        hidden: Names of those that are not shown.
    """
    names = list(dict.fromkeys(name for row in rows for name in row if name not in hidden))
    table = Table(title=title)
    for name in names:
        words = isinstance(rows[0].get(name), str)
        table.add_column(name.replace("_", " "), justify="left" if words else "right", no_wrap=words)
    for row in rows:
        table.add_row(*(_cell(row[name], name in shares) if name in row else "" for name in names))
    Console(width=None if sys.stdout.isatty() else 170).print(table)


def _cell(value: Any, share: bool) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if share:
        return f"{value:.1%}"
    return f"{value:,.{0 if value >= 1000 or value == int(value) else 3}f}"
