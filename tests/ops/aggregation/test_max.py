"""The maximum over in-edges against a loop over edges, ties and nodes without in-edges included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.aggregation.max import Max
from support import Drawn, bipartite, block_of, normal, random_topology

MAX = Max()


def naive(edges: Edges, src: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum and gradient of the sources, number by number; the first of equal edges wins."""
    out, d_src = torch.zeros(edges.num_dst, *src.shape[1:], dtype=src.dtype), torch.zeros_like(src)
    indptr, indices = edges.indptr.tolist(), edges.indices.tolist()
    for v in range(edges.num_dst):
        sources = indices[indptr[v] : indptr[v + 1]]
        for c in range(src.shape[1]):
            for f in range(src.shape[2]):
                if sources:
                    best = max(sources, key=lambda u, c=c, f=f: float(src[u, c, f]))  # the first of equals
                    out[v, c, f] = src[best, c, f]
                    d_src[best, c, f] += grad[v, c, f]
    return out, d_src


def assert_same(edges: Edges, src: Tensor) -> None:
    leaf = src.clone().requires_grad_()
    out = MAX(block_of(edges), leaf, None, None)
    grad = normal(*out.shape, seed=4, dtype=src.dtype)
    (d_src,) = torch.autograd.grad(out, leaf, grad)
    expected, d_expected = naive(edges, src, grad)
    assert torch.equal(out, expected)
    torch.testing.assert_close(d_src, d_expected, rtol=1e-5, atol=1e-6 if src.dtype == torch.float32 else 1e-12)


@given(drawn=bipartite(), channels=st.integers(1, 2), columns=st.integers(1, 4), levels=st.integers(1, 50))
@settings(deadline=None, max_examples=40)
def test_any_graph_with_few_levels_so_that_there_are_ties(
    drawn: Drawn, channels: int, columns: int, levels: int
) -> None:
    edges = drawn.edges()
    assert_same(edges, (normal(edges.num_src, channels, columns) * levels).round() / levels)


def test_float32_and_wide_indices() -> None:
    edges = random_topology(30, 150, index=torch.int64).block.edges
    assert_same(edges, normal(30, 1, 9, dtype=torch.float32))


def test_a_tie_goes_to_the_first_edge() -> None:
    edges = Drawn(3, 1, [(2, 0), (0, 0), (1, 0), (0, 0)]).edges()
    src = torch.tensor([[[1.0, 5.0]], [[1.0, 0.0]], [[1.0, 5.0]]], dtype=torch.float64, requires_grad=True)
    out = MAX(block_of(edges), src, None, None)
    assert out.tolist() == [[[1.0, 5.0]]]
    (grad,) = torch.autograd.grad(out.sum(), src)
    assert grad[:, 0].tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]


def test_parallel_edges_count_once() -> None:
    edges = Drawn(1, 1, [(0, 0)] * 3).edges()
    src = torch.ones(1, 1, 2, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(MAX(block_of(edges), src, None, None).sum(), src)
    assert grad.tolist() == [[[1.0, 1.0]]]


def test_only_negative_values() -> None:
    edges = Drawn(2, 2, [(0, 0), (1, 0)]).edges()
    src = torch.tensor([[[-3.0]], [[-2.0]]], dtype=torch.float64)
    assert MAX(block_of(edges), src, None, None).flatten().tolist() == [-2.0, 0.0]


def test_gradients_are_those_of_finite_differences_away_from_ties() -> None:
    edges = random_topology(9, 25).block.edges
    src = normal(9, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: MAX(block_of(edges), s, None, None), (src,))


@pytest.mark.parametrize(("num_src", "num_dst"), [(0, 0), (0, 3), (3, 0), (4, 2)])
def test_no_edges(num_src: int, num_dst: int) -> None:
    assert_same(Drawn(num_src, num_dst, []).edges(), normal(num_src, 1, 2))


def test_it_says_that_it_is_no_sum() -> None:
    assert MAX.sliceable
    assert not MAX.additive
