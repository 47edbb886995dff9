"""Mini-batches on a graph that memory does not hold: trained, evaluated and predicted under a hard cap of memory.

    python benchmarks/evaluation.py --graph papers100M@0.05 --folder DIR --memory-gib 2 --workers 1 2

The cap is a control group, page cache included, which needs root. A 3-layer SAGE is trained for some epochs, with one
batch ahead; validation is exact. The model of the first number of workers then predicts all nodes. See README.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import capped
import record
from workers import versions

GIB = 1 << 30
MODEL = ("--model", "sage", "--set", "layers=3", "--hidden", "256", "--batch-size", "1024", "--fanout", "15,10,5")


def main() -> None:
    """Measure, print, write."""
    options = _parser().parse_args()
    if reason := capped.unavailable():
        raise SystemExit(reason)
    store = options.folder / options.graph
    if not store.exists():
        subprocess.run([sys.executable, "-m", "outgrow", "convert", options.graph, str(store)], check=True)
    rows = [_trained(store, options, workers) for workers in options.workers]
    if options.predict:
        rows.append(_predicted(options))
    for row in rows:
        print(row, flush=True)
    given = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    given = {name: value for name, value in given.items() if name not in ("out", "folder")}
    print(record.write("evaluation", {"parameters": given, "versions": versions(), "rows": rows}, options.out))


def _run_of(options: argparse.Namespace, workers: int) -> Path:
    folder: Path = options.folder / f"run-{workers}"
    return folder


def _trained(store: Path, options: argparse.Namespace, workers: int) -> dict[str, Any]:
    """Train under the cap; what an evaluation takes beside an epoch."""
    out = _run_of(options, workers)
    shutil.rmtree(out, ignore_errors=True)
    # METIS would need more memory than there is.
    ahead = ("--set", "prefetch=1", "--set", "sampling_threads=1", "--strategy", "sampled", "--set", "partition=fennel")
    loop = ("--epochs", str(options.epochs), "--set", f"eval={options.eval}", "--workers", str(workers))
    loop += ("--memory", options.worker_memory) if options.worker_memory else ()
    found, seconds, group = _capped(["train", str(store), *MODEL, *ahead, *loop, "--out", str(out)], options)
    if found:
        return {"what": "train", "workers": workers, "failed": found}
    summary = json.loads((out / "summary.json").read_text())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    epoch = statistics.median(summary["epoch_seconds"])
    evaluation = statistics.median(line["evaluation_seconds"] for line in lines)
    return {
        "what": "train",
        "workers": workers,
        "seconds": seconds,
        "epoch_seconds": epoch,
        "evaluation_seconds": evaluation,
        "evaluation_share": evaluation / epoch,
        "held_mib": summary["peak_bytes"]["device"] / 2**20,
        "group_mib": group / 2**20,
        "counters": summary["counters"],
        "facts": summary["strategy_facts"],
        "test_accuracy": summary["test_accuracy"],
    }


def _predicted(options: argparse.Namespace) -> dict[str, Any]:
    """Predict all nodes under the cap."""
    run, out = _run_of(options, options.workers[0]), options.folder / "predictions.parquet"
    failed, seconds, group = _capped(["predict", str(run), "--out", str(out)], options)
    row = {"what": "predict", "seconds": seconds, "group_mib": group / 2**20}
    return {**row, "failed": failed} if failed else {**row, "file_mib": out.stat().st_size / 2**20}


def _capped(arguments: list[str], options: argparse.Namespace) -> tuple[int, float, int]:
    began = time.perf_counter()
    command = [sys.executable, "-m", "outgrow", *arguments]
    done, peaks = capped.run(command, int(options.memory_gib * GIB))
    return done.returncode, time.perf_counter() - began, peaks.group


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--graph", default="papers100M@0.05")
    add("--folder", type=Path, required=True, help="folder on a disk, where the store is made unless it is there")
    add("--memory-gib", type=float, default=2.0)
    add("--worker-memory", help="limit of memory that each worker is given, such as 800MiB")
    add("--workers", type=int, nargs="+", default=[1, 2])
    add("--epochs", type=int, default=1)
    add("--eval", default="exact")
    add("--predict", action=argparse.BooleanOptionalAction, default=True)
    add("--out", type=Path, help="file of the figures")
    return parser


if __name__ == "__main__":
    main()
