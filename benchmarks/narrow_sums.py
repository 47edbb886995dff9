"""Weighted sums over edges whose rows stay in registers, against the kernel that sums in memory: nanoseconds per edge.

    python benchmarks/narrow_sums.py --graph reddit@0.02 --data-dir DATA

One thread; forward in the order of edges, backward with weights that lie in another order. Both kernels are compiled
for the width, and give the same bits. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ["NUMBA_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import record
import torch

from outgrow.graph import datasets
from outgrow.ops.aggregation import spmm
from outgrow.ops.csc import cached_transpose


def nanoseconds(given: tuple[Any, ...], columns: int, *, registers: bool, rounds: int) -> tuple[float, torch.Tensor]:
    """The fastest of some rounds, for each edge, and the sums."""
    num_rows = len(given[0]) - 1
    rows = torch.rand(num_rows, 1, columns, generator=torch.Generator().manual_seed(0))
    out, seconds = torch.empty(num_rows, 1, columns), []
    narrow = spmm.has_narrow_kernel if registers else lambda *_: False
    with patch.object(spmm, "has_narrow_kernel", narrow):
        for _ in range(rounds + 1):
            began = time.perf_counter()
            spmm.spmm(*given, rows, out, num_edges=1 << 40)
            seconds.append(time.perf_counter() - began)
    return min(seconds[1:]) / len(given[1]) * 1e9, out


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="reddit@0.02")
    parser.add_argument("--columns", default="8,16,32,41,64,128")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    edges = datasets.load_graph(options.graph, data_dir=options.data_dir).topology.with_self_loops.block.edges
    back, weight = cached_transpose(edges), torch.rand(edges.num_edges, 1)
    ways = {"forward": (edges.indptr, edges.indices, None, weight), "backward": (*back, weight)}
    rows = []
    for columns in map(int, options.columns.split(",")):
        for way, given in ways.items():
            memory, expected = nanoseconds(given, columns, registers=False, rounds=options.rounds)
            registers, found = nanoseconds(given, columns, registers=True, rounds=options.rounds)
            assert torch.equal(found, expected)
            rows.append({"columns": columns, "way": way, "memory": memory, "registers": registers})
            print(
                f"{columns:4} columns {way:8}  {memory:5.1f} ns in memory, {registers:5.1f} ns in registers", flush=True
            )
    print(record.write("narrow_sums", {"graph": options.graph, "edges": edges.num_edges, "rows": rows}, options.out))


if __name__ == "__main__":
    main()
