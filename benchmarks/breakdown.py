"""What the seconds of an epoch in mini-batches go to, and how much of the processors an epoch uses.

    python benchmarks/breakdown.py                                    # shares of drawing, gathering and training
    python benchmarks/breakdown.py --ways sampled:prefetch=0 sampled orchestrate
    python benchmarks/breakdown.py --workers 2 --ways sampled split migrate:move_model=true

NeutronOrch shows such shares in figure 2 and tables 2 and 3. Each cell is a process that trains some epochs, which
nothing is evaluated after; cells are interleaved. With ``prefetch=0`` nothing is done beside anything else, so the
shares add up to the epoch. See README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import record
from workers import versions

PARTS = {
    "draw": ("draw",),
    "gather": ("gather", "wait for rows"),
    "train": ("forward", "backward", "optimizer"),
}
"""Spans of a run by the steps of a batch."""
_WAITS = ("wait for batches", "sum over workers")


def main() -> None:
    """Measure, print, write."""
    options = _parser().parse_args()
    if options.one:
        print(json.dumps(_train(json.loads(options.one))))
        return
    cells = [*product(options.graphs, options.ways)]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {cell: [] for cell in cells}
    for turn in range(options.rounds):
        at = turn % len(cells)
        for cell in cells[at:] + cells[:at]:
            found[cell].append(_measure(*cell, options))
            print(*cell, found[cell][-1], flush=True)
    rows = [{"graph": graph, "way": way, **_summarise(rounds)} for (graph, way), rounds in found.items()]
    for row in rows:
        print(row)
    given = {name: value for name, value in vars(options).items() if name not in ("out", "one")}
    print(record.write("breakdown", {"parameters": given, "versions": versions(), "rows": rows}, options.out))


def _measure(graph: str, way: str, options: argparse.Namespace) -> dict[str, Any]:
    names = ("batch_size", "fanout", "hidden", "epochs", "workers", "model")
    given = {"graph": graph, "way": way, **{name: getattr(options, name) for name in names}}
    command = [sys.executable, __file__, "--one", json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def _train(given: dict[str, Any]) -> dict[str, Any]:
    """Train twice in this process, first for one epoch, which compiles and opens: only what follows counts."""
    import outgrow as og

    graph = og.load(given["graph"])
    _run(graph, given, 1)
    before, started = os.times(), time.perf_counter()
    run = _run(graph, given, given["epochs"])
    wall, after = time.perf_counter() - started, os.times()
    processor = sum(after[:4]) - sum(before[:4])
    spent, epochs = run.summary["seconds"], given["epochs"]
    spans = {**PARTS, "wait": _WAITS}
    parts = {part: sum(spent.get(name, 0.0) for name in names) / epochs for part, names in spans.items()}
    return {
        "epoch_seconds": statistics.median(run.summary["epoch_seconds"]),
        # Of all workers and their threads. With nothing prefetched the waits are for draws and gathers.
        **{f"{part}_seconds": seconds for part, seconds in parts.items()},
        "processor_use": processor / wall / len(os.sched_getaffinity(0)),
        "loss": run.summary["loss"][-1],
    }


def _run(graph: Any, given: dict[str, Any], epochs: int) -> Any:
    import torch

    import outgrow as og
    from outgrow.app.model_registry import build_model
    from outgrow.app.strategy_registry import STRATEGIES

    torch.manual_seed(0)
    model = build_model(given["model"], graph, {"hidden": given["hidden"], "layers": len(given["fanout"])})
    name, *settings = given["way"].split(":")
    set_ = {key: json.loads(value) for key, value in (each.split("=") for each in settings)}
    return og.train(
        graph,
        model,
        strategy=STRATEGIES[name](**set_),
        workers=given["workers"],
        epochs=epochs,
        batch_size=given["batch_size"],
        fanout=tuple(given["fanout"]),
        eval="none",
        progress=False,
    )


def _summarise(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    medians = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    serial = sum(medians[f"{part}_seconds"] for part in PARTS)
    shares = {f"{part}_share": medians[f"{part}_seconds"] / serial for part in PARTS}
    return medians | shares | {"rounds": [each["epoch_seconds"] for each in rounds]}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--graphs", nargs="+", default=["reddit@0.05", "products@0.02", "papers100M@0.002"])
    add("--ways", nargs="+", default=["sampled:prefetch=0", "sampled"], help="strategies, and what is set of them")
    add("--model", default="gcn")
    add("--batch-size", type=int, default=1024)
    add("--fanout", type=int, nargs="+", default=[25, 10, 5])
    add("--hidden", type=int, default=128)
    add("--workers", type=int, default=1)
    add("--epochs", type=int, default=3)
    add("--rounds", type=int, default=3)
    add("--out", type=Path, help="file of the figures")
    add("--one", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
