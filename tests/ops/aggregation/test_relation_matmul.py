"""Sums and dot products with a matrix per relation against ones with a row per edge."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.aggregation import block_matmul, pair_edges
from outgrow.ops.aggregation.relation_matmul import RelationMatmul, relation_dot, relation_matmul_sum
from outgrow.ops.linear import use_bfloat16_matmul
from support import (
    Drawn,
    bipartite,
    block_of,
    destinations_of,
    normal,
    one_kernel_thread,
    random_topology,
    topology_of,
    with_relations,
)

Array = NDArray[Any]

RELATIONS = 4
TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-12}


def typed(edges: Edges) -> Edges:
    """Of four relations the second has no edges."""
    kinds = torch.randint(RELATIONS - 1, (edges.num_edges,), generator=torch.Generator().manual_seed(0))
    return replace(edges, relation=(2 * kinds % 5).clamp(max=3).to(torch.int8), cache={})


def relation_of(edges: Edges) -> Tensor:
    assert edges.relation is not None
    return edges.relation.long()


def naive_sum(edges: Edges, src: Tensor, weight: Tensor, matrix: Tensor) -> Tensor:
    blocks = matrix.shape[1]
    rows = src[edges.indices.long()].unflatten(1, (blocks, -1))  # type: ignore[no-untyped-call]
    message = torch.einsum("ebi,ebij->ebj", weight[:, :, None] * rows, matrix[relation_of(edges)]).flatten(1)
    return src.new_zeros(edges.num_dst, message.shape[1]).index_add(0, destinations_of(edges), message)


def naive_dot(edges: Edges, src: Tensor, dst: Tensor, matrix: Tensor) -> Tensor:
    rows, others = (
        each.unflatten(1, (matrix.shape[1], -1)) for each in (src[edges.indices.long()], dst[destinations_of(edges)])
    )  # type: ignore[no-untyped-call]
    return torch.einsum("ebi,ebij,ebj->eb", rows, matrix[relation_of(edges)], others)


def matrices(blocks: int, dtype: torch.dtype = torch.float64, height: int = 3, width: int = 2) -> Tensor:
    return normal(RELATIONS, blocks, height, width, seed=1, dtype=dtype)


def assert_same(edges: Edges, blocks: int, weights: int, dtype: torch.dtype) -> None:
    matrix, count = matrices(blocks, dtype), edges.num_edges
    src, dst = normal(edges.num_src, 3 * blocks, dtype=dtype), normal(edges.num_dst, 2 * blocks, seed=2, dtype=dtype)
    weight = normal(count, weights, seed=3, dtype=dtype)
    # A constant weight serves all blocks.
    trained = [src, weight, matrix] if weights == blocks else [src, matrix]

    def both(sums: Callable[..., Tensor], dots: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [each.clone().requires_grad_() for each in trained]
        given = leaves if len(leaves) == 3 else [leaves[0], weight, leaves[1]]
        first = sums(edges, *given)
        others = [each.clone().requires_grad_() for each in (src, dst, matrix)]
        second = dots(edges, *others)
        grads = [
            *torch.autograd.grad((first * normal(*first.shape, seed=4, dtype=dtype)).sum(), leaves),
            *torch.autograd.grad((second * normal(*second.shape, seed=5, dtype=dtype)).sum(), others),
        ]
        return [first.detach(), second.detach(), *grads]

    for ours, naive in zip(both(relation_matmul_sum, relation_dot), both(naive_sum, naive_dot), strict=True):
        torch.testing.assert_close(ours, naive, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@given(drawn=bipartite(), blocks=st.integers(1, 3), shared=st.booleans(), most=st.integers(1, 20))
@settings(deadline=None, max_examples=60)
def test_any_graph_in_any_chunks(drawn: Drawn, blocks: int, shared: bool, most: int) -> None:
    with patch.object(pair_edges.PairEdges.chunks, "__defaults__", (most,)):
        assert_same(typed(drawn.edges()), blocks, 1 if shared else blocks, torch.float64)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("blocks", "weights"), [(1, 1), (4, 1), (4, 4)])
def test_types(dtype: torch.dtype, blocks: int, weights: int) -> None:
    assert_same(typed(random_topology(200, 1500).block.edges), blocks, weights, dtype)


def use_block_kernels() -> AbstractContextManager[object]:
    """Rows times small blocks by the kernels of large graphs."""
    return patch.object(block_matmul, "LEAST_NUMBERS", 0)


def star(count: int, *, incoming: bool) -> Edges:
    """Edges of many nodes to node 0, or from it to them."""
    ends = [(other % 300, 0) if incoming else (0, other % 300) for other in range(count)]
    return topology_of(300, ends).block.edges


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("weights", [1, 4])
def test_block_kernels(dtype: torch.dtype, weights: int) -> None:
    # A row with more edges than a part of the work is cut.
    for edges in (random_topology(200, 1500).block.edges, star(1500, incoming=True), star(1500, incoming=False)):
        with use_block_kernels():
            assert block_matmul.fits_block_kernels(edges, normal(1, 1, dtype=dtype), matrices(4, dtype))
            assert_same(typed(edges), 4, weights, dtype)


def test_block_kernels_read_columns_of_wider_rows() -> None:
    edges = typed(random_topology(60, 300).block.edges)
    wide, weight = normal(60, 24), normal(edges.num_edges, 4, seed=3)
    with use_block_kernels():
        parts = [relation_matmul_sum(edges, part, weight, matrices(4)) for part in torch.chunk(wide, 2, 1)]
        alone = [relation_matmul_sum(edges, part.contiguous(), weight, matrices(4)) for part in torch.chunk(wide, 2, 1)]
    assert all(map(torch.equal, parts, alone))


def test_constant_rows_in_half_precision() -> None:
    edges = typed(random_topology(50, 300).block.edges)
    src, weight = normal(50, 6).half(), normal(edges.num_edges, 1, dtype=torch.float32)
    for blocks in (1, 2):
        matrix = matrices(blocks, torch.float32, 6 // blocks).requires_grad_()
        outs = [
            sums(edges, src_, weight, matrix) for sums, src_ in ((relation_matmul_sum, src), (naive_sum, src.float()))
        ]
        grads = [torch.autograd.grad(out.sin().sum(), matrix)[0] for out in outs]
        for ours, naive in (outs, grads):
            torch.testing.assert_close(ours, naive, rtol=1e-4, atol=1e-4)


def test_products_in_bfloat16() -> None:
    edges = typed(random_topology(50, 300).block.edges)
    given = normal(50, 3, dtype=torch.float32), normal(edges.num_edges, 1, dtype=torch.float32)
    with use_bfloat16_matmul():
        rounded = relation_matmul_sum(edges, *given, matrices(1, torch.float32))
    plain = relation_matmul_sum(edges, *given, matrices(1, torch.float32))
    assert not torch.equal(rounded, plain)
    torch.testing.assert_close(rounded, plain, rtol=0.05, atol=0.3)


@pytest.mark.parametrize("kernels", [False, True])
def test_threads_do_not_matter(kernels: bool) -> None:
    edges = typed(random_topology(300, 4000).block.edges)
    leaves = [
        normal(*shape, dtype=torch.float32).requires_grad_()
        for shape in ((300, 12), (edges.num_edges, 4), (RELATIONS, 4, 3, 2), (300, 8))
    ]

    def everything() -> list[Tensor]:
        src, weight, matrix, dst = leaves
        out = relation_matmul_sum(edges, src, weight, matrix), relation_dot(edges, src, dst, matrix)
        return [*out, *torch.autograd.grad(sum(each.square().sum() for each in out), leaves)]

    with use_block_kernels() if kernels else nullcontext():
        many = everything()
        with one_kernel_thread():
            one = everything()
    assert all(map(torch.equal, many, one))


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_projected_sum_is_that_of_the_channel_of_each_relation(blocks: int) -> None:
    edges = with_relations(random_topology(40, 250), RELATIONS).block.edges
    weight, x = normal(edges.num_edges, 1), normal(40, 6)
    first, last = (
        RelationMatmul(RELATIONS, 6, 9, blocks=blocks, project_first=flag).double() for flag in (True, False)
    )
    last.load_state_dict(first.state_dict())
    ours, other = (
        first(block_of(edges), first.project(x), None, weight),
        last(block_of(edges), x[:, None], None, weight),
    )
    torch.testing.assert_close(ours, other, rtol=1e-12, atol=1e-12)
    # Columns may be cut.
    rows = first.project(x)
    parts = [
        first.restrict_to_columns(*span)(block_of(edges), rows[..., slice(*span)], None, weight)
        for span in ((0, 4), (4, 9))
    ]
    assert torch.equal(torch.cat(parts, 2), ours)
    assert (first.sliceable, last.sliceable) == (True, False)


def gradient_of_one_part() -> AbstractContextManager[object]:
    """The gradient of the matrices is that of the first part of the work."""
    gradient = block_matmul.make_block_gradient

    def make(*sizes: int) -> Callable[..., None]:
        def run(parts: Array, *given: Array) -> None:
            gradient(*sizes)(parts, *given)
            given[-1][len(given[-1]) // len(parts) :] = 0

        return run

    return patch.object(block_matmul, "make_block_gradient", make)


def edges_in_the_order_of_the_block() -> AbstractContextManager[object]:
    """Positions of edges are forgotten when their order changes."""
    order = block_matmul._order
    return patch.object(
        block_matmul,
        "_order",
        lambda *given: replace(order(*given), edge=torch.arange(len(given[1]), dtype=torch.int32)),
    )
