"""Rows that are stored in bfloat16, or in int8 with a scale: what is read differs by no more than one rounding."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from torch import Tensor

from outgrow.ops.rows.row_encoding import BFLOAT16, FULL, INT8, RowEncoding, stored_row_bytes
from support import normal

finite = st.floats(-(2.0**100), 2.0**100, width=32)
matrices = arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=finite).map(torch.from_numpy)


def scales_of(rows: Tensor) -> Tensor:
    """``[N, 1]``: what a step of int8 is worth in each row, in exact arithmetic as far as float64 goes."""
    return rows.double().abs().amax(1, keepdim=True) / 127


def decoded(rows: Tensor, precision: str) -> Tensor:
    """What is stored, in float64, by torch."""
    stored = RowEncoding(rows.dtype, precision).encode_rows(rows)
    if precision != INT8:
        return stored.double()
    return stored[:, : rows.shape[1]].double() * stored[:, -4:].contiguous().view(torch.float32).double()


@given(matrices)
def test_bfloat16_is_rounded_as_torch_does(rows: Tensor) -> None:
    stored = RowEncoding(torch.float32, BFLOAT16).encode_rows(rows)
    assert stored.dtype == torch.bfloat16
    assert torch.equal(stored, rows.bfloat16())
    assert (stored.double() - rows.double()).abs().le(rows.double().abs() * 2.0**-8 + 2.0**-134).all()


@given(matrices)
def test_int8_is_half_a_step_off_at_most(rows: Tensor) -> None:
    error = (decoded(rows, INT8) - rows.double()).abs()
    # The scale itself is a float32, which has no digits left for the tiniest numbers.
    assert (error <= scales_of(rows) * (0.5 + 1e-4) + 127 * 2.0**-149).all()


@given(matrices, st.sampled_from([BFLOAT16, INT8]), st.floats(0.125, 8))
def test_what_is_stored_is_stored_again_the_same(rows: Tensor, precision: str, factor: float) -> None:
    """Rows that were read lose nothing more; rows of float64 are rounded as those of float32."""
    once = decoded(rows, precision).float()
    again = decoded(once, precision).float()
    assert (again - once).abs().le(once.abs() * 1e-6 + 2.0**-140).all()
    assert torch.equal(decoded(rows.double(), precision), decoded(rows, precision))


@pytest.mark.parametrize("precision", [BFLOAT16, INT8])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_numbers_that_are_not_finite_stay_so(precision: str, bad: float) -> None:
    rows = normal(3, 5, dtype=torch.float32)
    rows[1, 2] = bad
    found = decoded(rows, precision)
    assert not found[1, 2].isfinite()
    assert found[[0, 2]].isfinite().all()


def test_rows_of_zeros() -> None:
    for precision in (FULL, BFLOAT16, INT8):
        assert not decoded(torch.zeros(2, 3), precision).any()


@pytest.mark.parametrize("width", [1, 3, 4, 128, 130])
def test_bytes_of_a_row(width: int) -> None:
    rows = normal(2, width, dtype=torch.float32)
    expected = {FULL: 4 * width, BFLOAT16: 2 * width, INT8: -(-width // 4) * 4 + 4}
    for precision, row_bytes in expected.items():
        encoding = RowEncoding(torch.float32, precision)
        assert encoding.encode_rows(rows).nbytes == 2 * row_bytes
        assert encoding.row_bytes(width) == stored_row_bytes(width, 4, precision) == row_bytes


def test_full_rows_are_the_rows_themselves() -> None:
    rows = normal(2, 3)
    assert RowEncoding(torch.float64).encode_rows(rows) is rows
    assert stored_row_bytes(0, 4, INT8) == 0
