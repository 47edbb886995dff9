"""How the cost of an epoch grows with the graph and with workers, under all seven strategies.

    python benchmarks/growth.py --picture docs/assets/growth.svg
    python benchmarks/growth.py --shares 0.001,0.01 --strategies full,sampled

Graphs are shares of one that is like products, 124 million edges: 0.001 has about 10^5. Each run is `outgrow train`
in a process of its own, for a few epochs of which the first does not count: median seconds of the others, peak memory
of the worker that holds most, bytes between tiers and workers in an epoch. A slope is that of a line through the
logarithms of cost and edges: 1 is a cost in proportion. Workers share the cores of this machine, so more of them are
no faster here: what is to be read from them is memory and bytes. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import record
from growth_picture import draw
from rich.console import Console
from tables import show

import outgrow as og
from outgrow.graph.store.reader import is_store, write_store

BATCHES = ("batch_size=1024", "fanout=10,5")
OPTIONS: Mapping[str, Sequence[str]] = {
    "full": (),
    "offload": ("chunks=8",),
    "tensor": (),
    "sampled": BATCHES,
    "split": BATCHES,
    "migrate": BATCHES,
    "orchestrate": BATCHES,
}
COSTS = ("seconds", "peak_bytes", "moved_bytes")
Row = Mapping[str, Any]


def measure(store: Path, strategy: str, workers: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train a few epochs; returns what an epoch costs, or ``failed``, the last line that was said."""
    with tempfile.TemporaryDirectory(dir=store.parent) as folder:
        command = [
            sys.executable,
            "-m",
            "outgrow",
            "train",
            str(store),
            "--strategy",
            strategy,
            "--model",
            options.model,
        ]
        command += ["--hidden", str(options.hidden), "--epochs", str(options.epochs), "--workers", str(workers)]
        # Scores would add passes over the graph that no epoch needs.
        given = [*OPTIONS[strategy], f"eval_every={options.epochs}"]
        command += ["--set", *given, "--out", f"{folder}/run", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=options.timeout)
        if done.returncode:
            return {"failed": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]}
        found = json.loads(Path(folder, "run", "summary.json").read_text())
    moved = sum(count for kinds in found["ledger"].values() for count in kinds.values())
    return {
        "seconds": statistics.median(found["epoch_seconds"][1:]),
        "peak_bytes": sum(found["peak_bytes"].values()),
        "moved_bytes": moved / options.epochs,
    }


def slopes(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """For each strategy and cost, the slope over the edges on one worker, where there are two sizes or more."""
    found: dict[str, dict[str, float]] = {}
    for strategy in dict.fromkeys(row["strategy"] for row in rows):
        for cost in COSTS:
            mine = [row for row in rows if row["strategy"] == strategy and row["workers"] == 1 and row.get(cost)]
            sizes = sorted({row["edges"] for row in mine})
            if len(sizes) > 1:
                points = np.log([[row["edges"], row[cost]] for row in mine])
                slope = float(np.polyfit(points[:, 0], points[:, 1], 1)[0])
                found.setdefault(strategy, {})[cost] = slope
    return found


def _make_stores(options: argparse.Namespace, folder: Path) -> dict[float, Path]:
    stores = {share: (folder / f"products-{share}").resolve() for share in options.shares}
    for share, store in stores.items():
        if not is_store(store):
            write_store(og.load(f"products@{share}"), store)
    return stores


def _measure_all(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    stores = _make_stores(options, folder)
    largest_of_many = max(share for share in options.shares if share <= options.share_of_workers)
    cells = [(share, 1) for share in options.shares]
    cells += [(largest_of_many, workers) for workers in options.workers if workers > 1]
    rows = []
    for share, workers in cells:
        graph = og.load(stores[share])
        for strategy in options.strategies:
            costs = measure(stores[share], strategy, workers, options)
            named = {"strategy": strategy, "share": share, "edges": graph.num_edges, "nodes": graph.num_nodes}
            rows.append({**named, "workers": workers, **costs})
            print(f"{strategy}, {graph.num_edges:,} edges, {workers} workers: {costs}", file=sys.stderr, flush=True)
    return rows


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--shares", type=lambda text: [*map(float, text.split(","))], default=[0.001, 0.01, 0.1], help="with commas")
    add("--workers", type=lambda text: [*map(int, text.split(","))], default=[1, 2, 4, 8], help="with commas")
    add("--share-of-workers", type=float, default=0.01, help="largest share on which several workers train")
    add("--strategies", type=lambda text: text.split(","), default=list(OPTIONS), help="with commas")
    add("--model", default="gcn")
    add("--hidden", type=int, default=64)
    add("--epochs", type=int, default=3)
    add("--timeout", type=float, default=1200.0, help="seconds of a run")
    add("--scratch", type=Path, help="keep and reuse the graphs here; else they go to a temporary folder")
    add("--picture", type=Path, help="file of the picture, SVG")
    add("--out", type=Path, help="file of the figures")
    options = parser.parse_args()
    if min(options.shares) > options.share_of_workers:
        parser.error("no share is as small as --share-of-workers")
    if options.epochs < 2:
        parser.error("the first epoch does not count, so there must be a second: --epochs")
    return options


def main() -> None:
    """Measure, show, draw, write."""
    options = _parse()
    with ExitStack() as stack:
        folder = options.scratch or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        rows = _measure_all(options, folder)
    found = slopes(rows)
    show("cost of an epoch", rows, hidden=("share",))
    for strategy, each in found.items():
        Console().print(f"{strategy}: " + ", ".join(f"{cost} {slope:.2f}" for cost, slope in each.items()))
    if options.picture is not None:
        options.picture.write_text(draw(rows))
    names = ("shares", "workers", "model", "hidden", "epochs")
    parameters = {name: getattr(options, name) for name in names} | {"options": OPTIONS}
    print(record.write("growth", {"parameters": parameters, "slopes": found, "rows": rows}, options.out))


if __name__ == "__main__":
    main()
