"""Test accuracy of the shipped recipes, over seeds, through the command line as a user would type it.

    python benchmarks/accuracy.py cora:gcn:10 wordnet:sage:1 --out benchmarks/results/accuracy.json

Every entry is DATA:MODEL:SEEDS. Data sets are found as `outgrow train` finds them (see --data-dir there).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outgrow.runtime.system.hardware import describe_machine


def measure(data: str, model: str, seeds: int, data_dir: str | None) -> dict[str, Any]:
    """Mean and spread of the test accuracy, and the time of training."""
    scores, seconds, vals, trained = [], [], [], []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "outgrow", "train", data, "--model", model, "--seed", str(seed)]
            command += ["--json", "--out", f"{folder}/run", *(["--data-dir", data_dir] if data_dir else [])]
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
    parser.add_argument("entries", nargs="+", metavar="DATA:MODEL:SEEDS")
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for entry in args.entries:
        data, model, seeds = entry.split(":")
        rows.append(measure(data, model, int(seeds), args.data_dir))
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
