"""Seconds from the start of a process until the first training step on a graph is done, for each shipped model.

    python benchmarks/startup.py --models gcn,gat --rounds 3

In every round each model starts twice: with an empty cache of compiled kernels, then with the one that the first start
has filled. The table goes to the terminal, all figures to benchmarks/results/. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import record
from record import HERE
from rich.console import Console
from rich.table import Table
from rivals.process import environment

from outgrow.app.model_registry import MODELS
from outgrow.runtime.system.environment import available_cores

PARTS = ("import", "load", "prepare", "step")
TARGET_SECONDS = 2.0
_SAME_LOSS = 1e-6


def start(model: str, options: argparse.Namespace, cache: str) -> dict[str, float]:
    """Start once; the report of `first_step.py`, and the load of the machine before it."""
    load = os.getloadavg()[0]
    others = {} if options.compile_processes is None else {"OUTGROW_COMPILE_PROCESSES": str(options.compile_processes)}
    settings = environment(options.threads, {"OUTGROW_KERNEL_CACHE": cache, **others})
    numbers = (str(options.hidden), "1" if options.evaluate else "2", repr(time.monotonic()))
    command = [sys.executable, str(HERE / "first_step.py"), options.graph, model, *numbers]
    done = subprocess.run(command, env=settings, stdout=subprocess.PIPE, text=True, check=True)
    report: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {**report, "torch_alone": torch_alone(settings), "machine_load": load}


def torch_alone(settings: Mapping[str, str]) -> float:
    """Seconds of a process that imports torch and nothing else: what no library on it can undercut."""
    code = "import time, torch; print(time.monotonic())"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], env=settings, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout) - began


def measure(options: argparse.Namespace) -> dict[str, list[dict[str, dict[str, float]]]]:
    """Reports ``{"first": ..., "second": ...}`` by model, one a round."""
    found: dict[str, list[dict[str, dict[str, float]]]] = {model: [] for model in options.models}
    with tempfile.TemporaryDirectory() as cache:  # does not count: brings the libraries' files into memory
        start(options.models[0], options, cache)
    for turn in range(options.rounds):
        for model in options.models:
            with tempfile.TemporaryDirectory() as cache:
                pair = {"first": start(model, options, cache), "second": start(model, options, cache)}
            found[model].append(pair)
            totals = ", then ".join(f"{report['total']:.2f} s" for report in pair.values())
            print(f"round {turn + 1}: {model}: {totals}", file=sys.stderr, flush=True)
    return found


def summarise(found: Mapping[str, Sequence[Mapping[str, Mapping[str, float]]]]) -> list[dict[str, Any]]:
    """One row for each model: medians over rounds."""
    rows = []
    for model, pairs in found.items():
        row: dict[str, Any] = {"model": model}
        for which in ("first", "second"):
            names = (*PARTS, "total", "next_step", "torch_alone")
            row[which] = {name: statistics.median(pair[which][name] for pair in pairs) for name in names}
        gaps = [abs(pair["first"]["loss"] - pair["second"]["loss"]) / abs(pair["first"]["loss"]) for pair in pairs]
        row["slowest_second_seconds"] = max(pair["second"]["total"] for pair in pairs)
        row["in_time"] = row["second"]["total"] < TARGET_SECONDS
        row["same_losses"] = max(gaps) < _SAME_LOSS
        rows.append(row)
    return rows


def show(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """The table."""
    table = Table(title=title)
    table.add_column("model")
    columns = ("first start", "second start", *PARTS, "next step", "torch alone", "slowest", f"< {TARGET_SECONDS:g} s")
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        second = row["second"]
        seconds = [row["first"]["total"], *(second[name] for name in ("total", *PARTS, "next_step", "torch_alone"))]
        cells = [f"{value:.2f}" for value in (*seconds, row["slowest_second_seconds"])]
        table.add_row(row["model"], *cells, "yes" if row["in_time"] else "NO")
    Console(width=None if sys.stdout.isatty() else 130).print(table)


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", type=lambda text: text.split(","), default=list(MODELS), help="some of " + ",".join(MODELS))
    add("--graph", default="wordnet", help="a data set")
    add("--evaluate", action="store_true", help="until the first epoch has ended with its evaluation")
    add("--compile-processes", type=int, help="processes that compile beside; 0: none", default=None)
    add("--rounds", type=int, default=3)
    add("--hidden", type=int, default=64)
    add("--threads", type=int, default=available_cores())
    add("--out", type=Path, help="file of the figures")
    options = parser.parse_args()
    unknown = set(options.models) - MODELS.keys()
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    found = measure(options)
    rows = summarise(found)
    show(
        rows,
        f"{options.graph}, hidden {options.hidden}, {options.threads} threads: seconds; parts are of the second start",
    )
    names = ("graph", "evaluate", "compile_processes", "rounds", "hidden", "threads")
    parameters = {name: getattr(options, name) for name in names}
    figures = {"parameters": {"layers": 2, **parameters}, "rows": rows, "reports": found}
    print(record.write("startup", figures, options.out))
    if not all(row["same_losses"] for row in rows):
        sys.exit("some model computed another loss with kernels from the cache")


if __name__ == "__main__":
    main()
