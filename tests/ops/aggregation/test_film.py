"""The sum of modulated messages against one that makes a row per edge, forward and backward."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from outgrow.core.block import Edges
from outgrow.ops.aggregation.film import Film
from support import Drawn, bipartite, block_of, destinations_of, normal, one_kernel_thread, random_topology

TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-12}
SLOPES = [0.0, 0.2, 1.0]


def naive(edges: Edges, src: Tensor, dst: Tensor, weight: Tensor | None, slope: float) -> Tensor:
    rows, mine = src[edges.indices.long()], dst[destinations_of(edges)]
    message = functional.leaky_relu(mine[:, :1] * rows + mine[:, 1:], slope)
    message = message if weight is None else weight[:, :, None] * message
    out = torch.zeros(edges.num_dst, 1, src.shape[2], dtype=src.dtype)
    return out.index_add(0, destinations_of(edges), message)


def ours(edges: Edges, src: Tensor, dst: Tensor, weight: Tensor | None, slope: float) -> Tensor:
    return Film(slope)(block_of(edges), src, dst, weight)


def results(
    aggregate: object, edges: Edges, src: Tensor, dst: Tensor, weight: Tensor | None, slope: float
) -> list[Tensor]:
    """Result and gradients."""
    assert callable(aggregate)
    leaves = [src.clone().requires_grad_(), dst.clone().requires_grad_()]
    out = aggregate(edges, *leaves, weight, slope)
    return [out.detach(), *torch.autograd.grad((out * normal(*out.shape, seed=3, dtype=out.dtype)).sum(), leaves)]


def assert_same(edges: Edges, src: Tensor, dst: Tensor, weight: Tensor | None, slope: float) -> None:
    given = edges, src, dst, weight, slope
    for mine, other in zip(results(ours, *given), results(naive, *given), strict=True):
        torch.testing.assert_close(mine, other, rtol=TOLERANCE[src.dtype], atol=TOLERANCE[src.dtype])


@given(drawn=bipartite(), columns=st.integers(1, 5), weighted=st.booleans(), slope=st.sampled_from(SLOPES))
@settings(deadline=None, max_examples=60)
def test_any_graph(drawn: Drawn, columns: int, weighted: bool, slope: float) -> None:
    edges = drawn.edges()
    weight = normal(edges.num_edges, 1, seed=2) if weighted else None
    assert_same(edges, normal(edges.num_src, 1, columns), normal(edges.num_dst, 2, columns, seed=1), weight, slope)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("weighted", [False, True])
def test_types(dtype: torch.dtype, index: torch.dtype, weighted: bool) -> None:
    edges = random_topology(200, 1500, index=index).block.edges
    weight = normal(edges.num_edges, 1, seed=2, dtype=dtype) if weighted else None
    assert_same(edges, normal(200, 1, 33, dtype=dtype), normal(200, 2, 33, seed=1, dtype=dtype), weight, 0.0)


@pytest.mark.parametrize("slope", SLOPES)
def test_gradients_are_those_of_finite_differences(slope: float) -> None:
    edges = random_topology(9, 20).block.edges
    src, dst = normal(9, 1, 3).requires_grad_(), normal(9, 2, 3, seed=1).requires_grad_()
    weight = normal(edges.num_edges, 1, seed=2)
    assert torch.autograd.gradcheck(lambda s, d: ours(edges, s, d, weight, slope), (src, dst))


def test_rows_that_are_not_contiguous() -> None:
    edges = random_topology(40, 200).block.edges
    src, dst = normal(40, 6, 1).transpose(1, 2)[:, :, 1:4], normal(40, 6, 2).transpose(1, 2)[:, :, 1:4]
    assert not dst.is_contiguous()
    assert_same(edges, src, dst, None, 0.0)
    leaf = src.contiguous().requires_grad_()
    (gradient,) = torch.autograd.grad(ours(edges, leaf, dst, None, 0.0).sum(), leaf)
    (expected,) = torch.autograd.grad(naive(edges, leaf, dst, None, 0.0).sum(), leaf)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


def test_threads_do_not_matter() -> None:
    edges = random_topology(300, 4000).block.edges
    given = edges, normal(300, 1, 17, dtype=torch.float32), normal(300, 2, 17, seed=1, dtype=torch.float32), None, 0.0
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
        ours(edges, normal(30, 1, 8).requires_grad_(), normal(30, 2, 8).requires_grad_(), None, 0.0)
    assert kept
    assert all(len(tensor) == 30 for tensor in kept)
