"""Draws are pure functions of a key: nothing else about who draws, when or in which company changes them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outgrow.ops.rng import dropout, dropout_edges, dropout_sparse, fold_in, hash64, uniform01
from outgrow.ops.sparse import SparseRows
from support import normal

WORD = st.integers(0, 2**64 - 1)


def kept(nodes: Tensor, columns: int, key: int, p: float = 0.5) -> Tensor:
    return dropout(torch.ones(len(nodes), columns, dtype=torch.float64), nodes, key, p) != 0


@pytest.fixture
def threads() -> Iterator[None]:
    before = numba.get_num_threads()
    yield
    numba.set_num_threads(before)


@given(WORD, WORD)
@settings(deadline=None)
def test_python_and_kernels_hash_alike(key: int, value: int) -> None:
    assert fold_in(key, value) == int(hash64(np.uint64(key), np.uint64(value)))


def test_a_key_of_several_numbers_is_a_chain() -> None:
    assert fold_in(5, 1, 2, 3) == fold_in(fold_in(fold_in(5, 1), 2), 3)
    assert fold_in(5) == 5
    assert fold_in(5, 1, 2) != fold_in(5, 2, 1)
    assert (
        len({fold_in(seed, epoch, layer) for seed in range(20) for epoch in range(20) for layer in range(20)}) == 8000
    )


def test_the_hash_is_that_of_the_published_generator() -> None:
    """SplitMix64 seeded with 0 begins so; its n-th number is ``fold_in(0, n)``."""
    assert [fold_in(0, n) for n in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(WORD)
@settings(deadline=None)
def test_uniform_numbers_are_below_one(word: int) -> None:
    value = uniform01(np.uint64(word))
    assert 0 <= value < 1
    assert value == (word >> 11) / 2**53


@given(st.permutations(range(40)), st.integers(0, 40), WORD)
@settings(deadline=None)
def test_any_subset_in_any_order_draws_the_same(order: list[int], count: int, key: int) -> None:
    nodes = torch.arange(1000, 1040)
    chosen = torch.tensor(order[:count], dtype=torch.int64)
    x = normal(40, 7)
    whole = dropout(x, nodes, key, 0.4)
    assert torch.equal(dropout(x[chosen], nodes[chosen], key, 0.4), whole[chosen])


def test_the_first_columns_do_not_depend_on_how_many_there_are() -> None:
    nodes = torch.arange(50)
    for columns in (1, 7, 8, 33):
        assert torch.equal(kept(nodes, columns, 3), kept(nodes, 64, 3)[:, :columns])


def test_the_type_of_the_rows_does_not_change_the_draw() -> None:
    nodes = torch.arange(64)
    narrow = dropout(torch.ones(64, 17), nodes, 9, 0.3)
    assert narrow.dtype == torch.float32
    assert torch.equal(narrow != 0, kept(nodes, 17, 9, 0.3))


def test_keys_nodes_and_columns_draw_independently() -> None:
    """Of two independent masks at p = 1/2, half of the places agree."""
    nodes = torch.arange(300)
    masks = [
        kept(nodes, 300, fold_in(seed, epoch, 0, layer)) for seed in (0, 1) for epoch in (1, 2) for layer in (1, 2)
    ]
    masks += [masks[0].roll(1, 0), masks[0].roll(1, 1), masks[0].roll(2, 1), masks[0].T]
    for i, first in enumerate(masks):
        for second in masks[:i]:
            agree = (first == second).double().mean().item()
            assert abs(agree - 0.5) < 5 * 0.5 / math.sqrt(first.numel())


@pytest.mark.parametrize("p", [0.1, 0.5, 0.6, 0.9])
def test_the_share_that_is_kept(p: float) -> None:
    mask = kept(torch.arange(2000), 256, 11, p).double()
    bound = 5 * math.sqrt(p * (1 - p))
    assert abs(mask.mean().item() - (1 - p)) < bound / math.sqrt(mask.numel())
    assert (mask.mean(0) - (1 - p)).abs().max().item() < bound / math.sqrt(2000)
    assert (mask.mean(1) - (1 - p)).abs().max().item() < bound / math.sqrt(256)


def test_what_is_kept_is_scaled() -> None:
    x = normal(100, 9, dtype=torch.float32)
    out = dropout(x, torch.arange(100), 1, 0.75)
    assert torch.equal(out, torch.where(out != 0, 4 * x, torch.zeros_like(x)))


def test_nothing_is_dropped_at_zero() -> None:
    x = normal(5, 3)
    assert dropout(x, torch.arange(5), 1, 0) is x
    edges = dropout_edges(x, None, 0, 1, 0)
    assert edges is x


def test_almost_everything_is_dropped_close_to_one() -> None:
    assert kept(torch.arange(1000), 100, 2, 1 - 2**-20).sum() < 5


@pytest.mark.parametrize("columns", [0, 1, 5])
def test_no_rows(columns: int) -> None:
    out = dropout(torch.empty(0, columns, dtype=torch.float64), torch.empty(0, dtype=torch.int64), 1, 0.5)
    assert out.shape == (0, columns)


def test_gradient_is_that_of_finite_differences() -> None:
    nodes = torch.tensor([4, 9, 2])
    x = normal(3, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: dropout(x, nodes, 77, 0.5), (x,))
    assert torch.autograd.gradcheck(lambda x: dropout_edges(x, nodes, 0, 77, 0.5), (x,))


def test_rows_that_are_not_contiguous() -> None:
    x = normal(6, 40).T
    nodes = torch.arange(80)[::2]
    assert torch.equal(dropout(x, nodes, 5, 0.5), dropout(x.contiguous(), nodes.contiguous(), 5, 0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sparse_rows_draw_what_dense_rows_draw(dtype: torch.dtype) -> None:
    dense = normal(60, 31, dtype=dtype) * (normal(60, 31, seed=1, dtype=dtype) > 0.5)
    compressed = dense.numpy()
    row, column = np.nonzero(compressed)
    indptr = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=60)))).astype(np.int64)
    indices, values = torch.from_numpy(column.astype(np.int32)), torch.from_numpy(compressed[row, column])
    rows = SparseRows(indptr=torch.from_numpy(indptr), indices=indices, values=values, num_columns=31)
    nodes = torch.arange(500, 560)
    dropped = dropout_sparse(rows, nodes, 21, 0.3)
    assert torch.equal(dropped.values, dropout(dense, nodes, 21, 0.3)[row, column])
    assert dropped.indices is rows.indices
    assert (dropped.values == 0).any()
    assert (dropped.values != 0).any()
    assert dropout_sparse(rows, nodes, 21, 0) is rows
    part = dropout_sparse(rows.slice_rows(10, 30), nodes[10:30], 21, 0.3)
    assert torch.equal(part.values, dropped.slice_rows(10, 30).values)


def test_edges_with_ids_and_consecutive_edges_draw_alike() -> None:
    weight = normal(30, 4)
    whole = dropout_edges(weight, None, 100, 8, 0.5)
    chosen = torch.tensor([3, 29, 0])
    assert torch.equal(dropout_edges(weight[chosen], chosen + 100, 0, 8, 0.5), whole[chosen])
    assert torch.equal(dropout_edges(weight[10:], None, 110, 8, 0.5), whole[10:])


@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_changes_nothing() -> None:
    results = []
    for count in {1, numba.config.NUMBA_NUM_THREADS}:
        numba.set_num_threads(count)
        results.append(kept(torch.arange(5000), 16, 13))
    assert torch.equal(results[0], results[-1])
