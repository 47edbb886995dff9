"""The exponential of kernels against NumPy's in higher precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outgrow.ops.backend import parallel_kernel, prange
from outgrow.ops.kernels.numerics import exp_nonpositive, expm1_nonpositive

Array = NDArray[Any]


@parallel_kernel
def exp_all(x: Array, out: Array) -> None:
    for part in prange(len(x) // 64):
        for i in range(part * 64, part * 64 + 64):
            out[i] = exp_nonpositive(x[i])


@parallel_kernel
def expm1_all(x: Array, out: Array) -> None:
    for part in prange(len(x) // 64):
        for i in range(part * 64, part * 64 + 64):
            out[i] = expm1_nonpositive(x[i])


def applied(run: Any, values: Array) -> Array:
    """The function on any number of values."""
    padded = np.zeros(-(-len(values) // 64) * 64, values.dtype)
    padded[: len(values)] = values
    out = np.empty_like(padded)
    run(padded, out)
    return out[: len(values)]


def units_off(found: Array, expected: Array) -> float:
    """Largest distance in units in the last place."""
    return float(np.max(np.abs(found - expected) / np.spacing(np.abs(expected).astype(found.dtype))))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_within_two_units_in_the_last_place(dtype: type[np.floating[Any]]) -> None:
    random = np.random.default_rng(0)
    x = np.concatenate(
        [-80 * random.random(20_000), -random.random(20_000), -(10.0 ** -random.integers(1, 30, 20_000))]
    )
    x = np.concatenate([x, np.arange(-120, 0) * np.log(2)]).astype(dtype)
    wide = x.astype(np.longdouble)
    assert units_off(applied(exp_all, x), np.exp(wide)) <= 2
    assert units_off(applied(expm1_all, x), np.expm1(wide)) <= 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ends(dtype: type[np.floating[Any]]) -> None:
    x = np.array([0.0, -0.0, -1e4, -np.inf, np.nan], dtype=dtype)
    np.testing.assert_array_equal(applied(exp_all, x), np.array([1, 1, 0, 0, np.nan], dtype=dtype))
    np.testing.assert_array_equal(applied(expm1_all, x), np.array([0, 0, -1, -1, np.nan], dtype=dtype))


def test_below_the_normal_numbers_it_is_zero() -> None:
    x = np.linspace(-87.4, -110, 500).astype(np.float32)
    found = applied(exp_all, x)
    assert (found[np.exp(x.astype(np.float64)) < np.finfo(np.float32).tiny] == 0).all()


def test_it_is_for_kernels() -> None:
    with pytest.raises(NotImplementedError, match="kernels"):
        exp_nonpositive(np.float32(-1))
