"""Test accuracy of the shipped recipes, over seeds, through the command line as a user would type it.

    python benchmarks/accuracy.py cora:gcn:10 wordnet:sage:1 --out benchmarks/results/accuracy.json

    python benchmarks/accuracy.py cora:decoupled:3:rounds=10,alpha=0.1 cora+dense:sign:3

Every entry is DATA:MODEL:SEEDS, or DATA:MODEL:SEEDS:OPTION=VALUE,... with options of `--set`. Data sets are found as
`outgrow train` finds them (see --data-dir there); of DATA+dense the sparse features are stored dense.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import outgrow as og
from outgrow.graph.store.reader import write_store
from outgrow.ops.sparse import SparseRows
from outgrow.runtime.system.hardware import describe_machine


def measure(data: str, model: str, seeds: int, data_dir: str | None, options: str = "") -> dict[str, Any]:
    """Mean and spread of the test accuracy, and the time of training."""
    name, _, form = data.partition("+")
    if not form:
        return _measure_graph(data, model, seeds, data_dir, options)
    graph = og.load(name, data_dir=data_dir)
    features = graph.features
    assert isinstance(features, SparseRows)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / name
        write_store(replace(graph, features=features.to_dense()), store)
        return _measure_graph(str(store), model, seeds, None, options) | {"data": data}


def _measure_graph(data: str, model: str, seeds: int, data_dir: str | None, options: str) -> dict[str, Any]:
    scores, seconds, vals, trained = [], [], [], []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "outgrow", "train", data, "--model", model, "--seed", str(seed)]
            command += ["--json", "--out", f"{folder}/run", *(["--data-dir", data_dir] if data_dir else [])]
            command += [word for option in options.split(",") if option for word in ("--set", option)]
            began = time.perf_counter()
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds.append(time.perf_counter() - began)
        summary = json.loads(done.stdout.splitlines()[-1])
        scores.append(summary["test_accuracy"])
        vals.append(summary["val_accuracy"])
        trained.append(sum(summary["epoch_seconds"]))
    return {
        "data": data,
        "model": model,
        "options": options,
        "seeds": seeds,
        "test_mean": statistics.mean(scores),
        "test_std": statistics.stdev(scores) if seeds > 1 else None,
        "val_mean": statistics.mean(vals),
        "test": scores,
        "median_process_seconds": statistics.median(seconds),
        "median_training_seconds": statistics.median(trained),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("entries", nargs="+", metavar="DATA:MODEL:SEEDS[:OPTION=VALUE,...]")
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for entry in args.entries:
        data, model, seeds, *options = entry.split(":")
        rows.append(measure(data, model, int(seeds), args.data_dir, ",".join(options)))
        print(json.dumps(rows[-1]), flush=True)
    if args.out:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        record = {
            "date": time.strftime("%Y-%m-%d"),
            "commit": commit,
            "machine": asdict(describe_machine()),
            "rows": rows,
        }
        args.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
