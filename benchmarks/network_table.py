"""The table of `network.py`."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

_TOLERANCE = 0.1
_KINDS = ("features", "activations", "gradients", "parameters")
_CUT = ("edge_cut", "cut_share", "node_balance", "edge_balance", "replication_factor")


def summarise(
    found: Mapping[Any, Sequence[Mapping[str, Any]]], cuts: Sequence[Mapping[str, Any]], mbit: float
) -> list[dict[str, Any]]:
    """One row for each cell: what an epoch takes and sends.

    Args:
        found: Reports by graph, model, strategy, setting and batch size: of the short run, then of the long ones.
        cuts: What the partitions cut.
        mbit: Speed of each link, in Mbit/s.
    """
    rows = []
    for (graph, model, strategy, setting, batch), reports in found.items():
        row = {"graph": graph, "model": model, "strategy": strategy, "setting": setting, "batch": batch}
        for cut in cuts:
            if (cut["graph"], f"partition={cut['partition']}") == (graph, setting):
                row |= {name: cut[name] for name in _CUT}
        failed = [report for report in reports if "failed" in report]
        rows.append({**row, **(failed[0] if failed else _figures(reports[0], reports[1:], mbit))})
    return rows


def _figures(short: Mapping[str, Any], long: Sequence[Mapping[str, Any]], mbit: float) -> dict[str, Any]:
    medians = [statistics.median(report["seconds"][1:]) for report in long]
    seconds = statistics.median(medians)
    grown = _grown(short, long[0])
    figures = {
        "rounds": len(long),
        "median_seconds": seconds,
        "slowest_round_seconds": max(medians),
        "min_seconds": min(min(report["seconds"][1:]) for report in long),
        "bytes_per_epoch": {link: kinds for link, kinds in grown["ledger"].items() if kinds},
        "ledger_bytes_per_epoch": sum(sum(grown["ledger"][link].values()) for link in ("peer", "network")),
        "counters_per_epoch": grown["counters"],
        "spent_per_epoch": _spent(short, long),
        "same_losses": len({tuple(report["losses"]) for report in long}) == 1,
        "median_load_after": statistics.median(report["load"] for report in long),
    }
    return {**figures, **(_of_interfaces(grown, long[0], seconds, mbit) if long[0]["sent"] else {})}


def _spent(short: Mapping[str, Any], long: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of an epoch by what was done, summed over workers and their threads: medians of the rounds."""
    return {
        name: statistics.median(
            (report["spent"].get(name, 0.0) - short["spent"].get(name, 0.0)) / (report["epochs"] - short["epochs"])
            for report in long
        )
        for name in long[0]["spent"]
    }


def _of_interfaces(grown: Mapping[str, Any], whole: Mapping[str, Any], seconds: float, mbit: float) -> dict[str, Any]:
    """What the interfaces have counted beside the ledger."""
    counted, ledger = sum(grown["sent"]), sum(grown["ledger"]["network"].values())
    wire = max(*grown["sent"], *grown["received"]) * 8 / (mbit * 1e6)
    return {
        "interface_bytes_per_epoch": counted,
        "interface_over_ledger": counted / ledger,
        "interface_over_ledger_of_whole_run": sum(whole["sent"]) / sum(whole["ledger"]["network"].values()),
        "ledger_agrees": abs(counted / ledger - 1) <= _TOLERANCE,
        "wire_seconds": wire,
        "wire_share": wire / seconds,
    }


def _grown(short: Mapping[str, Any], long: Mapping[str, Any]) -> dict[str, Any]:
    """What one epoch more has added to a run's ledger and to each host's interface, in bytes."""
    epochs = long["epochs"] - short["epochs"]
    ledger = {
        link: {kind: (count - short["ledger"][link].get(kind, 0)) / epochs for kind, count in kinds.items()}
        for link, kinds in long["ledger"].items()
    }
    sides = {
        side: [(more - less) / epochs for more, less in zip(long[side], short[side], strict=True)]
        for side in ("sent", "received")
    }
    less = short["counters"]
    counters = {name: (count - less.get(name, 0)) / epochs for name, count in long["counters"].items()}
    named = {link: {kind: count for kind, count in kinds.items() if count} for link, kinds in ledger.items()}
    return {"ledger": named, "counters": counters, **sides}


def show(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """The table."""
    table = Table(title=title)
    for name in ("graph", "model", "strategy", "setting", "batch"):
        table.add_column(name)
    columns = (
        "cut",
        "replication",
        "median s",
        "min s",
        "wire s",
        "wire share",
        "MB an epoch",
        "interfaces MB",
        "ratio",
    )
    for name in (*columns, *(f"{kind} MB" for kind in _KINDS)):
        table.add_column(name, justify="right")
    for row in rows:
        cells = [row["graph"], row["model"], row["strategy"], row["setting"], str(row["batch"] or "all")]
        cells += [f"{row['cut_share']:.1%}", f"{row['replication_factor']:.2f}"] if "cut_share" in row else ["", ""]
        table.add_row(*cells, *([row["failed"]] if "failed" in row else _cells(row)))
    Console(width=None if sys.stdout.isatty() else 210).print(table)


def _cells(row: Mapping[str, Any]) -> list[str]:
    cells = [f"{row[name]:.3f}" for name in ("median_seconds", "min_seconds")]
    cells += [f"{row['wire_seconds']:.3f}", f"{row['wire_share']:.0%}"] if "wire_seconds" in row else ["", ""]
    cells += [f"{row['ledger_bytes_per_epoch'] / 1e6:.2f}"]
    if "wire_seconds" in row:
        agrees = "" if row["ledger_agrees"] else " NO"
        cells += [f"{row['interface_bytes_per_epoch'] / 1e6:.2f}", f"{row['interface_over_ledger']:.3f}{agrees}"]
    else:
        cells += ["", ""]
    sent = row["bytes_per_epoch"].get("network" if "wire_seconds" in row else "peer", {})
    return cells + [f"{sent.get(kind, 0) / 1e6:.2f}" for kind in _KINDS]
