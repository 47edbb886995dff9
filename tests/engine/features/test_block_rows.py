"""Blocks of dense rows against the dense matrix: products, gradients, rows in any order, parts of types, dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.ops import block_rows
from outgrow.ops.block_rows import BlockRows, row_numbers
from outgrow.ops.rng import dropout, dropout_blocks
from support import normal

WIDTHS = (3, 1, 4)


def blocks(counts: tuple[int, ...] = (4, 2, 5), gap: int = 2, dtype: torch.dtype = torch.float64) -> BlockRows:
    """A block-diagonal matrix, with empty rows before each block."""
    made, rows, at = [], [], 0
    for number, (count, width) in enumerate(zip(counts, WIDTHS, strict=True)):
        at += gap
        made.append(normal(count, width, seed=number, dtype=dtype))
        rows.append(slice(at, at + count))
        at += count
    return BlockRows(blocks=tuple(made), rows=tuple(rows), num_rows=at + gap)


def dense(rows: BlockRows) -> torch.Tensor:
    out = torch.zeros(rows.shape, dtype=rows.dtype)
    first = 0
    for block, own in zip(rows.blocks, rows.rows, strict=True):
        out[row_numbers(own), first : first + block.shape[1]] = block
        first += block.shape[1]
    return out


def assert_is(rows: BlockRows, expected: torch.Tensor) -> None:
    assert torch.equal(dense(rows), expected)
    assert torch.equal(rows.to_dense(), expected)
    for own in rows.rows:
        numbers = row_numbers(own)
        assert bool((numbers.diff() > 0).all())


@given(st.tuples(*[st.integers(0, 5)] * 3), st.integers(0, 2), st.integers(0, 2**16))
@settings(deadline=None, max_examples=60)
def test_any_rows_in_any_order(counts: tuple[int, int, int], gap: int, seed: int) -> None:
    """Of the matrix of a graph, and of rows that were chosen of it before."""
    random = np.random.default_rng(seed)
    rows = blocks(counts, gap)
    whole = dense(rows)
    for _ in range(2):
        chosen = torch.from_numpy(random.permutation(len(rows))[: random.integers(0, len(rows) + 1)])
        rows, whole = rows.index_rows(chosen), whole[chosen]
        assert_is(rows, whole)
        first, last = sorted(random.integers(0, len(rows) + 1, 2).tolist())
        assert_is(rows.slice_rows(first, last), whole[first:last])


def test_rows_may_be_asked_for_twice() -> None:
    nodes = torch.tensor([7, 3, 7, 0, 16, 3])
    assert_is(blocks().index_rows(nodes), dense(blocks())[nodes])


@pytest.mark.parametrize("order", [None, torch.tensor([9, 2, 16, 3, 0, 11, 10])])
def test_a_product_is_that_of_the_dense_matrix(order: torch.Tensor | None) -> None:
    rows = blocks() if order is None else blocks().index_rows(order)
    weight = normal(sum(WIDTHS), 5).requires_grad_()
    grad = normal(len(rows), 5, seed=9)
    ours, expected = rows @ weight, dense(rows) @ weight
    torch.testing.assert_close(ours, expected)
    (d_ours,), (d_expected,) = (torch.autograd.grad(out, weight, grad) for out in (ours, expected))
    torch.testing.assert_close(d_ours, d_expected)


def test_a_product_of_no_rows_has_a_gradient() -> None:
    weight = normal(sum(WIDTHS), 5).requires_grad_()
    out = blocks().index_rows(torch.tensor([0, 1])) @ weight
    assert not out.any()
    out.sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()


def test_numbers_of_another_type() -> None:
    rows = blocks(dtype=torch.float16).to(torch.float32)
    assert rows.dtype == torch.float32
    assert_is(rows, dense(blocks(dtype=torch.float16)).float())
    assert (blocks(dtype=torch.float32) @ normal(8, 2)).dtype == torch.float64
    assert blocks(dtype=torch.float16).nbytes == 2 * (4 * 3 + 2 * 1 + 5 * 4)


def test_the_rows_of_a_type_are_its_block() -> None:
    """Without a copy, whether its rows are a range or in any order."""
    rows = blocks()
    assert rows.select_part(slice(2, 6), 0, 3) is rows.blocks[0]
    mixed = rows.index_rows(torch.tensor([12, 2, 0, 14, 5]))
    part = mixed.select_part(torch.tensor([1, 4]), 0, 3)
    assert part is mixed.blocks[0]
    found = mixed.select_part(torch.tensor([0, 3]), 4, 8)
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, dense(rows)[[12, 14], 4:8])


def test_other_parts_of_types() -> None:
    rows = blocks()
    some = rows.select_part(slice(3, 5), 0, 3)  # a part of the rows of a type
    assert isinstance(some, torch.Tensor)
    assert torch.equal(some, dense(rows)[3:5, :3])
    whole = rows.select_part(slice(1, 5), 0, 8)  # all columns, of rows with an empty one
    assert isinstance(whole, BlockRows)
    assert_is(whole, dense(rows)[1:5])
    empty = rows.select_part(slice(0, 2), 3, 3)  # a type without columns
    assert isinstance(empty, torch.Tensor)
    assert empty.shape == (2, 0)


def test_parts_are_put_where_they_belong() -> None:
    rows, order = blocks(), torch.from_numpy(np.random.default_rng(1).permutation(19))
    parts = [rows.index_rows(order[:7]), rows.slice_rows(0, 0), rows.index_rows(order[7:])]
    joined = block_rows.join_block_rows(parts, [order[:7], order[:0], order[7:]], 19)
    assert_is(joined, dense(rows))
    assert block_rows.join_block_rows([rows], [None], 19) is rows


def test_dropout_is_that_of_the_dense_matrix() -> None:
    rows, nodes = blocks(), torch.arange(19) + 100
    assert_is(dropout_blocks(rows, nodes, 21, 0.4), dropout(dense(rows), nodes, 21, 0.4))
    order = torch.tensor([9, 2, 16, 3, 0, 11, 10])
    assert_is(
        dropout_blocks(rows.index_rows(order), nodes[order], 21, 0.4), dropout(dense(rows), nodes, 21, 0.4)[order]
    )
    assert dropout_blocks(rows, nodes, 21, 0) is rows


@contextmanager
def rows_in_the_order_of_their_arrival() -> Iterator[None]:
    """Joined rows of a block stay in the order of the matrices that they come from."""
    join = block_rows.join_block_rows

    def forget_order(parts: Sequence[BlockRows], places: Sequence[torch.Tensor | None], num_rows: int) -> BlockRows:
        right = join(parts, places, num_rows)
        numbers = [torch.cat([part.blocks[number] for part in parts]) for number in range(len(right.blocks))]
        return right.with_blocks(numbers)

    with patch.object(block_rows, "join_block_rows", forget_order):
        yield


@contextmanager
def draws_of_columns_within_blocks() -> Iterator[None]:
    """Dropout of a block is keyed by its own columns, not by those of the whole matrix."""
    with patch.object(BlockRows, "columns", property(lambda rows: [(0, block.shape[1]) for block in rows.blocks])):
        yield


@contextmanager
def a_block_for_any_rows() -> Iterator[None]:
    """The part of a type is its whole block, whichever of its rows are asked for."""
    with patch.object(block_rows, "_are_equal", lambda own, rows: True):
        yield


MUTANTS: dict[str, tuple[Callable[[], AbstractContextManager[None]], Callable[[], None]]] = {
    each.__name__: (each, test)
    for each, test in (
        (rows_in_the_order_of_their_arrival, test_parts_are_put_where_they_belong),
        (draws_of_columns_within_blocks, test_dropout_is_that_of_the_dense_matrix),
        (a_block_for_any_rows, test_other_parts_of_types),
    )
}


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    broken, test = MUTANTS[name]
    with broken(), pytest.raises(AssertionError):
        test()
