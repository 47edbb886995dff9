"""The weighted sum against one that makes a row per edge, forward and backward."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from support import Drawn, bipartite, block_of, naive_sum, normal, random_topology

SUM = WeightedSum()
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


def weights(edges: Edges, heads: int, dtype: torch.dtype) -> Tensor | None:
    return normal(edges.num_edges, heads, seed=2, dtype=dtype) if heads else None


def assert_same(edges: Edges, src: Tensor, weight: Tensor | None) -> None:
    """Result and gradients equal those of the naive sum."""
    results = []
    for aggregate in (lambda s, w: SUM(block_of(edges), s, None, w), lambda s, w: naive_sum(edges, s, w)):
        leaves = [src.clone().requires_grad_()] + ([] if weight is None else [weight.clone().requires_grad_()])
        out = aggregate(leaves[0], None if weight is None else leaves[1])
        probe = normal(*out.shape, seed=3, dtype=out.dtype)
        results.append([out.detach(), *torch.autograd.grad((out * probe).sum(), leaves)])
    for ours, naive in zip(*results, strict=True):
        torch.testing.assert_close(ours, naive, rtol=TOLERANCE[src.dtype], atol=TOLERANCE[src.dtype])


@given(drawn=bipartite(), heads=st.integers(0, 3), broadcast=st.booleans(), columns=st.integers(1, 5))
@settings(deadline=None, max_examples=60)
def test_any_graph(drawn: Drawn, heads: int, broadcast: bool, columns: int) -> None:
    edges = drawn.edges()
    channels = 1 if broadcast else max(1, heads)
    src = normal(edges.num_src, channels, columns)
    assert_same(edges, src, weights(edges, heads, torch.float64))


@pytest.mark.parametrize(
    ("dtype", "index"), [(torch.float32, torch.int32), (torch.float64, torch.int64), (torch.float64, torch.int32)]
)
@pytest.mark.parametrize(("heads", "channels"), [(1, 1), (4, 4), (4, 1)])
def test_types(dtype: torch.dtype, index: torch.dtype, heads: int, channels: int) -> None:
    edges = random_topology(200, 1500, index=index).block.edges
    assert_same(edges, normal(200, channels, 33, dtype=dtype), weights(edges, heads, dtype))


def test_no_weights_with_several_channels() -> None:
    edges = random_topology(50, 300).block.edges
    assert_same(edges, normal(50, 3, 7), None)


@pytest.mark.parametrize(("num_src", "num_dst"), [(0, 0), (1, 1), (0, 3), (3, 0), (4, 2)])
def test_no_edges(num_src: int, num_dst: int) -> None:
    edges = Drawn(num_src, num_dst, []).edges()
    src = normal(num_src, 2, 3).requires_grad_()
    out = SUM(block_of(edges), src, None, normal(0, 2))
    assert torch.equal(out, torch.zeros(num_dst, 2, 3, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(out.sum(), src)
    assert torch.equal(gradient, torch.zeros_like(src))


@pytest.mark.parametrize(("heads", "channels"), [(2, 2), (2, 1)])
def test_gradients_are_those_of_finite_differences(heads: int, channels: int) -> None:
    edges = random_topology(9, 20).block.edges
    src, weight = normal(9, channels, 3).requires_grad_(), normal(edges.num_edges, heads, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda s, w: SUM(block_of(edges), s, None, w), (src, weight))


def test_rows_that_are_not_contiguous() -> None:
    edges = random_topology(40, 200).block.edges
    wide = normal(40, 6, 2)
    weight = weights(edges, 2, torch.float64)
    sliced = wide.transpose(1, 2)[:, :, 1:4]
    assert not sliced.is_contiguous()
    assert_same(edges, sliced, weight)
    src = sliced.contiguous().requires_grad_()
    out = SUM(block_of(edges), src, None, weight)
    (gradient,) = torch.autograd.grad(out.sum(), src)  # the gradient of a sum is an expanded tensor of stride 0
    (expected,) = torch.autograd.grad(naive_sum(edges, src, weight).sum(), src)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


def test_the_transpose_reads_no_source_row() -> None:
    edges = random_topology(30, 120).block.edges
    weight, grad = normal(edges.num_edges, 1), normal(30, 1, 4, seed=5)
    src = normal(30, 1, 4, seed=6).requires_grad_()
    (expected,) = torch.autograd.grad(naive_sum(edges, src, weight), src, grad)
    torch.testing.assert_close(WeightedSum.source_gradient(edges, weight, grad, 1), expected, rtol=1e-12, atol=1e-12)


def test_a_sum_over_parts_of_the_edges_is_the_sum_of_the_sums() -> None:
    drawn = Drawn(6, 4, [(s, d) for s in range(6) for d in range(3)])
    half = Drawn(6, 4, drawn.pairs[::2]), Drawn(6, 4, drawn.pairs[1::2])
    src = normal(6, 1, 5)
    whole = SUM(block_of(drawn.edges()), src, None, None)
    parts = sum(SUM(block_of(part.edges()), src, None, None) for part in half)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
    assert SUM.additive
    assert SUM.sliceable


def test_no_row_of_features_is_kept_for_the_backward_pass_of_fixed_weights() -> None:
    edges = random_topology(30, 120).block.edges
    src = normal(30, 1, 4).requires_grad_()
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        SUM(block_of(edges), src, None, normal(edges.num_edges, 1))
    assert all(tensor.shape != src.shape for tensor in kept)


@pytest.mark.parametrize(("heads", "channels"), [(0, 1), (1, 1), (3, 3), (3, 1)])
def test_the_transpose_adds_to_what_is_there(heads: int, channels: int) -> None:
    edges = random_topology(9, 60).block.edges
    weight, grad = weights(edges, heads, torch.float64), normal(9, max(1, heads), 5)
    there = normal(9, channels, 5, seed=4)
    expected = there + SUM.source_gradient(edges, weight, grad, channels)
    found = SUM.source_gradient(edges, weight, grad, channels, into=there)
    assert found.data_ptr() == there.data_ptr()
    torch.testing.assert_close(there, expected, rtol=1e-12, atol=1e-12)
