"""The neighbour replication factor of the big presets under METIS, beside HongTu's Table 3.

    python benchmarks/replication.py --out benchmarks/results/replication.json
    python benchmarks/replication.py --presets it-2004 --scale 0.005 --parts 2 32 512

The factor of a partition is the sum over its parts of ``|N(part) + own nodes| / V``, where ``N`` are the sources of
in-edges. ``without own`` counts ``N`` alone, so that a node with no edge to a node of its part is left out there. The
presets were fitted at scale 0.01 to 2, 32 and 512 parts; the other columns were not. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import record
from rich.console import Console
from rich.table import Table

from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.partition.methods import MetisPartitioner
from outgrow.graph.partition.partition import Partition
from outgrow.graph.partition.quality import measure_quality
from outgrow.graph.synthetic.block_model import BlockModel
from outgrow.graph.synthetic.presets import GraphPreset, graph_presets
from outgrow.graph.topology import Topology

PARTS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
PUBLISHED = {
    "it-2004": (1.23, 1.35, 1.46, 1.52, 1.60, 1.63, 1.71, 1.76, 1.85),
    "papers100M": (1.25, 1.52, 2.13, 3.02, 4.46, 6.34, 8.50, 10.6, 12.3),
    "friendster": (1.32, 1.77, 2.68, 3.86, 5.48, 7.70, 10.70, 14.4, 18.1),
}
METHOD = MetisPartitioner(balance="both")
Cell = dict[str, Any]


def topology_of(preset: GraphPreset, scale: float, seed: int) -> Topology:
    """The edges of a preset, as they are read for training; nothing else is made."""
    made = preset.at_scale(scale, seed=seed)
    bare = BlockModel(structure=made.structure, node_spec=replace(made.node_spec, features=0), seed=seed)
    return assemble_graph(bare, undirected=preset.undirected).topology


def without_own(topology: Topology, partition: Partition) -> float:
    """Distinct pairs of a part and a source of its in-edges, over the nodes."""
    part = partition.part.numpy().astype(np.int64)
    of_edge = np.repeat(part, np.diff(topology.indptr.numpy()))
    pairs = of_edge * topology.num_nodes + topology.indices.numpy()
    pairs.sort()
    return float((np.count_nonzero(np.diff(pairs)) + 1) / topology.num_nodes)


def measure(preset: GraphPreset, topology: Topology, parts: list[int]) -> Iterator[Cell]:
    """Figures for each number of parts."""
    published = dict(zip(PARTS, PUBLISHED[preset.name], strict=True))
    for count in parts:
        start = time.perf_counter()
        partition = METHOD.partition_nodes(topology, count)
        seconds = time.perf_counter() - start
        quality = measure_quality(topology, partition)
        yield {
            "parts": count,
            "factor": quality.replication_factor,
            "published": published[count],
            "ratio": quality.replication_factor / published[count],
            "without_own": without_own(topology, partition),
            "cut_share": quality.cut_share,
            "node_balance": quality.node_balance,
            "edge_balance": quality.edge_balance,
            "seconds": seconds,
        }


def show(console: Console, title: str, cells: list[Cell]) -> None:
    """One table of a preset."""
    table = Table(*("parts", "factor", "HongTu", "ratio", "without own", "edges cut"), title=title)
    for cell in cells:
        figures = (f"{cell[name]:.2f}" for name in ("factor", "published", "ratio", "without_own"))
        table.add_row(str(cell["parts"]), *figures, f"{cell['cut_share']:.1%}")
    console.print(table)


def main() -> None:
    """Generate, partition, count, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", choices=tuple(PUBLISHED), default=list(PUBLISHED))
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", nargs="+", type=int, choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    results = {}
    for name in options.presets:
        preset = graph_presets()[name]
        topology = topology_of(preset, options.scale, options.seed)
        cells = list(measure(preset, topology, options.parts))
        show(console, f"{name}@{options.scale:g}: {topology.num_nodes:,} nodes, {topology.num_edges:,} edges", cells)
        sizes = {"nodes": topology.num_nodes, "edges": topology.num_edges}
        results[name] = {"preset": asdict(preset), **sizes, "cells": cells}
    fixed = {"scale": options.scale, "seed": options.seed, "method": METHOD.cache_key}
    figures = {"parameters": fixed, "versions": {"pymetis": version("pymetis")}, "results": results}
    console.print(f"written to {record.write('replication', figures, options.out)}")


if __name__ == "__main__":
    main()
