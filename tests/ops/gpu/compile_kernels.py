"""Compiles the kernels of the twins for a CUDA device that need not be there; prints the name of each.

Usage: compile_kernels.py CAPABILITY, such as 80.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from layer_table import CONVS, EDGE_DIM, IN, RELATIONS, layer_of
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from layer_plans import results, whole
from outgrow.ops import backend, edge_weight
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.epilogue import layer_norm
from outgrow.ops.rng import dropout, dropout_sparse
from outgrow.ops.rows.gather import gather_rows
from outgrow.ops.sparse import SparseRows
from support import normal, random_topology, with_edge_features, with_relations


class Absent:
    """What Triton asks a device before it compiles."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", int(sys.argv[1]), 32)


def compile_only(function: JITFunction, *given: Any, grid: tuple[int, ...], warmup: bool, **options: Any) -> None:
    compiled = run(function, *given, grid=grid, warmup=True, **options)
    assert "cubin" in compiled.asm
    sys.stdout.write(f"{function.fn.__module__.rpartition('.')[2]}.{function.fn.__name__}\n")


driver.set_active(Absent())
run, JITFunction.run = JITFunction.run, compile_only
backend._on_gpu = lambda value: isinstance(value, torch.Tensor)
# Sums of weights, which nothing has computed.
edge_weight.require_divisible_weights = lambda *given: None

for dtype, index in [(torch.float32, torch.int32), (torch.float64, torch.int64)]:
    topology = with_relations(random_topology(40, 3000, index=index, weighted=True), RELATIONS)
    topology = with_edge_features(topology, EDGE_DIM, dtype)
    for make in CONVS.values():
        results(whole, layer_of(make(), "bare", dtype=dtype), topology, normal(40, IN, dtype=dtype), 5)
    ones = torch.ones(7, dtype=dtype, requires_grad=True)
    dropout(layer_norm(normal(40, 7, dtype=dtype), ones, ones, 1e-5), torch.arange(40), 2**64 - 1, 0.3).sum().backward()
    rows = SparseRows(
        indptr=torch.tensor([0, 2]), indices=torch.arange(2), values=normal(2, dtype=dtype), num_columns=2
    )
    dropout_sparse(rows, torch.arange(1), 2**64 - 1, 0.5)
    gather_rows(normal(40, 7, dtype=dtype), torch.arange(9, dtype=index), normal(9, 7, dtype=dtype), torch.arange(9))
    weight = normal(topology.num_edges, 2, dtype=dtype).requires_grad_()
    WeightedSum()(topology.block, normal(40, 1, 5, dtype=dtype).bfloat16(), None, weight).sum().backward()
