"""Kernels of sums by pairs of relation and row, against a row per edge; tiles of rows in registers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from numpy.typing import NDArray
from tests.ops.aggregation.test_relation_matmul import (
    RELATIONS,
    TOLERANCE,
    assert_same,
    matrices,
    naive_sum,
    star,
    typed,
)
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.aggregation import pair_matmul
from outgrow.ops.aggregation.relation_matmul import relation_matmul_sum
from outgrow.ops.backend import serial_kernel
from outgrow.ops.csc import transpose
from outgrow.ops.kernels.register_tiles import add_product
from support import Drawn, bipartite, normal, one_kernel_thread, random_topology

Array = NDArray[Any]


def use_pair_kernels() -> AbstractContextManager[object]:
    """Sums of pairs by the kernels of large graphs."""
    return patch.object(pair_matmul, "LEAST_NUMBERS", 0)


def check(edges: Edges, dtype: torch.dtype = torch.float64) -> None:
    with use_pair_kernels():
        src, weight = normal(edges.num_src, 3, dtype=dtype), normal(edges.num_edges, 1, dtype=dtype)
        assert pair_matmul.fits_pair_kernels(edges, src, weight, matrices(1, dtype))
        assert_same(edges, 1, 1, dtype)
        # Sources without a gradient: that of the matrices comes from the in-edges.
        grads, scale = [], normal(edges.num_dst, 2, seed=4, dtype=dtype)
        for sums in (relation_matmul_sum, naive_sum):
            matrix = matrices(1, dtype).requires_grad_()
            grads.append(torch.autograd.grad((sums(edges, src, weight, matrix) * scale).sum(), matrix)[0])
    torch.testing.assert_close(*grads, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@given(drawn=bipartite())
@settings(deadline=None, max_examples=40)
def test_any_graph(drawn: Drawn) -> None:
    check(typed(drawn.edges()))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_types(dtype: torch.dtype) -> None:
    # A row with more edges than a part of the work is cut.
    for edges in (random_topology(200, 1500).block.edges, star(1500, incoming=True), star(1500, incoming=False)):
        check(typed(edges), dtype)


def test_parts_of_several_blocks_and_many_pairs() -> None:
    check(typed(random_topology(60_000, 150_000).block.edges))


@pytest.mark.parametrize("rows", [1, 60])
def test_rows_that_are_parts_of_wider_ones(rows: int) -> None:
    edges = typed(random_topology(rows, 4 * rows).block.edges)
    wide, weight = normal(rows, 8), normal(edges.num_edges, 1, seed=3)
    with use_pair_kernels():
        parts = [relation_matmul_sum(edges, part, weight, matrices(1)) for part in (wide[:, 1:4], wide[:, 1:4].clone())]
    assert torch.equal(*parts)


def test_threads_do_not_matter() -> None:
    edges = typed(random_topology(3000, 40_000).block.edges)
    shapes = (3000, 3), (edges.num_edges, 1), (RELATIONS, 1, 3, 2)
    src, weight, matrix = (normal(*shape, dtype=torch.float32) for shape in shapes)
    leaves = [src.requires_grad_(), matrix.requires_grad_()]

    def everything() -> list[Tensor]:
        out = relation_matmul_sum(edges, src, weight, matrix)
        alone = relation_matmul_sum(edges, src.detach(), weight, matrix)
        grads = torch.autograd.grad(out.square().sum(), leaves)
        return [out, *grads, *torch.autograd.grad(alone.square().sum(), matrix)]

    with use_pair_kernels():
        many = everything()
        with one_kernel_thread():
            one = everything()
    assert all(map(torch.equal, many, one))


def test_what_the_kernels_do_not_take() -> None:
    edges = typed(random_topology(60, 300).block.edges)
    src, weight = normal(60, 3), normal(edges.num_edges, 1)

    def fits(src: Tensor, weight: Tensor, matrix: Tensor) -> bool:
        return pair_matmul.fits_pair_kernels(edges, src, weight, matrix)

    with use_pair_kernels():
        assert fits(src, weight, matrices(1))
        assert not fits(src.half(), weight, matrices(1))
        assert not fits(normal(60, 6), weight, matrices(2))
        assert not fits(src, normal(edges.num_edges, 2), matrices(1))
        assert not fits(normal(60, 65), weight, matrices(1, height=65))
    assert not fits(src, weight, matrices(1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tiles_of_any_height_have_the_same_sums(dtype: type) -> None:
    rng = np.random.default_rng(0)
    factors, rows = (rng.standard_normal(shape).astype(dtype) for shape in ((11, 7), (9, 20)))
    places, found = np.array([3, 0, 12, 5, 6, 7, 8, 1, 2, 11, 10]), []
    for height in (1, 2, 4):

        def multiply(out: Array, factors: Array, rows: Array, places: Array, height: int = height) -> None:
            # Rows 2 to 8 of the second factor, and columns 16 of 20.
            add_product(factors, (1, 10), rows, (2, 9), out, places, height, 16)

        out = np.ones((13, 20), dtype)
        serial_kernel(multiply)(out, factors, rows, places)
        found.append(out)
    right = np.ones((13, 20))
    right[places[1:10], :16] += factors[1:10].astype(np.float64) @ rows[2:9, :16]
    np.testing.assert_allclose(found[0], right, rtol=1e-5)
    assert all(np.array_equal(each, found[0]) for each in found)


def matrix_gradient_of_one_part() -> AbstractContextManager[object]:
    """The gradient of the matrices is that of the first part of the work."""
    make_kernel = pair_matmul.make_pair_kernel

    def make(*sizes: int) -> Callable[..., None]:
        def run(parts: Array, *given: Any) -> None:
            make_kernel(*sizes)(parts, *given)
            if given[-1] is not None:
                given[-1][len(given[-1]) // len(parts) :] = 0

        return run

    return patch.object(pair_matmul, "make_pair_kernel", make)


def weights_in_the_order_of_the_sources() -> AbstractContextManager[object]:
    """Positions of edges are forgotten when out-edges are listed."""
    return patch.object(
        pair_matmul,
        "transpose",
        lambda edges: transpose(edges)._replace(edge=torch.arange(edges.num_edges, dtype=torch.int32)),
    )
