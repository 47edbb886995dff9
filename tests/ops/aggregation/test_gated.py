"""The gated sum against one that makes a row per edge, forward and backward."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.aggregation.gated import Gated
from support import Drawn, bipartite, block_of, destinations_of, normal, one_kernel_thread, random_topology

GATED = Gated()
TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-12}


def naive(edges: Edges, src: Tensor, dst: Tensor | None, weight: Tensor | None) -> Tensor:
    rows, owner = src[edges.indices.long()], destinations_of(edges)
    score = rows[:, :1] if dst is None else rows[:, :1] + dst[owner]
    message = score.sigmoid() * rows[:, 1:]
    message = message if weight is None else weight[:, :, None] * message
    return torch.zeros(edges.num_dst, 1, src.shape[2], dtype=src.dtype).index_add(0, owner, message)


def results(aggregate: object, edges: Edges, src: Tensor, dst: Tensor | None, weight: Tensor | None) -> list[Tensor]:
    """Result and gradients."""
    assert callable(aggregate)
    leaves = [given.clone().requires_grad_() for given in (src, dst) if given is not None]
    out = aggregate(edges, leaves[0], None if dst is None else leaves[1], weight)
    return [out.detach(), *torch.autograd.grad((out * normal(*out.shape, seed=3, dtype=out.dtype)).sum(), leaves)]


def ours(edges: Edges, src: Tensor, dst: Tensor | None, weight: Tensor | None) -> Tensor:
    return GATED(block_of(edges), src, dst, weight)


def assert_same(edges: Edges, src: Tensor, dst: Tensor | None, weight: Tensor | None) -> None:
    pairs = zip(results(ours, edges, src, dst, weight), results(naive, edges, src, dst, weight), strict=True)
    for mine, other in pairs:
        torch.testing.assert_close(mine, other, rtol=TOLERANCE[src.dtype], atol=TOLERANCE[src.dtype])


@given(drawn=bipartite(), columns=st.integers(1, 5), with_dst=st.booleans(), weighted=st.booleans())
@settings(deadline=None, max_examples=60)
def test_any_graph(drawn: Drawn, columns: int, with_dst: bool, weighted: bool) -> None:
    edges = drawn.edges()
    dst = normal(edges.num_dst, 1, columns, seed=1) if with_dst else None
    weight = normal(edges.num_edges, 1, seed=2) if weighted else None
    assert_same(edges, normal(edges.num_src, 2, columns), dst, weight)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("weighted", [False, True])
def test_types(dtype: torch.dtype, index: torch.dtype, weighted: bool) -> None:
    edges = random_topology(200, 1500, index=index).block.edges
    weight = normal(edges.num_edges, 1, seed=2, dtype=dtype) if weighted else None
    assert_same(edges, normal(200, 2, 33, dtype=dtype), normal(200, 1, 33, seed=1, dtype=dtype), weight)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [1.0, 39.9, 41.0, 100.0, 339.0, 341.0, 800.0, 1e6])
def test_scores_of_any_size(dtype: torch.dtype, size: float) -> None:
    """Large scores that cancel are where products of exponentials would fail."""
    edges = random_topology(30, 200).block.edges
    src, dst = normal(30, 2, 5, dtype=dtype), normal(30, 1, 5, seed=1, dtype=dtype)
    src[:, 0] = src[:, 0].clamp(-1, 1) + size
    dst[:] = dst.clamp(-1, 1) - size
    assert_same(edges, src, dst, None)
    assert_same(edges, src, -dst, None)
    assert_same(edges, -src, dst, None)


def test_a_score_that_is_not_a_number_stays_one() -> None:
    edges = Drawn(2, 2, [(0, 0), (1, 1)]).edges()
    src = normal(2, 2, 3)
    src[0, 0, 1] = torch.nan
    out = ours(edges, src, normal(2, 1, 3), None)
    assert out.isnan().nonzero().tolist() == [[0, 0, 1]]


def test_gradients_are_those_of_finite_differences() -> None:
    edges = random_topology(9, 20).block.edges
    src, dst = normal(9, 2, 3).requires_grad_(), normal(9, 1, 3, seed=1).requires_grad_()
    weight = normal(edges.num_edges, 1, seed=2)
    assert torch.autograd.gradcheck(lambda s, d: ours(edges, s, d, weight), (src, dst))


def test_rows_that_are_not_contiguous() -> None:
    edges = random_topology(40, 200).block.edges
    src, dst = normal(40, 6, 2).transpose(1, 2)[:, :, 1:4], normal(40, 6, 1).transpose(1, 2)[:, :, 1:4]
    assert not src.is_contiguous()
    assert_same(edges, src, dst, None)
    leaf = src.contiguous().requires_grad_()
    (gradient,) = torch.autograd.grad(ours(edges, leaf, dst, None).sum(), leaf)
    (expected,) = torch.autograd.grad(naive(edges, leaf, dst, None).sum(), leaf)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


def test_threads_do_not_matter() -> None:
    edges = random_topology(300, 4000).block.edges
    given = edges, normal(300, 2, 17, dtype=torch.float32), normal(300, 1, 17, seed=1, dtype=torch.float32), None
    many = results(ours, *given)
    with one_kernel_thread():
        one = results(ours, *given)
    assert all(map(torch.equal, many, one))


def test_no_tensor_of_edges_by_columns_is_kept() -> None:
    edges = random_topology(30, 600).block.edges
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        ours(edges, normal(30, 2, 8).requires_grad_(), normal(30, 1, 8).requires_grad_(), None)
    assert kept
    assert all(len(tensor) == 30 for tensor in kept)
