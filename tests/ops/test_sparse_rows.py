"""Products with sparse rows against the dense product."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.ops.rng import dropout_sparse
from outgrow.ops.sparse import SparseRows
from support import normal


def sparse(num_rows: int, num_columns: int, share: float, dtype: torch.dtype = torch.float64) -> SparseRows:
    """Random rows; some are empty, and so are some columns."""
    random = np.random.default_rng(num_rows + 7 * num_columns)
    kept = random.random((num_rows, num_columns)) < share * random.random((num_rows, 1))
    indptr = np.concatenate(([0], np.cumsum(kept.sum(1)))).astype(np.int64)
    indices = torch.from_numpy(np.nonzero(kept)[1].astype(np.int32))
    values = normal(int(indptr[-1]), dtype=dtype)
    return SparseRows(indptr=torch.from_numpy(indptr), indices=indices, values=values, num_columns=num_columns)


def dense(rows: SparseRows) -> torch.Tensor:
    out = torch.zeros(rows.shape, dtype=rows.dtype)
    for v in range(len(rows)):
        for e in range(int(rows.indptr[v]), int(rows.indptr[v + 1])):
            out[v, int(rows.indices[e])] = rows.values[e]
    return out


def assert_same(rows: SparseRows, width: int, dtype: torch.dtype, tolerance: float) -> None:
    weight = normal(rows.num_columns, width, dtype=dtype).requires_grad_()
    grad = normal(len(rows), width, seed=1, dtype=dtype)
    ours, expected = rows @ weight, dense(rows).to(dtype) @ weight
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)
    (d_ours,), (d_expected,) = (torch.autograd.grad(out, weight, grad) for out in (ours, expected))
    torch.testing.assert_close(d_ours, d_expected, rtol=tolerance, atol=tolerance)


@given(st.integers(0, 8), st.integers(1, 8), st.integers(1, 5), st.floats(0, 1))
@settings(deadline=None, max_examples=40)
def test_any_pattern(num_rows: int, num_columns: int, width: int, share: float) -> None:
    assert_same(sparse(num_rows, num_columns, share), width, torch.float64, 1e-12)


def test_float32() -> None:
    assert_same(sparse(300, 70, 0.5, torch.float32), 33, torch.float32, 1e-4)


def test_the_product_has_the_type_of_the_weight() -> None:
    assert_same(sparse(30, 7, 0.5, torch.float32), 3, torch.float64, 1e-12)


def test_gradient_is_that_of_finite_differences() -> None:
    rows = sparse(6, 5, 0.8)
    assert torch.autograd.gradcheck(lambda w: rows @ w, (normal(5, 3).requires_grad_(),))


@pytest.mark.parametrize(("first", "last"), [(0, 20), (3, 11), (5, 5), (19, 20)])
def test_a_range_of_rows(first: int, last: int) -> None:
    rows = sparse(20, 9, 0.6)
    part = rows.slice_rows(first, last)
    assert part.shape == (last - first, 9)
    assert torch.equal(dense(part), dense(rows)[first:last])
    assert_same(part, 4, torch.float64, 1e-12)


def test_more_columns_than_one_thread_sums_at_a_time() -> None:
    rows = sparse(40, 9, 0.6)
    for width in (63, 64, 65, 130):
        assert_same(rows, width, torch.float64, 1e-12)


def test_other_values_of_the_same_pattern() -> None:
    rows = sparse(20, 9, 0.6)
    tripled = rows.with_values(3 * rows.values)
    assert tripled.indices is rows.indices
    assert torch.equal(dense(tripled), 3 * dense(rows))


def test_another_type_keeps_the_pattern() -> None:
    rows = sparse(5, 4, 0.9)
    narrow = rows.to(torch.float32)
    assert narrow.dtype == torch.float32
    assert torch.equal(dense(narrow), dense(rows).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_are_kept_have_the_same_gradient(dtype: torch.dtype) -> None:
    # Each number is summed in row order in both forms.
    rows = sparse(300, 70, 0.5, dtype)
    kept = replace(rows, is_kept=True)
    weight, grad = normal(70, 33, dtype=dtype).requires_grad_(), normal(300, 33, seed=1, dtype=dtype)
    first, *others = (torch.autograd.grad(each @ weight, weight, grad)[0] for each in (rows, kept, kept))
    assert all(torch.equal(first, other) for other in others)
    # Made once, and not for rows with other values or for those that are not kept.
    assert (len(rows.cache), len(kept.cache), len(kept.with_values(kept.values).cache)) == (0, 1, 0)
    assert not kept.with_values(kept.values).is_kept
    assert kept.slice_rows(0, 10).is_kept
    assert kept.to(torch.float64).is_kept


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32])
def test_kept_rows_take_gradients_of_a_wider_type(stored: torch.dtype) -> None:
    # The order by columns holds values as they are stored; the sum is one of the gradient's type.
    rows = sparse(60, 20, 0.5, stored)
    weight, grad = normal(20, 5).requires_grad_(), normal(60, 5, seed=1)
    first, other = (torch.autograd.grad(each @ weight, weight, grad)[0] for each in (rows, rows.keep()))
    assert torch.equal(first, other)


@pytest.mark.parametrize("stored", [torch.float16, torch.float32])
@pytest.mark.parametrize("rows", [0, 1, 300])
def test_wide_products_leave_zeros_out(rows: int, stored: torch.dtype) -> None:
    """Of rows whose values are zeros in part: the same product and gradient, of fewer numbers."""
    full = sparse(rows, 70, 0.5, stored)
    values = full.values * (torch.arange(len(full.values)) % 3 > 0)
    dropped = replace(full, values=values, has_zeros=True)
    few = dropped.without_zeros()
    assert few is dropped.without_zeros()
    assert few.num_values == int(values.count_nonzero())
    assert torch.equal(dense(few), dense(dropped))
    assert not few.has_zeros
    for width in (7, 128):
        weight = normal(70, width, dtype=torch.float32).requires_grad_()
        ours, expected = dropped @ weight, dense(dropped).float() @ weight
        # What a product leaves out it leaves out of its gradient as well.
        assert ours.grad_fn is not None
        assert (ours.grad_fn.rows is few) == (width == 128)
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
        grad = normal(rows, width, seed=1, dtype=torch.float32)
        found, wanted = (torch.autograd.grad(out, weight, grad)[0] for out in (ours, expected))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_dropout_leaves_zeros_that_wide_products_leave_out() -> None:
    full = sparse(300, 70, 0.5).keep()
    dropped = dropout_sparse(full, torch.arange(300), 21, 0.3)
    assert (full.has_zeros, dropped.has_zeros) == (False, True)
    assert dropped.without_zeros().num_values < 0.8 * full.num_values
