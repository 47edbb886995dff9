"""Memory of mini-batches as planned and as held, on graphs of several sizes.

    python benchmarks/batch_memory.py --folder DIR
    python benchmarks/batch_memory.py --folder DIR --graphs papers100M@0.005 papers100M@0.02 papers100M@0.05

A 3-layer SAGE, 256 wide, is planned for the machine and trained for an epoch, with an exact validation, from a store
in the folder. See README.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import record
from workers import versions

MODEL = ("--model", "sage", "--layers", "3", "--hidden", "256", "--batch-size", "1024", "--fanout", "15,10,5")


def main() -> None:
    """Measure, print, write."""
    options = _parser().parse_args()
    rows = [_measure(graph, workers, options) for graph in options.graphs for workers in options.workers]
    for row in rows:
        print(row)
    given = {"graphs": options.graphs, "workers": options.workers}
    print(record.write("batch_memory", {"parameters": given, "versions": versions(), "rows": rows}, options.out))


def _measure(graph: str, workers: int, options: argparse.Namespace) -> dict[str, Any]:
    store, run = options.folder / graph, options.folder / "run"
    if not store.exists():
        _outgrow("convert", graph, str(store))
    shutil.rmtree(run, ignore_errors=True)
    place = ("--workers", str(workers))
    planned = json.loads(_outgrow("plan", str(store), *MODEL, *place, "--json"))
    [candidate] = [each for each in planned["strategies"] if each["strategy"] == "sampled"]
    _outgrow("train", str(store), *MODEL, *place, "--strategy", "sampled", "--epochs", "1", "--out", str(run))
    summary = json.loads((run / "summary.json").read_text())
    found = {"planned_bytes": candidate["peak_bytes"], "held_bytes": summary["peak_bytes"]["device"]}
    return {
        "graph": graph,
        "workers": workers,
        **found,
        "planned_by_held": found["planned_bytes"] / found["held_bytes"],
        "epoch_seconds": summary["epoch_seconds"],
        "facts": summary["strategy_facts"],
    }


def _outgrow(*arguments: str) -> str:
    command = [sys.executable, "-m", "outgrow", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--folder", type=Path, required=True, help="folder on a disk, where stores are made unless they are there")
    add("--graphs", nargs="+", default=["papers100M@0.005", "papers100M@0.02", "papers100M@0.05"])
    add("--workers", type=int, nargs="+", default=[1])
    add("--out", type=Path, help="file of the figures")
    return parser


if __name__ == "__main__":
    main()
