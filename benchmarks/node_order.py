"""Sums of neighbours' rows by the order in which nodes are numbered, and by the type in which rows are stored.

    python benchmarks/node_order.py --data-dir DATA

One thread, edges without weights. Orders: as the graph has it (`stored`), by degree, by METIS part, random. Rows are
float32 or bfloat16; sums are float32. Rounds are interleaved; milliseconds are those of the fastest. See
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from pathlib import Path

os.environ["NUMBA_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import record
import torch
from torch import Tensor

import outgrow as og
from outgrow.graph.partition.methods import MetisPartitioner
from outgrow.ops.aggregation.spmm import spmm

GRAPHS = "rmat-18,products@0.1,wordnet,debian"
STORED, DEGREE, PARTS, RANDOM = "stored", "degree", "parts", "random"


def node_orders(graph: og.Graph, parts: int) -> dict[str, Tensor]:
    """Nodes in the orders in which they are numbered."""
    num_nodes = graph.num_nodes
    degree = graph.topology.indptr.diff()
    part = MetisPartitioner().partition_nodes(graph.topology, parts).part
    return {
        STORED: torch.arange(num_nodes),
        DEGREE: degree.argsort(descending=True, stable=True),
        PARTS: part.argsort(stable=True),
        RANDOM: torch.randperm(num_nodes, generator=torch.Generator().manual_seed(0)),
    }


def renumbered(graph: og.Graph, order: Tensor) -> tuple[Tensor, Tensor]:
    """``indptr`` and ``indices`` of the graph with its nodes in another order; neighbours ascend."""
    num_nodes, indptr = graph.num_nodes, graph.topology.indptr
    number = torch.empty(num_nodes, dtype=torch.int64)
    number[order] = torch.arange(num_nodes)
    row = number.repeat_interleave(indptr.diff())
    edges = (row * num_nodes + number[graph.topology.indices.long()]).sort().values
    counts = torch.bincount(edges // num_nodes, minlength=num_nodes)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), (edges % num_nodes).int()


def measure(edges: Mapping[str, tuple[Tensor, Tensor]], columns: int, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a sum, by order and type of rows."""
    num_nodes = len(edges[STORED][0]) - 1
    rows = torch.randn(num_nodes, 1, columns, generator=torch.Generator().manual_seed(0))
    kinds = {"float32": rows, "bfloat16": rows.bfloat16()}
    out = torch.empty_like(rows)
    found: dict[str, dict[str, float]] = {order: {} for order in edges}
    for at in range(rounds + 1):
        for order, (indptr, indices) in edges.items():
            for kind, given in kinds.items():
                began = time.perf_counter()
                spmm(indptr, indices, None, None, given, out)
                taken = (time.perf_counter() - began) * 1e3
                if at:
                    found[order][kind] = min(taken, found[order].get(kind, taken))
    return found


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default=GRAPHS, help="with commas")
    parser.add_argument("--columns", default="64,128,256")
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = []
    for name in options.graphs.split(","):
        graph = og.load(name, data_dir=options.data_dir)
        edges = {each: renumbered(graph, order) for each, order in node_orders(graph, options.parts).items()}
        for columns in map(int, options.columns.split(",")):
            row = measure(edges, columns, options.rounds)
            base = row[STORED]["float32"]
            times = [f"{order} {kind} {ms / base:.2f}" for order, of in row.items() for kind, ms in of.items()]
            print(f"{name}, {columns} columns, {base:.1f} ms; times as long: {', '.join(times)}", flush=True)
            results.append({"graph": name, "columns": columns, "milliseconds": row})
    parameters = {"parts": options.parts, "rounds": options.rounds}
    print(record.write("node_order", {"parameters": parameters, "rows": results}, options.out))


if __name__ == "__main__":
    main()
