"""The gated sum on a CUDA device against one with a row per edge, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from outgrow.ops.csc import cached_transpose
from support import destinations_of, normal, random_topology

INDEX = {torch.float32: torch.int32, torch.float64: torch.int64}
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("weighted", [False, True])
def test_gated_sum(twin: ModuleType, call: Callable[..., None], dtype: torch.dtype, weighted: bool) -> None:
    edges = random_topology(8, 16, index=INDEX[dtype]).block.edges
    back, at = cached_transpose(edges), destinations_of(edges)
    src, dst, grad = normal(8, 2, 5, dtype=dtype), normal(8, 1, 5, seed=1, dtype=dtype), normal(8, 1, 5, dtype=dtype)
    src[0, 0], src[1, 0] = 60, -60
    weight = normal(edges.num_edges, seed=2, dtype=dtype) if weighted else None
    leaves = [each.double().clone().requires_grad_() for each in (src, dst)]
    rows = leaves[0][edges.indices.long()]
    message = torch.sigmoid(rows[:, :1] + leaves[1][at]) * rows[:, 1:]
    message = message if weight is None else weight.double()[:, None, None] * message
    expected = [torch.zeros(8, 1, 5, dtype=torch.float64).index_add(0, at, message)]
    expected += torch.autograd.grad(expected[0], leaves, grad.double())

    mine = [torch.full_like(each, torch.nan, dtype=dtype) for each in expected]
    given = src, dst, weight
    call(twin.gated_sum, edges.indptr, edges.indices, *given, mine[0])
    call(twin.gated_grad_src, back.indptr, back.indices, back.edge, *given, grad, mine[1])
    call(twin.gated_grad_dst, edges.indptr, edges.indices, *given, grad, mine[2])
    limit = TOLERANCE[dtype]
    for one, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(one.double(), other.detach(), rtol=limit, atol=limit)
