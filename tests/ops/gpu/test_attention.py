"""The softmax over in-edges on a CUDA device against torch's, destination by destination."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from outgrow.core.block import Edges
from outgrow.ops.csc import cached_transpose
from support import destinations_of, normal, random_topology

INDEX = {torch.float32: torch.int32, torch.float64: torch.int64}
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


def naive(edges: Edges, src: Tensor, dst: Tensor, slope: float, edge_score: Tensor | None) -> Tensor:
    score = src[edges.indices.long()] + dst[destinations_of(edges)]
    score = functional.leaky_relu(score if edge_score is None else score + edge_score, slope)
    bounds = edges.indptr.tolist()
    return torch.cat([score[a:b].softmax(0) for a, b in itertools.pairwise(bounds)])


def assert_close(mine: Tensor, expected: Tensor) -> None:
    limit = TOLERANCE[mine.dtype]
    torch.testing.assert_close(mine.double(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "slope", "edge_scores"), [(1, 0.2, False), (3, 0.0, True), (2, 1.5, True)])
def test_softmax(
    twin: ModuleType, call: Callable[..., None], dtype: torch.dtype, heads: int, slope: float, edge_scores: bool
) -> None:
    edges = random_topology(8, 24, index=INDEX[dtype]).block.edges
    src, dst = (4 * normal(8, heads, seed=seed, dtype=dtype) for seed in (0, 1))
    edge_score = normal(edges.num_edges, heads, seed=2, dtype=dtype) if edge_scores else None
    leaves = [each.double().clone().requires_grad_() for each in (src, dst)]
    score = None if edge_score is None else edge_score.double().clone().requires_grad_()
    expected = naive(edges, *leaves, slope, score)
    grad = normal(edges.num_edges, heads, seed=3, dtype=dtype)
    d_src, d_dst = torch.autograd.grad(expected, leaves, grad.double(), retain_graph=True)

    given = edges.indptr, edges.indices, src, dst, slope, edge_score
    weight, d_score = (torch.full_like(grad, torch.nan) for _ in range(2))
    call(twin.edge_softmax, *given, weight)
    assert_close(weight, expected.detach())

    mine = torch.full_like(dst, torch.nan)
    call(twin.edge_softmax_backward, *given, weight, grad, d_score, mine)
    assert_close(mine, d_dst)
    if score is not None:
        assert_close(d_score, torch.autograd.grad(expected, score, grad.double())[0])

    back, summed = cached_transpose(edges), torch.full_like(src, torch.nan)
    call(twin.sum_edge_values, back.indptr, back.edge, d_score, summed)
    assert_close(summed, d_src)


def test_scores_far_from_zero(twin: ModuleType, call: Callable[..., None]) -> None:
    indptr, indices = torch.tensor([0, 3]), torch.tensor([0, 1, 2], dtype=torch.int32)
    weight = torch.empty(3, 1)
    call(
        twin.edge_softmax,
        indptr,
        indices,
        torch.tensor([[1000.0], [1000.0], [-1000.0]]),
        torch.zeros(1, 1),
        1.0,
        None,
        weight,
    )
    assert weight.view(-1).tolist() == [0.5, 0.5, 0.0]
