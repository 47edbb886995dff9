"""Kernels for edges of several relations on a CUDA device against torch's sums over edges."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from outgrow.core.block import Edges
from outgrow.ops.csc import cached_transpose
from support import destinations_of, normal, random_topology, with_relations

Call = Callable[..., None]
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


def graph(count: int = 3, num_edges: int = 16) -> tuple[Edges, torch.Tensor, torch.Tensor]:
    """Edges, their destinations, and their relations, all below ``count`` but the last, which none has."""
    edges = with_relations(random_topology(8, num_edges), count - 1).block.edges
    assert edges.relation is not None
    return edges, destinations_of(edges), edges.relation


def assert_close(mine: torch.Tensor, expected: torch.Tensor) -> None:
    limit = TOLERANCE[mine.dtype]
    torch.testing.assert_close(mine.double(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("count", "weighted"), [(3, False), (70, True)])
def test_relation_mean(twin: ModuleType, call: Call, dtype: torch.dtype, count: int, weighted: bool) -> None:
    edges, at, relation = graph(count, 60)
    weight = normal(edges.num_edges, seed=2).abs().float() if weighted else torch.ones(edges.num_edges)
    weight[at == 1] = 0  # shares of nothing
    group = at * count + relation
    total = torch.zeros(8 * count, dtype=torch.float64).index_add(0, group, weight.double())
    out = torch.full((edges.num_edges,), torch.nan, dtype=dtype)
    call(twin.write_relation_mean, edges.indptr, relation, weight, count, out)
    assert_close(out, torch.nan_to_num(weight / total[group], nan=0.0))
    if not weighted:
        call(twin.write_relation_mean, edges.indptr, relation, None, count, out)
        assert_close(out, 1 / group.bincount(minlength=8 * count)[group].double())


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_basis_weights(twin: ModuleType, call: Call, dtype: torch.dtype) -> None:
    edges, _, relation = graph()
    share, scale = normal(3, 5, dtype=dtype), normal(edges.num_edges, seed=1, dtype=dtype)
    out = torch.full((edges.num_edges, 5), torch.nan, dtype=dtype)
    call(twin.basis_weight_forward, relation, share, scale, out)
    assert_close(out, scale.double()[:, None] * share.double()[relation.long()])

    grad, mine = normal(edges.num_edges, 5, seed=2, dtype=dtype), torch.full((3, 5), torch.nan, dtype=dtype)
    call(twin.basis_grad, relation, scale, grad, mine)
    products = scale.double()[:, None] * grad.double()
    assert_close(mine, torch.zeros(3, 5, dtype=torch.float64).index_add(0, relation.long(), products))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_scales_of_relations(twin: ModuleType, call: Call, dtype: torch.dtype) -> None:
    edges, at, relation = graph()
    back, src = cached_transpose(edges), edges.indices.long()
    scale, rows, grad = normal(3, 5, dtype=dtype), normal(8, 5, seed=1, dtype=dtype), normal(8, 5, seed=2, dtype=dtype)
    weight = normal(edges.num_edges, seed=3, dtype=dtype)
    leaves = [each.double().clone().requires_grad_() for each in (rows, scale)]
    message = weight.double()[:, None] * leaves[1][relation.long()] * leaves[0][src]
    expected = torch.zeros(8, 5, dtype=torch.float64).index_add(0, at, message)
    d_rows, d_scale = torch.autograd.grad(expected, leaves, grad.double())

    mine = [torch.full_like(each, torch.nan) for each in (rows, rows, scale)]
    position = torch.arange(edges.num_edges)
    call(twin.relational_spmm, edges.indptr, edges.indices, position, relation, weight, scale, rows, mine[0])
    call(twin.relational_spmm, back.indptr, back.indices, back.edge, relation, weight, scale, grad, mine[1])
    call(twin.relational_scale_grad, edges.indptr, edges.indices, relation, weight, rows, grad, mine[2])
    for one, other in zip(mine, [expected.detach(), d_rows, d_scale], strict=True):
        assert_close(one, other)
