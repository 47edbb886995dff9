"""What crossed each link during a run, as a table for people."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table


def show_ledger(ledger: Mapping[str, Mapping[str, int]]) -> None:
    """Print the links that something crossed, on standard error; nothing if none was.

    Args:
        ledger: Bytes as ``{link: {kind: bytes}}``, over all workers.
    """
    used = {link: kinds for link, kinds in ledger.items() if kinds}
    if not used:
        return
    console, table = Console(stderr=True), Table()
    table.add_column("kind")
    for link in used:
        table.add_column(link, justify="right")
    for kind in sorted({kind for found in used.values() for kind in found}):
        table.add_row(kind, *(decimal(found[kind]) if kind in found else "" for found in used.values()))
    table.add_section()
    table.add_row("in all", *(decimal(sum(found.values())) for found in used.values()))
    console.print("what crossed each link, all workers together:")
    console.print(table)
