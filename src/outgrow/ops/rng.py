"""Counter-based random numbers, keyed dropout, keyed permutations.

A node draws the same numbers on every worker, in every batch, at recomputation and after a resume. The hash
is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA
2014).

A permutation of ``0 .. n - 1`` applies rounds of invertible steps on the smallest power of two that holds
``n``, and repeats them until the result is below ``n`` (cycle walking: Black, Rogaway: Ciphers with arbitrary
finite domains, CT-RSA 2002). Letters: ``N`` rows, ``F`` columns, ``E`` edges, ``K`` heads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import (
    as_numpy,
    as_tensor,
    gpu_dispatch,
    once_differentiable,
    parallel_kernel,
    prange,
    serial_kernel,
)
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.kernels.work_split import END_ROW, ROW, balanced_work, row_span
from outgrow.ops.memory_pool import pooled_empty
from outgrow.ops.sparse import SparseRows

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MUL1 = np.uint64(0xBF58476D1CE4E5B9)
_MUL2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32, _S11 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32), np.uint64(11)
_MASK = (1 << 64) - 1

NEIGHBOURS = 2
"""Part of the key of neighbour sampling, after that of the layer; attention dropout has 1."""


@serial_kernel
def hash64(key: np.uint64, value: np.uint64) -> np.uint64:
    """Return a 64-bit hash of a key and a value, both uint64; `fold_in` is the same in Python."""
    z = key + (value + np.uint64(1)) * _GOLDEN
    z = (z ^ (z >> _S30)) * _MUL1
    z = (z ^ (z >> _S27)) * _MUL2
    return z ^ (z >> _S31)


@serial_kernel
def uniform01(hashed: np.uint64) -> float:
    """Return a number in [0, 1) with 53 random bits of a hash."""
    return np.float64(hashed >> _S11) * 1.1102230246251565e-16


@serial_kernel
def keeps_element(row_key: np.uint64, column: int, limit: np.uint64) -> bool:
    """Whether dropout keeps an element.

    ``row_key`` is the hash of key and row, ``limit`` a `dropout_threshold`.
    """
    return bool((hash64(row_key, np.uint64(column)) >> _S32) >= limit)


def fold_in(key: int, *values: int) -> int:
    """Derive a 64-bit key from a key and whole numbers, such as ``fold_in(seed, epoch, step, layer)``."""
    # Python's integers do not wrap around, so each product is cut to 64 bits.
    for value in values:
        z = (key + (value + 1) * int(_GOLDEN)) & _MASK
        z = ((z ^ (z >> 30)) * int(_MUL1)) & _MASK
        z = ((z ^ (z >> 27)) * int(_MUL2)) & _MASK
        key = z ^ (z >> 31)
    return key & _MASK


def keyed_permutation(values_N: Tensor, key: int) -> Tensor:
    """Return ``[N]`` int64: distinct whole numbers in the order of their hashes."""
    # For a fixed key the hash is a bijection of 64-bit numbers: distinct values never tie.
    hashes = np.empty(len(values_N), dtype=np.uint64)
    _hash_values(as_numpy(values_N), np.uint64(key), hashes)
    return as_tensor(np.argsort(hashes))


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
    return x_NF if p == 0 else _KeyedDropout.apply(x_NF, nodes_N, key, p)  # type: ignore[no-untyped-call]


def dropout_blocks(rows: BlockRows, nodes_N: Tensor, key: int, p: float) -> BlockRows:
    """Apply `dropout` to block rows, drawing as for the dense matrix but only for the numbers of blocks."""
    if p == 0:
        return rows
    made = []
    for block, own, (first, last) in zip(rows.blocks, rows.rows, rows.columns, strict=True):
        # As sparse rows, whose draws are keyed by the column in the whole matrix.
        count, width = block.shape
        ends = width * torch.arange(count + 1, device=block.device)
        columns = torch.arange(first, last, dtype=torch.int32, device=block.device).repeat(count)
        as_sparse = SparseRows(indptr=ends, indices=columns, values=block.reshape(-1), num_columns=last)
        made.append(dropout_sparse(as_sparse, nodes_N[own], key, p).values.view(count, width))
    return rows.with_blocks(made)


def dropout_sparse(rows: SparseRows, nodes_N: Tensor, key: int, p: float) -> SparseRows:
    """Apply `dropout` to sparse rows, drawing as for the dense matrix but only for the stored values."""
    if p == 0:
        return rows
    out = torch.empty_like(rows.values)
    write_dropout_sparse(rows.indptr, rows.indices, rows.values, nodes_N, key, p, out)
    return replace(rows.with_values(out), has_zeros=True)


def dropout_edges(x_EK: Tensor, edge_ids_E: Tensor | None, first_edge: int, key: int, p: float) -> Tensor:
    """Apply dropout to narrow rows of edges, keyed by ``(key, edge id, column)``.

    Args:
        x_EK: ``[E, K]`` floating.
        edge_ids_E: ``[E]`` int64, global edge ids; None if consecutive from ``first_edge``.
        first_edge: Global id of the first edge, used when ``edge_ids_E`` is None.
        key: 64-bit key.
        p: In [0, 1).
    """
    # Global ids rather than positions: an edge must draw the same in every batch and chunk that holds it.
    if edge_ids_E is None:
        edge_ids_E = torch.arange(first_edge, first_edge + len(x_EK), device=x_EK.device)
    return dropout(x_EK, edge_ids_E, key, p)


@gpu_dispatch
def write_dropout(x_NF: Tensor, nodes_N: Tensor, key: int, p: float, out_NF: Tensor) -> None:
    """Compute `dropout` into ``out_NF``."""
    limit, scale = dropout_threshold(p), dropout_scale(p, out_NF.dtype)
    _dropout_kernel(as_numpy(x_NF), as_numpy(nodes_N), np.uint64(key), limit, scale, as_numpy(out_NF))


@gpu_dispatch
def write_dropout_sparse(
    indptr: Tensor, indices: Tensor, values_S: Tensor, nodes_N: Tensor, key: int, p: float, out_S: Tensor
) -> None:
    """Compute the values of `dropout_sparse` into ``out_S``; ``S`` stored values in ``N`` rows."""
    limit, scale = dropout_threshold(p), dropout_scale(p, out_S.dtype)
    rows = balanced_work(as_numpy(indptr)), as_numpy(indptr), as_numpy(indices), as_numpy(values_S), as_numpy(nodes_N)
    _dropout_sparse_kernel(*rows, np.uint64(key), limit, scale, as_numpy(out_S))


class _KeyedDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NF: Tensor, nodes_N: Tensor, key: int, p: float) -> Tensor:
        ctx.nodes = nodes_N
        ctx.key = key
        ctx.p = p
        return _apply_dropout(x_NF, nodes_N, key, p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor, None, None, None]:
        # The gradient passes through the same mask and scale, recomputed from the key.
        return _apply_dropout(grad_NF, ctx.nodes, ctx.key, ctx.p), None, None, None


def _apply_dropout(x_NF: Tensor, nodes_N: Tensor, key: int, p: float) -> Tensor:
    out = pooled_empty(tuple(x_NF.shape), x_NF)
    write_dropout(x_NF, nodes_N, key, p, out)
    return out


def dropout_scale(p: float, dtype: torch.dtype) -> Any:
    """Return ``1 / (1 - p)`` as a NumPy scalar of the type, for kernels."""
    return as_numpy(torch.tensor(1 / (1 - p), dtype=dtype))[()]


def dropout_threshold(p: float) -> np.uint64:
    """Return the threshold below which 32-bit draws are dropped, for kernels."""
    return np.uint64(round(p * 2**32))


@parallel_kernel
def _hash_values(values: NDArray[np.int64], key: np.uint64, out: NDArray[np.uint64]) -> None:
    for i in prange(len(values)):
        out[i] = hash64(key, np.uint64(values[i]))


@parallel_kernel
def _dropout_kernel(
    x: NDArray[Any],
    nodes: NDArray[np.int64],
    key: np.uint64,
    limit: np.uint64,
    scale: Any,
    out: NDArray[Any],
) -> None:
    for n in prange(x.shape[0]):
        row_key = hash64(key, np.uint64(nodes[n]))
        for f in range(x.shape[1]):
            kept = keeps_element(row_key, f, limit)
            out[n, f] = x[n, f] * scale if kept else x.dtype.type(0)


@parallel_kernel
def _dropout_sparse_kernel(
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
            row_key = hash64(key, np.uint64(nodes[n]))
            for e in range(*row_span(parts, part, indptr, n)):
                # The draw is keyed by the column, not by the position among stored values.
                kept = keeps_element(row_key, indices[e], limit)
                out[e] = values[e] * scale if kept else 0


_ONE, _TWO, _HIGH_HALF = np.uint64(1), np.uint64(2), np.uint64(32)
_ROUNDS = 4


@serial_kernel
def permute_value(value: np.uint64, n: np.uint64, key: np.uint64) -> np.uint64:
    """Return the image of ``value`` under the permutation of ``0 .. n - 1`` for ``key``; all uint64."""
    bits = _ONE
    # The number of bits of n - 1, at least one.
    while (n - _ONE) >> bits != np.uint64(0):
        bits += _ONE
    mask = (_ONE << bits) - _ONE
    half = (bits + _ONE) // _TWO
    while True:
        for i in range(_ROUNDS):
            round_key = hash64(key, np.uint64(i))
            # Each step is invertible modulo the power of two: xor, the product with an odd number, and xor
            # with the number's own upper half, which spreads high bits to low ones.
            value = ((value ^ round_key) * ((round_key >> _HIGH_HALF) | _ONE)) & mask
            value ^= value >> half
        # Values beyond n lie on the cycle between two values below it: going on from there keeps the map
        # one-to-one. The power of two is at most twice n, so two walks are enough on average.
        if value < n:
            return value


@serial_kernel
def as_int64(value: np.uint64) -> int:
    """Convert a small uint64 to int64. For kernels: Numba turns sums of the two types into floats."""
    return np.int64(value)  # type: ignore[return-value]


def permute_range(first: int, last: int, n: int, key: int) -> NDArray[np.int64]:
    """Return the images of ``first .. last - 1`` under the permutation of ``0 .. n - 1`` for ``key``.

    Args:
        first: At least 0.
        last: At most ``n``.
        n: Size of the permuted range.
        key: 64-bit key.

    Returns:
        ``[last - first]`` int64, distinct numbers below ``n``.
    """
    out = np.empty(last - first, dtype=np.int64)
    _permute_range(first, np.uint64(n), np.uint64(key), out)
    return out


@parallel_kernel
def _permute_range(first: int, n: np.uint64, key: np.uint64, out: NDArray[np.int64]) -> None:
    for i in prange(len(out)):
        out[i] = permute_value(np.uint64(first) + np.uint64(i), n, key)
