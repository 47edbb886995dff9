"""Formatting of quantities."""

from __future__ import annotations

from collections.abc import Mapping

from outgrow.app.messages import is_quiet

_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def format_bytes(count: float) -> str:
    """Format a number of bytes: ``1234567`` as ``1.23 MB``."""
    for size, unit in _UNITS:
        if abs(count) >= size:
            # Above 999.5 three significant digits would switch to an exponent, as in "1e+03 MB".
            return f"{count / size:.3g} {unit}" if count < 999.5 * size else f"{count / size:,.0f} {unit}"
    return f"{count:.0f} B"


def format_memory(count: float) -> str:
    """Format a number of bytes in units of memory, MiB or GiB."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def format_seconds(seconds: float) -> str:
    """Format a duration: ``0.0123`` as ``12.3 ms``."""
    if seconds >= 90:
        return f"{seconds / 60:.1f} min"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def format_percent(share: float | None) -> str:
    """Format a fraction: ``0.123`` as ``12.3 %``; None as ``none``."""
    return "none" if share is None else f"{100 * share:.1f} %"


def print_ledger(ledger: Mapping[str, Mapping[str, int]]) -> None:
    """Print a table of the traffic of each link on standard error; nothing if there was none, or with ``--quiet``.

    Args:
        ledger: Bytes as ``{link: {kind: bytes}}``, over all workers.
    """
    # Only the command line prints tables: training from Python does not load rich.
    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Table

    used = {link: kinds for link, kinds in ledger.items() if kinds}
    if not used or is_quiet():
        return
    console, table = Console(stderr=True), Table()
    table.add_column("kind")
    for link in used:
        table.add_column(link, justify="right")
    for kind in sorted({kind for found in used.values() for kind in found}):
        table.add_row(kind, *(decimal(found[kind]) if kind in found else "" for found in used.values()))
    table.add_section()
    table.add_row("in all", *(decimal(sum(found.values())) for found in used.values()))
    console.print("bytes that crossed each link, over all workers:")
    console.print(table)
