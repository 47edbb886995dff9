"""Sums of weighted rows over the edges of each node: the kernels under `WeightedSum`, in either direction.

Widths are compile-time constants of the kernels for large work, so that a row's sum stays in registers and first-level
cache; small work takes one kernel for all widths, which is compiled once.
Letters: ``M`` result rows, ``N`` given rows, ``E`` edges, ``C`` channels, ``K`` weights of an edge, ``F`` columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import kernel, prange, reducing_kernel, sequential

Array = NDArray[Any]

_LARGE = 1 << 24
_PARTS = 64


def gather_rows(
    indptr: Array, indices: Array, edge: Array | None, weight: Array | None, rows: Array, out: Array
) -> None:
    """``out[m, k] = sum over edges i of m of weight[edge[i] or i, k] * rows[indices[i], k or 0]``.

    Args:
        indptr: ``[M + 1]`` int64.
        indices: ``[E]`` row of each edge.
        edge: ``[E]`` position of the weight of each edge; None if it is that of the edge.
        weight: ``[E, K]``; None if all are 1.
        rows: ``[N, C, F]``; ``C`` is ``K`` or 1.
        out: ``[M, K, F]``, written.
    """
    widths = (out.shape[1], rows.shape[1], rows.shape[2])
    large = len(indices) * widths[0] * widths[2] >= _LARGE
    run = _gather_of(*widths) if large else _gather_any
    run(even_parts(indptr), indptr, indices, edge, weight, rows, out)


def reduce_rows(indptr: Array, indices: Array, edge: Array, weight: Array, rows: Array, out: Array) -> None:
    """``out[m, 0] = sum over edges i of m and k of weight[edge[i], k] * rows[indices[i], k]``.

    Args:
        indptr: ``[M + 1]`` int64.
        indices: ``[E]`` row of each edge.
        edge: ``[E]`` position of the weights of each edge.
        weight: ``[E, K]``.
        rows: ``[N, K, F]``.
        out: ``[M, 1, F]``, written.
    """
    large = len(indices) * rows.shape[1] * rows.shape[2] >= _LARGE
    run = _reduce_of(rows.shape[1], rows.shape[2]) if large else _reduce_any
    run(even_parts(indptr), indptr, indices, edge, weight, rows, out)


def dot_rows(indptr: Array, indices: Array, rows: Array, other: Array, out: Array) -> None:
    """``out[e, k] = other[m, k] . rows[indices[e], k or 0]`` for each edge ``e`` of ``m``.

    Args:
        indptr: ``[M + 1]`` int64.
        indices: ``[E]`` row of each edge.
        rows: ``[N, C, F]``; ``C`` is ``K`` or 1.
        other: ``[M, K, F]``.
        out: ``[E, K]``, written.
    """
    widths = (other.shape[1], rows.shape[1], rows.shape[2])
    large = len(indices) * widths[0] * widths[2] >= _LARGE
    run = _dot_of(*widths) if large else _dot_any
    run(even_parts(indptr), indptr, indices, rows, other, out)


def even_parts(indptr: Array) -> Array:
    """Ranges of rows that hold about the same number of edges and rows: ``[parts + 1]``."""
    parts = np.empty(min(_PARTS, len(indptr) - 1) + 1, dtype=np.int64)
    _find_parts(indptr, parts)
    return parts


@sequential
def _find_parts(indptr: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    num_rows, parts = len(indptr) - 1, max(1, len(out) - 1)
    total = indptr[num_rows] - indptr[0] + num_rows
    for part in range(len(out)):
        target = total * part // parts
        low, high = 0, num_rows
        while low < high:
            middle = (low + high) // 2
            if indptr[middle] - indptr[0] + middle < target:
                low = middle + 1
            else:
                high = middle
        out[part] = low
    out[len(out) - 1] = num_rows


@cache
def _gather_of(num_weights: int, num_channels: int, num_columns: int) -> Callable[..., None]:
    @kernel
    def gather(
        parts: Array,
        indptr: Array,
        indices: Array,
        edge: Array | None,
        weight: Array | None,
        rows: Array,
        out: Array,
    ) -> None:
        for part in prange(len(parts) - 1):
            total = np.empty((num_weights, num_columns), out.dtype)
            for m in range(parts[part], parts[part + 1]):
                total[:] = 0
                for i in range(indptr[m], indptr[m + 1]):
                    at = i if edge is None else edge[i]
                    row = indices[i]
                    for k in range(num_weights):
                        c = k if num_channels > 1 else 0
                        scale = total.dtype.type(1) if weight is None else weight[at, k]
                        for f in range(num_columns):
                            total[k, f] += scale * rows[row, c, f]
                out[m] = total

    return gather


@cache
def _reduce_of(num_weights: int, num_columns: int) -> Callable[..., None]:
    @kernel
    def reduce(
        parts: Array, indptr: Array, indices: Array, edge: Array, weight: Array, rows: Array, out: Array
    ) -> None:
        for part in prange(len(parts) - 1):
            total = np.empty(num_columns, out.dtype)
            for m in range(parts[part], parts[part + 1]):
                total[:] = 0
                for i in range(indptr[m], indptr[m + 1]):
                    row = indices[i]
                    for k in range(num_weights):
                        scale = weight[edge[i], k]
                        for f in range(num_columns):
                            total[f] += scale * rows[row, k, f]
                out[m, 0] = total

    return reduce


@cache
def _dot_of(num_weights: int, num_channels: int, num_columns: int) -> Callable[..., None]:
    @reducing_kernel
    def dot(parts: Array, indptr: Array, indices: Array, rows: Array, other: Array, out: Array) -> None:
        for part in prange(len(parts) - 1):
            for m in range(parts[part], parts[part + 1]):
                for e in range(indptr[m], indptr[m + 1]):
                    row = indices[e]
                    for k in range(num_weights):
                        c = k if num_channels > 1 else 0
                        total = out.dtype.type(0)
                        for f in range(num_columns):
                            total += other[m, k, f] * rows[row, c, f]
                        out[e, k] = total

    return dot


@kernel
def _gather_any(
    parts: Array,
    indptr: Array,
    indices: Array,
    edge: Array | None,
    weight: Array | None,
    rows: Array,
    out: Array,
) -> None:
    for part in prange(len(parts) - 1):
        for m in range(parts[part], parts[part + 1]):
            out[m] = 0
            for i in range(indptr[m], indptr[m + 1]):
                at = i if edge is None else edge[i]
                for k in range(out.shape[1]):
                    c = k if rows.shape[1] > 1 else 0
                    scale = out.dtype.type(1) if weight is None else weight[at, k]
                    for f in range(out.shape[2]):
                        out[m, k, f] += scale * rows[indices[i], c, f]


@kernel
def _reduce_any(
    parts: Array, indptr: Array, indices: Array, edge: Array, weight: Array, rows: Array, out: Array
) -> None:
    for part in prange(len(parts) - 1):
        for m in range(parts[part], parts[part + 1]):
            out[m] = 0
            for i in range(indptr[m], indptr[m + 1]):
                for k in range(rows.shape[1]):
                    scale = weight[edge[i], k]
                    for f in range(out.shape[2]):
                        out[m, 0, f] += scale * rows[indices[i], k, f]


@reducing_kernel
def _dot_any(parts: Array, indptr: Array, indices: Array, rows: Array, other: Array, out: Array) -> None:
    for part in prange(len(parts) - 1):
        for m in range(parts[part], parts[part + 1]):
            for e in range(indptr[m], indptr[m + 1]):
                for k in range(other.shape[1]):
                    c = k if rows.shape[1] > 1 else 0
                    total = out.dtype.type(0)
                    for f in range(other.shape[2]):
                        total += other[m, k, f] * rows[indices[e], c, f]
                    out[e, k] = total
