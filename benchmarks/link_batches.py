"""An epoch over the links of WordNet in mini-batches: Outgrow, PyG's `LinkNeighborLoader`, GraphBolt, side by side.

    benchmarks/rivals/setup.sh                                   (once: makes the environments of the rivals)
    python benchmarks/link_batches.py --rivals .venv-rivals --out benchmarks/results/link_batches_wordnet.json

Batches of 4,096 links with one drawn negative each, fan-outs 10-10, a 2-layer R-GCN of shared bases over 64 projected
features, DistMult, binary cross-entropy, Adam; nothing is excluded. Each rival runs in a process of its own with the
given threads, one after the other, round by round. An epoch of a rival is cut off after some batches, and its seconds
are scaled to all of them. See README.md.
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
from typing import Any, NamedTuple

import record
from record import HERE
from workers import versions


class Rival(NamedTuple):
    """A library in one form: its module, its environment, and how many batches of an epoch are trained."""

    module: str
    environment: str
    form: str
    batches: int


RIVALS = {
    "outgrow": Rival("ours_link_batches", "", "", 40),
    "graphbolt": Rival("graphbolt_link_batches", "dgl", "int32-0", 40),
    "pyg": Rival("pyg_link_batches", "pyg", "rgcn-0", 6),
}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rivals", type=Path, default=HERE.parent / ".venv-rivals", help="folder of the environments")
    add("--rounds", type=int, default=3)
    add("--threads", type=int, default=1)
    add("--batch-size", type=int, default=4096)
    add("--out", type=Path, help="file of the figures")
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in RIVALS}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rivals.wordnet", folder, "64", "64", "4"]
        subprocess.run(command, cwd=HERE, check=True)
        links = json.loads((Path(folder) / "data.json").read_text())["edges"]
        for _ in range(options.rounds):
            for name, rival in RIVALS.items():
                found[name].append(_run(rival, folder, options))
                print(name, found[name][-1], flush=True)
    count = -(-links // options.batch_size)
    figures: dict[str, Any] = {"reports": found}
    # Of the processor as well, which other work on the machine changes less.
    for kind in ("seconds", "processor_seconds"):
        epochs = {
            name: [statistics.median(each[kind][1:]) / each["batches"] * count for each in reports]
            for name, reports in found.items()
        }
        medians = {name: statistics.median(each) for name, each in epochs.items()}
        ratios = {name: value / medians["outgrow"] for name, value in medians.items()}
        figures[kind] = {"epochs": epochs, "median": medians, "by_outgrow": ratios}
        print(kind, medians, ratios)
    given = {name: getattr(options, name) for name in ("rounds", "threads", "batch_size")}
    content = {"parameters": given, "links": links, "batches": count, "versions": versions(), **figures}
    print(record.write("link_batches_wordnet", content, options.out))


def _run(rival: Rival, folder: str, options: argparse.Namespace) -> dict[str, Any]:
    task = {
        "folder": folder,
        "batch_size": options.batch_size,
        "fanout": [10, 10],
        "epochs": 3,
        "batches": rival.batches,
        "threads": options.threads,
        "form": rival.form,
    }
    python = sys.executable if not rival.environment else str(options.rivals / rival.environment / "bin" / "python")
    threads = str(options.threads)
    environment = {**os.environ, "NUMBA_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "DGLBACKEND": "pytorch"}
    command = [python, "-m", f"rivals.{rival.module}", json.dumps(task)]
    done = subprocess.run(command, cwd=HERE, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


if __name__ == "__main__":
    main()
