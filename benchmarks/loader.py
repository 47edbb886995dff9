"""Batches a second of a PyG training loop: our NeighborLoader, PyG's, and GraphBolt's.

    python benchmarks/loader.py --envs ENVS --out benchmarks/results/loader_products.json

Two layers of PyG's SAGEConv on a generated graph; with GraphBolt two of DGL's. Each library runs in a process of its
own environment; rounds are interleaved, so that all see the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import record
from comparison import write_data
from record import HERE

_MODULES = {"outgrow": "", "neighborloader": "pyg", "graphbolt": "dgl"}


def _run(library: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    environment = _MODULES[library]
    python = str(options.envs / environment / "bin" / "python") if environment else sys.executable
    job = json.dumps(
        {
            "library": library,
            "folder": str(folder),
            "batch_size": options.batch_size,
            "hidden": options.hidden,
            "epochs": options.epochs,
            "threads": options.threads,
        }
    )
    settings = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "NUMBA_NUM_THREADS": str(options.threads)}
    command = [python, "-W", "ignore", str(HERE / "rivals" / "loader_epochs.py"), job]
    done = subprocess.run(command, capture_output=True, text=True, env=settings, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--graph", default="products@0.02", help="a generated graph, as a share of the one it is like")
    add("--envs", type=Path, required=True, help="folder of the environments that rivals/setup.sh makes")
    add("--batch-size", type=int, default=1024)
    add("--hidden", type=int, default=64)
    add("--epochs", type=int, default=9, help="epochs of a process that count, after one that does not")
    add("--rounds", type=int, default=3)
    add("--threads", type=int, default=2)
    add("--out", type=Path)
    options = parser.parse_args()
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in _MODULES}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        facts = write_data(
            folder, {"graph": options.graph}, ["batch_data", "training", options.graph, str(options.hidden), "2"]
        )
        for _ in range(options.rounds):
            for library, found in reports.items():
                found.append(_run(library, folder, options))
                print(library, found[-1], flush=True)
    rows = []
    for library, found in reports.items():
        speeds = [each["batches_per_second"] for each in found if "failed" not in each]
        row: dict[str, Any] = {"library": library, "rounds": len(speeds)}
        if speeds:
            row |= {"batches_per_second": statistics.median(speeds), "min": min(speeds), "max": max(speeds)}
        rows.append(row)
    names = ("batch_size", "hidden", "epochs", "rounds", "threads")
    parameters = {**facts, **{name: getattr(options, name) for name in names}, "fanout": "10,10"}
    print(record.write("loader", {"parameters": parameters, "rows": rows, "reports": reports}, options.out))


if __name__ == "__main__":
    main()
