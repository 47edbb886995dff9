"""Partitioning methods side by side: edges cut, balance of nodes, edges and nodes to train on, seconds, memory.

    python benchmarks/partition.py --graphs papers100M@0.02 wordnet --parts 4 8 --folder DIR
    python benchmarks/partition.py --graphs debian-files --parts 4 --folder DIR    # needs apt-file's indices, and lz4

Every partition is made in processes of their own. Their memory, that of METIS included, is looked at ten times a second
in a control group, which needs root; without one it is left out. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import capped
import record
from workers import versions

METHODS = ("metis", "metis-both", "fennel", "range", "range-edges", "hash")
DEBIAN = "debian-files"
"""The graph of `debian_files.py`, which is built where it is not there yet."""
NO_LIMIT = 1 << 40
CHILD = "--one"


def main() -> None:
    """Measure, print, write."""
    if CHILD in sys.argv:
        print(json.dumps(partition(*json.loads(sys.argv[-1]))))
        return
    options = _parser().parse_args()
    rows = []
    for graph in options.graphs:
        store = options.folder / graph
        if not store.exists():
            _make_store(graph, store, options.data_dir)
        for parts in options.parts:
            for method in options.methods:
                about = {"graph": graph, "parts": parts, "method": method, "whole_graphs": options.whole_graphs}
                rows.append({**about, **_measured(store, method, parts, options.whole_graphs)})
                print(" ".join(f"{key} {_short(value)}" for key, value in rows[-1].items()), flush=True)
    given = {"graphs": options.graphs, "parts": options.parts, "methods": options.methods}
    print(record.write("partition", {"parameters": given, "versions": versions(), "rows": rows}, options.out))


def _make_store(graph: str, store: Path, data_dir: Path | None) -> None:
    if graph != DEBIAN:
        given = ["--data-dir", str(data_dir)] if data_dir else []
        subprocess.run([sys.executable, "-m", "outgrow", "convert", graph, str(store), *given], check=True)
        return
    from debian_files import DebianFiles

    from outgrow.graph.builders.to_store import convert_to_store

    convert_to_store(DebianFiles(), store)


def partition(store: str, name: str, parts: int, whole_graphs: bool) -> dict[str, Any]:
    """Partition a store, for whole graphs or for mini-batches; what came out, and how long it took."""
    import torch

    import outgrow as og
    from outgrow.graph.partition.methods import METHODS as KNOWN
    from outgrow.graph.partition.quality import measure_quality

    graph = og.load(store)
    method = KNOWN[name] if whole_graphs else KNOWN[name].with_seeds(graph.split.train)
    KNOWN[name].partition_nodes(og.load("wordnet").topology, 2)  # kernels are compiled
    began = time.perf_counter()
    made = method.partition_nodes(graph.topology, parts)
    seconds = time.perf_counter() - began
    quality = measure_quality(graph.topology, made)
    seeds = torch.bincount(made.part[graph.split.train].long(), minlength=parts).double()
    return {
        "seconds": seconds,
        "cut_share": quality.cut_share,
        "node_balance": quality.node_balance,
        "edge_balance": quality.edge_balance,
        "seed_balance": float(seeds.max() / seeds.mean()) if len(graph.split.train) else 1.0,
        "replication_factor": quality.replication_factor,
    }


def _measured(store: Path, method: str, parts: int, whole_graphs: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, CHILD, json.dumps([str(store), method, parts, whole_graphs])]
    if capped.unavailable():
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return dict(json.loads(done.stdout.splitlines()[-1]))
    done, peaks = capped.run(command, NO_LIMIT)
    if done.returncode:
        return {"failed": done.returncode}
    return {**json.loads(done.stdout.splitlines()[-1]), "held_mib": peaks.held / 2**20}


def _short(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--graphs", nargs="+", default=["papers100M@0.02", "wordnet"])
    add("--parts", type=int, nargs="+", default=[4, 8])
    add("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    add("--whole-graphs", action="store_true", help="as for whole graphs, where nodes to train on are not balanced")
    add("--folder", type=Path, required=True, help="folder on a disk, where stores are made unless they are there")
    add("--data-dir", type=Path, help="folder of real data")
    add("--out", type=Path, help="file of the figures")
    return parser


if __name__ == "__main__":
    main()
