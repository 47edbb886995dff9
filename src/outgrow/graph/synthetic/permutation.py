"""Keyed permutations: bijections of 0 .. n - 1 that need no table.

Rounds of invertible steps on the smallest power of two that holds ``n``, repeated until the result is below ``n``
(cycle walking: Black, Rogaway: Ciphers with arbitrary finite domains, CT-RSA 2002).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import kernel, prange, sequential
from outgrow.ops.keyed import mix

_ONE, _TWO, _HIGH_HALF = np.uint64(1), np.uint64(2), np.uint64(32)
_ROUNDS = 4


@sequential
def permuted(value: np.uint64, n: np.uint64, key: np.uint64) -> np.uint64:
    """Where the permutation of ``0 .. n - 1`` that belongs to ``key`` sends ``value``. For kernels; all uint64."""
    bits = _ONE
    while (n - _ONE) >> bits != np.uint64(0):
        bits += _ONE
    mask = (_ONE << bits) - _ONE
    half = (bits + _ONE) // _TWO
    while True:
        for i in range(_ROUNDS):
            drawn = mix(key, np.uint64(i))
            value = ((value ^ drawn) * ((drawn >> _HIGH_HALF) | _ONE)) & mask
            value ^= value >> half
        if value < n:
            return value


@sequential
def signed(value: np.uint64) -> int:
    """A small uint64 as int64, for kernels: Numba turns sums of the two types into floats."""
    return np.int64(value)  # type: ignore[return-value]


def permute(first: int, last: int, n: int, key: int) -> NDArray[np.int64]:
    """Images of ``first .. last - 1`` under the permutation of ``0 .. n - 1`` that belongs to ``key``.

    Args:
        first: At least 0.
        last: At most ``n``.
        n: Size of the permuted range.
        key: 64-bit key.

    Returns:
        ``[last - first]`` int64, distinct numbers below ``n``.
    """
    out = np.empty(last - first, dtype=np.int64)
    _permute(first, np.uint64(n), np.uint64(key), out)
    return out


@kernel
def _permute(first: int, n: np.uint64, key: np.uint64, out: NDArray[np.int64]) -> None:
    for i in prange(len(out)):
        out[i] = permuted(np.uint64(first) + np.uint64(i), n, key)
