"""The softmax over in-edges against one written with a loop over destinations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from outgrow.core.block import Edges
from outgrow.ops.attention import attention_weight
from support import Drawn, bipartite, destinations_of, normal, random_topology


def naive(edges: Edges, src: Tensor, dst: Tensor, slope: float) -> Tensor:
    """One softmax for each destination."""
    raw = functional.leaky_relu(src[edges.indices.long()] + dst[destinations_of(edges)], slope)
    sizes = (edges.indptr[1:] - edges.indptr[:-1]).tolist()
    return torch.cat([part.softmax(0) for part in raw.split(sizes)]) if sizes else raw


def assert_same(edges: Edges, src: Tensor, dst: Tensor, tolerance: float) -> None:
    results = []
    for function in (attention_weight, naive):
        leaves = src.clone().requires_grad_(), dst.clone().requires_grad_()
        out = function(edges, *leaves, 0.2)
        probe = normal(*out.shape, seed=7, dtype=out.dtype)
        results.append((out.detach(), *torch.autograd.grad((out * probe).sum(), leaves)))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


@given(drawn=bipartite(), heads=st.integers(1, 3), spread=st.sampled_from([0.1, 1.0, 30.0]))
@settings(deadline=None, max_examples=40)
def test_any_graph(drawn: Drawn, heads: int, spread: float) -> None:
    edges = drawn.edges()
    assert_same(edges, spread * normal(edges.num_src, heads), normal(edges.num_dst, heads, seed=1), 1e-12)


@pytest.mark.parametrize(("dtype", "index", "tolerance"), [(torch.float32, torch.int64, 1e-5)])
def test_float32_and_wide_indices(dtype: torch.dtype, index: torch.dtype, tolerance: float) -> None:
    edges = random_topology(60, 400, index=index).block.edges
    assert_same(edges, normal(60, 4, dtype=dtype), normal(60, 4, seed=1, dtype=dtype), tolerance)


def test_weights_of_a_destination_sum_to_one() -> None:
    edges = random_topology(60, 400).block.edges
    weight = attention_weight(edges, normal(60, 2), normal(60, 2, seed=1), 0.2)
    total = torch.zeros(60, 2, dtype=torch.float64).index_add(0, destinations_of(edges), weight)
    has_edges = (edges.indptr[1:] > edges.indptr[:-1])[:, None].double().expand(60, 2)
    torch.testing.assert_close(total, has_edges.contiguous(), rtol=0, atol=1e-14)


def test_huge_scores_do_not_overflow() -> None:
    edges = Drawn(2, 1, [(0, 0), (1, 0)]).edges()
    weight = attention_weight(edges, torch.tensor([[900.0], [1000.0]]), torch.tensor([[1e4]]), 0.2)
    assert weight.flatten().tolist() == pytest.approx([0.0, 1.0], abs=1e-30)


def test_gradients_are_those_of_finite_differences() -> None:
    edges = random_topology(8, 20).block.edges
    scores = normal(8, 2).requires_grad_(), normal(8, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda s, d: attention_weight(edges, s, d, 0.2), scores)
