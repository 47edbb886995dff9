"""The exponential of numbers that are not above zero, in compiled kernels: as softmax, sigmoid and ELU need it.

In float32 it is made of sums and products, so that the compiler computes several at once. ``exp(x) = 2^n exp(r)``
with ``n`` the integer nearest to ``x / ln 2``; ``exp(r) - 1`` is a polynomial on what remains, ``|r| <= ln 2 / 2``
(Cody & Waite, Software manual for the elementary functions, 1980). In float64 it is the library's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from outgrow.ops.backend import by_type, inlined, intrinsic

_LOWEST = np.float32(-87.33654)
"""Below it the result is no normal number of float32."""
_ONE_OVER_LN_2, _HALF = np.float32(1.44269504), np.float32(0.5)
_LN_2_HIGH, _LN_2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_P2, _P3, _P4, _P5, _P6, _P7 = (
    np.float32(value)
    for value in (0.5, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3, 1.3981999507e-3, 1.9875691500e-4)
)
_ONE, _ZERO = np.float32(1), np.float32(0)


@by_type
def exp_of(x: Any) -> Any:
    """``exp(x)`` for ``x <= 0``, within 2 units in the last place; 0 where that is no normal number. For kernels."""
    return _exp_single if x == types.float32 else _exp_double


@by_type
def expm1_of(x: Any) -> Any:
    """``exp(x) - 1`` for ``x <= 0``, within 2 units in the last place. For kernels."""
    return _expm1_single if x == types.float32 else _expm1_double


def _exp_single(x: Any) -> Any:
    scale, rest = _split(x)
    return _ZERO if x < _LOWEST else scale * rest + scale


def _exp_double(x: Any) -> Any:
    return np.exp(x)


def _expm1_single(x: Any) -> Any:
    scale, rest = _split(x)
    return scale * rest + (scale - _ONE)


def _expm1_double(x: Any) -> Any:
    return np.expm1(x)


@inlined
def _split(x: Any) -> Any:
    """``2^n`` and ``exp(r) - 1``."""
    inside = max(x, _LOWEST)
    n = np.floor(inside * _ONE_OVER_LN_2 + _HALF)
    r = inside - n * _LN_2_HIGH
    r = r - n * _LN_2_LOW
    series = ((((_P7 * r + _P6) * r + _P5) * r + _P4) * r + _P3) * r + _P2
    return _power_of_two(n), series * r * r + r


@intrinsic
def _power_of_two(context: Any, value: Any) -> Any:
    """``2^n`` in float32 for an integer ``n`` in [-126, 127], which is given as a float32."""

    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        word = ir.IntType(32)
        exponent = builder.add(builder.fptosi(given[0], word), ir.Constant(word, 127))
        return builder.bitcast(builder.shl(exponent, ir.Constant(word, 23)), ir.FloatType())

    return types.float32(types.float32), emit
