"""The softmax over in-edges against one written with a loop over destinations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from outgrow.core.block import Edges
from outgrow.ops.aggregation.attention import attention_weight
from outgrow.ops.kernels.work_split import balanced_work, split_rows
from support import Drawn, bipartite, destinations_of, normal, random_topology


def naive(edges: Edges, src: Tensor, dst: Tensor, slope: float, edge: Tensor | None = None) -> Tensor:
    """One softmax for each destination."""
    score = src[edges.indices.long()] + dst[destinations_of(edges)]
    raw = functional.leaky_relu(score if edge is None else score + edge, slope)
    sizes = (edges.indptr[1:] - edges.indptr[:-1]).tolist()
    return torch.cat([part.softmax(0) for part in raw.split(sizes)]) if sizes else raw


def assert_same(
    edges: Edges, src: Tensor, dst: Tensor, tolerance: float, edge: Tensor | None = None, slope: float = 0.2
) -> None:
    results = []
    for function in (attention_weight, naive):
        leaves = [x.clone().requires_grad_() for x in (src, dst, edge) if x is not None]
        out = function(edges, *leaves[:2], slope, *leaves[2:])
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


@given(drawn=bipartite(), heads=st.integers(1, 3), slope=st.sampled_from([0.0, 0.2, 1.0, 1.5]))
@settings(deadline=None, max_examples=40)
def test_edges_with_scores(drawn: Drawn, heads: int, slope: float) -> None:
    edges = drawn.edges()
    scores = normal(edges.num_src, heads), normal(edges.num_dst, heads, seed=1)
    assert_same(edges, *scores, 1e-12, normal(edges.num_edges, heads, seed=2), slope)


def test_gradients_of_edge_scores_are_those_of_finite_differences() -> None:
    edges = random_topology(8, 20).block.edges
    shapes = (8, 2), (8, 2), (edges.num_edges, 2)
    scores = [normal(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]
    assert torch.autograd.gradcheck(lambda s, d, e: attention_weight(edges, s, d, 0.2, e), scores)


def test_only_wanted_gradients() -> None:
    edges = random_topology(8, 20).block.edges
    for wanted in range(3):
        shapes = (8, 2), (8, 2), (edges.num_edges, 2)
        src, dst, edge = (normal(*shape).requires_grad_(at == wanted) for at, shape in enumerate(shapes))
        attention_weight(edges, src, dst, 0.2, edge).square().sum().backward()
        assert [x.grad is not None for x in (src, dst, edge)] == [at == wanted for at in range(3)]


def in_edges(degrees: list[int], num_src: int) -> Edges:
    """Destinations with these numbers of in-edges, from sources at random."""
    src = np.random.default_rng(0).integers(0, num_src, sum(degrees))
    return Drawn(
        num_src, len(degrees), list(zip(src.tolist(), np.arange(len(degrees)).repeat(degrees), strict=True))
    ).edges()


@pytest.mark.parametrize("with_edges", [False, True])
@pytest.mark.parametrize(
    ("degrees", "cut"),
    [
        ([3, 4000, 0, 5, 2000, 1, 300], [1, 4]),
        ([5000], [0]),
        ([255, 257, 255], []),  # all edges of a row that is heavier than a part are in one
        ([255, 260, 255], [1]),
    ],
)
def test_rows_that_are_cut(degrees: list[int], cut: list[int], with_edges: bool) -> None:
    edges = in_edges(degrees, 60)
    assert set(cut) <= set(split_rows(balanced_work(edges.indptr.numpy()), edges.indptr.numpy()).tolist())
    scores = 3 * normal(60, 2), normal(len(degrees), 2, seed=1)
    assert_same(edges, *scores, 1e-12, 2 * normal(edges.num_edges, 2, seed=2) if with_edges else None)


def test_huge_scores_of_a_row_that_is_cut_do_not_overflow() -> None:
    edges = in_edges([4000], 60)
    src = torch.full((60, 1), 900.0)
    src[3] = 1000.0
    weight = attention_weight(edges, src, torch.tensor([[1e4]]), 0.2).flatten()
    top = edges.indices == 3
    assert bool((weight[~top] < 1e-30).all())
    torch.testing.assert_close(weight[top], torch.full((int(top.sum()),), 1 / int(top.sum())))


def test_scores_that_are_columns_of_something_else() -> None:
    edges = random_topology(60, 400).block.edges
    assert_same(edges, normal(3, 60).T, normal(3, 60, seed=1).T, 1e-12, normal(3, edges.num_edges, seed=2).T)
