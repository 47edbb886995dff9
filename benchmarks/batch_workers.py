"""Epochs of mini-batches by one worker and by two of one host, and how fast `split` draws with one thread and with two.

    python benchmarks/batch_workers.py                                  # products@0.02, batches of 256
    python benchmarks/batch_workers.py --before ../other/src            # and the same by another state of the library

Each cell is a process that trains some epochs, which nothing is evaluated after; cells are interleaved. The median over
rounds of the median epoch counts, without the first epoch of each process. See README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import record
from workers import versions

CELLS: dict[str, dict[str, Any]] = {
    "sampled, 1 worker": {"strategy": "sampled", "workers": 1},
    "sampled, 2 workers": {"strategy": "sampled", "workers": 2},
    "split, 2 workers, 1 thread": {"strategy": "split", "workers": 2, "options": {"sampling_threads": 1}},
    "split, 2 workers, 2 threads": {"strategy": "split", "workers": 2, "options": {"sampling_threads": 2}},
}
_SINCE = {"split, 2 workers, 1 thread": {}, "split, 2 workers, 2 threads": None}
"""Options of cells in another state of the library, which has no number of threads; None for a cell that it lacks."""


def main() -> None:
    """Measure, print, write."""
    options = _parser().parse_args()
    if options.one:
        print(json.dumps(_train(json.loads(options.one))))
        return
    cells = [(name, None) for name in CELLS]
    if options.before:
        cells += [(name, options.before) for name in CELLS if _SINCE.get(name, {}) is not None]
    found: dict[str, list[dict[str, Any]]] = {}
    for turn in range(options.rounds):
        at = turn % len(cells)
        for name, tree in cells[at:] + cells[:at]:
            label = name if tree is None else f"{name}, before"
            found.setdefault(label, []).append(_measure(name, tree, options))
            print(label, found[label][-1], flush=True)
    rows = [{"cell": label, **_summarise(rounds)} for label, rounds in found.items()]
    for row in rows:
        print(row)
    given = {name: value for name, value in vars(options).items() if name not in ("out", "one", "before")}
    print(record.write("batch_workers", {"parameters": given, "versions": versions(), "rows": rows}, options.out))


def _measure(name: str, tree: Path | None, options: argparse.Namespace) -> dict[str, Any]:
    given = {**CELLS[name], "graph": options.graph, "batch_size": options.batch_size, "fanout": options.fanout}
    given |= {"epochs": options.epochs, "hidden": options.hidden}
    environment = dict(os.environ)
    if tree is not None:
        given["options"] = _SINCE.get(name, given.get("options"))
        environment["PYTHONPATH"] = str(tree.resolve())
    command = [sys.executable, __file__, "--one", json.dumps(given)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def _train(given: dict[str, Any]) -> dict[str, Any]:
    """Train in this process, and in others if there are several workers."""
    import torch

    import outgrow as og

    torch.manual_seed(0)
    graph = og.load(given["graph"])
    model = og.nn.SAGE(graph.num_features, given["hidden"], graph.num_classes, layers=len(given["fanout"]))
    kind = {"sampled": og.Sampled, "split": og.SplitParallel}[given["strategy"]]
    run = og.train(
        graph,
        model,
        strategy=kind(**(given.get("options") or {})),
        workers=given["workers"],
        epochs=given["epochs"],
        batch_size=given["batch_size"],
        fanout=tuple(given["fanout"]),
        eval="none",
        progress=False,
    )
    seconds, counters = run.summary["seconds"], run.summary["counters"]
    threads = (given.get("options") or {}).get("sampling_threads", 1)
    return {
        "epoch_seconds": statistics.median(run.summary["epoch_seconds"][1:]),
        # Of all workers and threads together.
        "draw_seconds": seconds["draw"] / given["epochs"],
        "drawn_edges_per_second": counters["sampled_edges"] * threads / seconds["draw"],
        "wait_seconds": seconds.get("wait for batches", 0.0) / given["epochs"],
        "sampled_edges": counters["sampled_edges"] / given["epochs"],
        "peer_feature_bytes": run.summary["ledger"]["peer"].get("features", 0),
        "loss": run.summary["loss"][-1],
    }


def _summarise(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    medians = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    return medians | {"rounds": [each["epoch_seconds"] for each in rounds]}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--graph", default="products@0.02")
    add("--batch-size", type=int, default=256)
    add("--fanout", type=int, nargs="+", default=[10, 10])
    add("--hidden", type=int, default=64)
    add("--epochs", type=int, default=9)
    add("--rounds", type=int, default=5)
    add("--before", type=Path, help="source folder of another state of the library")
    add("--one", help="a cell, as JSON: what a process of its own is given")
    add("--out", type=Path, help="file of the figures")
    return parser


if __name__ == "__main__":
    main()
