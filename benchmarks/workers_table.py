"""The tables of `workers.py`."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from workers_task import Cell

_SAME_LOSS = 1e-3


def summarise(found: Mapping[Cell, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One row for each cell: medians over rounds, and ratios to one worker in the same round."""
    rows = []
    for cell, reports in found.items():
        row: dict[str, Any] = {**cell._asdict(), "rounds": len(reports)}
        good = [report for report in reports if report["seconds"]]
        if good:
            row |= _figures(good) | _against(found.get(Cell(cell.model, 1), []), good)
        failed = [report["failed"] for report in reports if "failed" in report]
        if failed:
            row["failed"] = failed[0]
        rows.append(row)
    return rows


def _figures(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    medians = [statistics.median(report["seconds"]) for report in reports]
    waits = [[rows + sums for rows, sums in _waited(report)] for report in reports]
    by_kind = reports[0]["bytes"][-1]
    return {
        "median_seconds": statistics.median(medians),
        "slowest_round_seconds": max(medians),
        "min_seconds": min(min(report["seconds"]) for report in reports),
        "median_cpu_seconds": statistics.median(statistics.median(report["cpu_seconds"]) for report in reports),
        "median_wait_seconds": statistics.median(statistics.median(wait) for wait in waits),
        "median_wait_rows_seconds": statistics.median(rows for report in reports for rows, _ in _waited(report)),
        "median_load_before": statistics.median(report["load"] for report in reports),
        "bytes_per_epoch": sum(by_kind.values()),
        "bytes_per_epoch_by_kind": by_kind,
        "threads_of_workers": reports[0]["threads"],
    }


def _waited(report: Mapping[str, Any]) -> list[tuple[float, float]]:
    """For each epoch the mean over workers of the seconds that they waited for rows, and for sums."""
    pairs = zip(report["wait_rows_seconds"], report["wait_sums_seconds"], strict=True)
    return [(statistics.mean(rows), statistics.mean(sums)) for rows, sums in pairs]


def _against(alone: Sequence[Mapping[str, Any]], reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Time over that of one worker, round by round, in all and without waiting; and whether both did the same work."""
    pairs = [(one, several) for one, several in zip(alone, reports, strict=False) if one["seconds"]]
    if not pairs:
        return {}
    gaps = [
        abs(a - b) / abs(a) for one, several in pairs for a, b in zip(one["losses"], several["losses"], strict=False)
    ]
    ratios, busy = [], []
    for one, several in pairs:
        whole = statistics.median(one["seconds"])
        waited = statistics.median(rows + sums for rows, sums in _waited(several))
        ratios.append(statistics.median(several["seconds"]) / whole)
        busy.append((statistics.median(several["seconds"]) - waited) / whole)
    return {
        "over_one_worker": statistics.median(ratios),
        "over_one_worker_without_waiting": statistics.median(busy),
        "largest_loss_gap": max(gaps),
        "same_losses": max(gaps) < _SAME_LOSS,
    }


def show(rows: Sequence[Mapping[str, Any]], cuts: Sequence[Mapping[str, Any]], title: str) -> None:
    """The table, and one of the threads of the workers."""
    table = Table(title=title)
    for name in ("model", "workers", "partition", "overlap", "threads"):
        table.add_column(name)
    for name in ("median s", "min s", "CPU s", "waits s", "MB an epoch", "edges", "/ one", "no waits", "same losses"):
        table.add_column(name, justify="right")
    balance = {(cut["workers"], cut["partition"]): cut["edge_balance"] for cut in cuts}
    for row in rows:
        table.add_row(*_cells(row, balance.get((row["workers"], row["partition"]), 1.0)))
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table)
    console.print(_threads(rows))


def _cells(row: Mapping[str, Any], edge_balance: float) -> list[str]:
    several = row["workers"] > 1
    ways = ["on" if row["overlap"] else "off", row["threads"]] if several else ["-", "-"]
    cells = [row["model"], str(row["workers"]), row["partition"], *ways]
    if "median_seconds" not in row:
        return [*cells, row["failed"]]
    names = ("median_seconds", "min_seconds", "median_cpu_seconds", "median_wait_seconds")
    cells += [f"{row[name]:.3f}" for name in names]
    cells += [f"{row['bytes_per_epoch'] / 1e6:.1f}", f"{edge_balance:.2f}"]
    if "over_one_worker" in row:
        cells += [f"{row[name]:.2f}" for name in ("over_one_worker", "over_one_worker_without_waiting")]
        cells += ["yes" if row["same_losses"] else f"NO: {row['largest_loss_gap']:.1e}"]
    return cells


def _threads(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What each worker was given, once for each number of workers and each setting."""
    table = Table(title="threads of each worker")
    for name in ("workers", "threads", "torch", "Numba", "layer", "environment"):
        table.add_column(name)
    seen = {(row["workers"], row["threads"]): row["threads_of_workers"] for row in rows if "median_seconds" in row}
    for (workers, setting), found in seen.items():
        for each in found:
            given = " ".join(f"{name}={value}" for name, value in each["environment"].items())
            table.add_row(str(workers), setting, str(each["torch"]), str(each["numba"]), each["layer"], given)
    return table
