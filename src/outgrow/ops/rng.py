"""Counter-based random numbers, keyed dropout, keyed permutations.

The same node draws the same numbers on any worker, in any batch, at recomputation and after resume. The hash is
the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
Letters: ``N`` rows, ``F`` columns, ``E`` edges, ``K`` heads.

Rounds of invertible steps on the smallest power of two that holds ``n``, repeated until the result is below ``n``
(cycle walking: Black, Rogaway: Ciphers with arbitrary finite domains, CT-RSA 2002).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import array, kernel, once, prange, sequential, tensor, twinned
from outgrow.ops.kernels.work_split import END_ROW, ROW, even_parts, piece
from outgrow.ops.memory_pool import empty
from outgrow.ops.sparse import SparseRows

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MUL1 = np.uint64(0xBF58476D1CE4E5B9)
_MUL2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32, _S11 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32), np.uint64(11)
_MASK = (1 << 64) - 1

NEIGHBOURS = 2
"""Part of the key, after that of the layer, of which neighbours are drawn; 1 is that of attention dropout."""


@sequential
def mix(key: np.uint64, value: np.uint64) -> np.uint64:
    """A 64-bit hash of a key and a value; both uint64. For kernels; `derive` is the same in Python."""
    z = key + (value + np.uint64(1)) * _GOLDEN
    z = (z ^ (z >> _S30)) * _MUL1
    z = (z ^ (z >> _S27)) * _MUL2
    return z ^ (z >> _S31)


@sequential
def uniform(hashed: np.uint64) -> float:
    """A number in [0, 1) of 53 random bits from a hash."""
    return np.float64(hashed >> _S11) * 1.1102230246251565e-16


@sequential
def is_kept(row_key: np.uint64, column: int, limit: np.uint64) -> bool:
    """Whether dropout keeps an element; ``row_key`` the hash of key and row, ``limit`` a `threshold`."""
    return bool((mix(row_key, np.uint64(column)) >> _S32) >= limit)


def derive(key: int, *values: int) -> int:
    """A key made of a key and whole numbers, such as ``derive(seed, epoch, step, layer)``; 64 bits."""
    for value in values:
        z = (key + (value + 1) * int(_GOLDEN)) & _MASK
        z = ((z ^ (z >> 30)) * int(_MUL1)) & _MASK
        z = ((z ^ (z >> 27)) * int(_MUL2)) & _MASK
        key = z ^ (z >> 31)
    return key & _MASK


def keyed_order(values_N: Tensor, key: int) -> Tensor:
    """``[N]`` int64: a permutation of distinct whole numbers, by their hashes; does not depend on the order given."""
    hashes = np.empty(len(values_N), dtype=np.uint64)
    _hash(array(values_N), np.uint64(key), hashes)
    return tensor(np.argsort(hashes))


def require_probability(name: str, p: float) -> None:
    """Raise a ValueError unless ``p`` is a probability of dropping, in [0, 1)."""
    if not 0 <= p < 1:
        raise ValueError(f"{name} must be in [0, 1), got {p}")


def dropout(x_NF: Tensor, nodes_N: Tensor, key: int, p: float) -> Tensor:
    """Zero each element with probability ``p`` and scale the others by ``1 / (1 - p)``.

    Whether element ``(n, f)`` is kept depends on ``(key, nodes[n], f)`` alone. No mask is stored.

    Args:
        x_NF: ``[N, F]`` floating.
        nodes_N: ``[N]`` int64, global id of each row.
        key: 64-bit key of (seed, epoch, step, layer).
        p: In [0, 1).

    Returns:
        ``[N, F]``, differentiable in ``x_NF``.
    """
    return x_NF if p == 0 else _Dropout.apply(x_NF, nodes_N, key, p)  # type: ignore[no-untyped-call]


def dropout_sparse(rows: SparseRows, nodes_N: Tensor, key: int, p: float) -> SparseRows:
    """`dropout` of sparse rows: the same draw as on the dense matrix, made for the stored values only."""
    if p == 0:
        return rows
    out = torch.empty_like(rows.values)
    drop_sparse(rows.indptr, rows.indices, rows.values, nodes_N, key, p, out)
    return rows.with_values(out)


def dropout_edges(x_EK: Tensor, edge_ids_E: Tensor | None, first_edge: int, key: int, p: float) -> Tensor:
    """Dropout of narrow rows of edges, keyed by ``(key, edge id, column)``.

    Args:
        x_EK: ``[E, K]`` floating.
        edge_ids_E: ``[E]`` int64, global edge ids; None if consecutive from ``first_edge``.
        first_edge: Global id of the first edge, used when ``edge_ids_E`` is None.
        key: 64-bit key.
        p: In [0, 1).
    """
    if edge_ids_E is None:
        edge_ids_E = torch.arange(first_edge, first_edge + len(x_EK), device=x_EK.device)
    return dropout(x_EK, edge_ids_E, key, p)


@twinned
def drop(x_NF: Tensor, nodes_N: Tensor, key: int, p: float, out_NF: Tensor) -> None:
    """What `dropout` gives, written to ``out_NF``."""
    limit, scale = threshold(p), keep_scale(p, out_NF.dtype)
    _drop(array(x_NF), array(nodes_N), np.uint64(key), limit, scale, array(out_NF))


@twinned
def drop_sparse(
    indptr: Tensor, indices: Tensor, values_S: Tensor, nodes_N: Tensor, key: int, p: float, out_S: Tensor
) -> None:
    """The values that `dropout_sparse` gives, written to ``out_S``; ``S`` stored values in ``N`` rows."""
    limit, scale = threshold(p), keep_scale(p, out_S.dtype)
    rows = even_parts(array(indptr)), array(indptr), array(indices), array(values_S), array(nodes_N)
    _drop_sparse(*rows, np.uint64(key), limit, scale, array(out_S))


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NF: Tensor, nodes_N: Tensor, key: int, p: float) -> Tensor:
        ctx.nodes, ctx.key, ctx.p = nodes_N, key, p
        return _dropped(x_NF, nodes_N, key, p)

    @staticmethod
    @once
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor, None, None, None]:
        return _dropped(grad_NF, ctx.nodes, ctx.key, ctx.p), None, None, None


def _dropped(x_NF: Tensor, nodes_N: Tensor, key: int, p: float) -> Tensor:
    out = empty(tuple(x_NF.shape), x_NF)
    drop(x_NF, nodes_N, key, p, out)
    return out


def keep_scale(p: float, dtype: torch.dtype) -> Any:
    """``1 / (1 - p)`` as a NumPy scalar of a type, for kernels."""
    return array(torch.tensor(1 / (1 - p), dtype=dtype))[()]


def threshold(p: float) -> np.uint64:
    """Draws below it are dropped, for kernels."""
    return np.uint64(round(p * 2**32))


@kernel
def _hash(values: NDArray[np.int64], key: np.uint64, out: NDArray[np.uint64]) -> None:
    for i in prange(len(values)):
        out[i] = mix(key, np.uint64(values[i]))


@kernel
def _drop(
    x: NDArray[Any],
    nodes: NDArray[np.int64],
    key: np.uint64,
    limit: np.uint64,
    scale: Any,
    out: NDArray[Any],
) -> None:
    for n in prange(x.shape[0]):
        row_key = mix(key, np.uint64(nodes[n]))
        for f in range(x.shape[1]):
            kept = is_kept(row_key, f, limit)
            out[n, f] = x[n, f] * scale if kept else x.dtype.type(0)


@kernel
def _drop_sparse(
    parts: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    values: NDArray[Any],
    nodes: NDArray[np.int64],
    key: np.uint64,
    limit: np.uint64,
    scale: Any,
    out: NDArray[Any],
) -> None:
    for part in prange(len(parts)):
        for n in range(parts[part, ROW], parts[part, END_ROW]):
            row_key = mix(key, np.uint64(nodes[n]))
            for e in range(*piece(parts, part, indptr, n)):
                kept = is_kept(row_key, indices[e], limit)
                out[e] = values[e] * scale if kept else 0


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
