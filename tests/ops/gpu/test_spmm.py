"""Sums of rows on a CUDA device against sums with one row per edge."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType

import pytest
import torch

from outgrow.core.block import Edges
from outgrow.ops.csc import cached_transpose
from support import destinations_of, naive_sum, normal, random_topology

Call = Callable[..., None]
INDEX = {torch.float32: torch.int32, torch.float64: torch.int64}
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
CHANNELS = [(1, 1), (3, 3), (1, 3)]


def graph(index: torch.dtype = torch.int32, num_edges: int = 16) -> Edges:
    """8 nodes: some without edges, one with many."""
    return random_topology(8, num_edges, index=index).block.edges


def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Not numbers, to be written."""
    return torch.full(shape, torch.nan, dtype=dtype)


def assert_close(mine: torch.Tensor, expected: torch.Tensor) -> None:
    limit = TOLERANCE[mine.dtype]
    torch.testing.assert_close(mine.double(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("channels", "weights"), CHANNELS)
def test_gather_rows(twin: ModuleType, call: Call, dtype: torch.dtype, channels: int, weights: int) -> None:
    edges = graph(INDEX[dtype])
    rows, weight = normal(8, channels, 5, dtype=dtype), normal(edges.num_edges, weights, seed=1, dtype=dtype)
    out = empty(8, weights, 5, dtype=dtype)
    call(twin.spmm, edges.indptr, edges.indices, None, weight, rows, out)
    assert_close(out, naive_sum(edges, rows.double(), weight.double()))


def test_gather_rows_onto_others(twin: ModuleType, call: Call) -> None:
    edges, rows, out = graph(), normal(8, 2, 5), normal(8, 2, 5, seed=1)
    expected = out + naive_sum(edges, rows, None)
    call(partial(twin.spmm, add=True), edges.indptr, edges.indices, None, None, rows, out)
    assert_close(out, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gather_rows_of_narrow_numbers_without_weights(twin: ModuleType, call: Call, dtype: torch.dtype) -> None:
    edges, rows, out = graph(), normal(8, 2, 7, dtype=dtype), empty(8, 2, 7, dtype=torch.float32)
    call(twin.spmm, edges.indptr, edges.indices, None, None, rows, out)
    assert_close(out, naive_sum(edges, rows.double(), None))


def test_gather_rows_of_several_blocks_of_columns(twin: ModuleType, call: Call) -> None:
    edges, rows = graph(num_edges=8), normal(8, 1, 300)
    out = empty(8, 1, 300, dtype=torch.float64)
    call(twin.spmm, edges.indptr, edges.indices, None, None, rows, out)
    assert_close(out, naive_sum(edges, rows, None))


@pytest.mark.parametrize("num_edges", [0, 1, 2])
def test_few_edges(twin: ModuleType, call: Call, num_edges: int) -> None:
    edges = Edges(indptr=torch.tensor([0, 0, num_edges, num_edges]), indices=torch.arange(num_edges), num_src=2)
    rows, out = normal(2, 1, 3), empty(3, 1, 3, dtype=torch.float64)
    call(twin.spmm, edges.indptr, edges.indices, None, None, rows, out)
    assert_close(out, naive_sum(edges, rows, None))


@pytest.mark.parametrize("degree", [4, 5, 6, 9, 10, 11])
def test_rows_that_begin_and_end_at_cuts(twin: ModuleType, call: Call, degree: int) -> None:
    edges = Edges(
        indptr=torch.tensor([0, degree, degree, 2 * degree, 2 * degree + 1]),
        indices=torch.arange(2 * degree + 1, dtype=torch.int32),
        num_src=2 * degree + 1,
    )
    rows, out = normal(edges.num_src, 1, 2), empty(4, 1, 2, dtype=torch.float64)
    call(twin.spmm, edges.indptr, edges.indices, None, None, rows, out)
    assert_close(out, naive_sum(edges, rows, None))


def test_no_rows_and_no_columns(twin: ModuleType, call: Call) -> None:
    edges = graph()
    out = torch.empty(8, 1, 0)
    call(twin.spmm, edges.indptr, edges.indices, None, None, torch.empty(8, 1, 0), out)
    nothing = torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.int32)
    call(twin.spmm, *nothing, None, None, torch.empty(0, 1, 4), torch.empty(0, 1, 4))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("channels", "weights"), CHANNELS)
def test_the_transposed_sum_and_the_gradient_of_the_weights(
    twin: ModuleType, call: Call, dtype: torch.dtype, channels: int, weights: int
) -> None:
    edges = graph(INDEX[dtype])
    back, at = cached_transpose(edges), destinations_of(edges)
    grad, own = normal(8, weights, 6, dtype=dtype), normal(8, channels, 6, seed=2, dtype=dtype)
    weight = normal(edges.num_edges, weights, seed=1, dtype=dtype)
    message = weight.double()[:, :, None] * grad.double()[at]
    message = message if channels == weights else message.sum(1, keepdim=True)
    expected = torch.zeros(8, channels, 6, dtype=torch.float64).index_add(0, edges.indices.long(), message)
    products = (own.double()[edges.indices.long()] * grad.double()[at]).sum(2)

    out, d_weight = empty(8, channels, 6, dtype=dtype), empty(edges.num_edges, weights, dtype=dtype)
    call(twin.spmm_backward_fused, back.indptr, back.indices, back.edge, weight, grad, own, out, d_weight)
    assert_close(out, expected)
    assert_close(d_weight, products)

    summed = empty(8, channels, 6, dtype=dtype)
    function = twin.spmm if channels == weights else twin.spmm_sum_heads
    call(function, back.indptr, back.indices, back.edge, weight, grad, summed)
    assert_close(summed, expected)

    dots = empty(edges.num_edges, weights, dtype=dtype)
    call(twin.sddmm_dot, edges.indptr, edges.indices, own, grad, dots)
    assert_close(dots, products)


def test_dots_of_several_blocks_of_columns(twin: ModuleType, call: Call) -> None:
    edges, rows, other = graph(num_edges=6), normal(8, 1, 300), normal(8, 1, 300, seed=1)
    out = empty(edges.num_edges, 1, dtype=torch.float64)
    call(twin.sddmm_dot, edges.indptr, edges.indices, rows, other, out)
    assert_close(out, (rows[edges.indices.long()] * other[destinations_of(edges)]).sum(2))
