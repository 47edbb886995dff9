"""SpMM for narrow rows, forward and backward: sums of rows stay in vector registers.

Letters: ``M`` result rows, ``N`` input rows, ``E`` edges, ``K`` heads, ``F`` columns of a head, ``S >= K * F``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import kernel_factory, parallel_kernel, prange
from outgrow.ops.kernels.numerics import NUMBERS_AHEAD, prefetch_distance, prefetch_row
from outgrow.ops.kernels.register_heads import add_weighted_heads, store_head_products, zero_heads
from outgrow.ops.kernels.registers import add_scaled_row, store_row_accumulator
from outgrow.ops.kernels.work_split import END_ROW, ROW, add_split_rows, row_span

Array = NDArray[Any]

_MOST_BYTES = 1024
"""Size of the largest sum: more than 16 registers of 32 bytes hold, but still faster than one in memory."""


def has_narrow_kernel(widths: tuple[int, int, int], rows: Array, out: Array) -> bool:
    """Whether sums stay in registers, or nearly: those of heads with rows of their own, in one precision.

    Args:
        widths: Weights of an edge, channels of a row, and columns of a channel.
        rows: ``[N, S]``.
        out: ``[M, S]``.
    """
    heads, channels, columns = widths
    # Rows in half precision have another type than their sums.
    return heads == channels and rows.dtype == out.dtype and heads * columns * out.itemsize <= _MOST_BYTES


@kernel_factory
def make_narrow_spmm(heads: int, columns: int) -> Callable[..., None]:
    """Make the kernel of ``out[m, k] = sum over edges i of m of weight[edge[i] or i, k] * rows[indices[i], k]``.

    The kernel takes ``parts``, ``indptr [M + 1]``, ``indices [E]``, ``edge [E]`` or None, ``weight [E, K]``
    or None, ``rows [N, S]`` and ``out [M, S]``, which it writes. Its sums have the order of those in memory.
    """

    @parallel_kernel
    def narrow_spmm_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        edge: Array | None,
        weight: Array | None,
        rows: Array,
        out: Array,
    ) -> None:
        cut = np.empty((len(parts), out.shape[1]), out.dtype)
        for part in prange(len(parts)):
            ahead = prefetch_distance(heads * columns * rows.itemsize)
            for m in range(parts[part, ROW], parts[part, END_ROW]):
                total = zero_heads(rows, heads, columns)
                for i in range(*row_span(parts, part, indptr, m)):
                    prefetch_row(rows, indices, i, ahead, heads * columns)
                    at = i if edge is None else edge[i]
                    if edge is not None and weight is not None:
                        prefetch_row(weight, edge, i, NUMBERS_AHEAD, heads)
                    if weight is None:
                        total = add_scaled_row(total, out.dtype.type(1), rows, indices[i])
                    else:
                        total = add_weighted_heads(total, weight, at, rows, indices[i])
                store_row_accumulator(parts, part, indptr, m, total, out, cut)
        add_split_rows(parts, indptr, out, cut)

    return narrow_spmm_kernel


@kernel_factory
def make_narrow_backward(heads: int, columns: int) -> Callable[..., None]:
    """Make the kernel of both gradients of a weighted sum, over the out-edges ``i`` of each source ``m``.

    ``out[m, k] = sum of weight[edge[i], k] * rows[indices[i], k]`` and
    ``d_weight[edge[i], k] = rows[indices[i], k] . own[m, k]``. The kernel takes ``parts``, ``indptr [M + 1]``,
    ``indices [E]``, ``edge [E]``, ``weight [E, K]``, ``rows [N, S]``, ``own [M, S]``, and writes ``out [M, S]`` and
    ``d_weight [E, K]``.
    """

    @parallel_kernel
    def narrow_backward_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        edge: Array,
        weight: Array,
        rows: Array,
        own: Array,
        out: Array,
        d_weight: Array,
    ) -> None:
        cut = np.empty((len(parts), out.shape[1]), out.dtype)
        for part in prange(len(parts)):
            ahead = prefetch_distance(heads * columns * rows.itemsize)
            for m in range(parts[part, ROW], parts[part, END_ROW]):
                total = zero_heads(rows, heads, columns)
                for i in range(*row_span(parts, part, indptr, m)):
                    prefetch_row(rows, indices, i, ahead, heads * columns)
                    prefetch_row(weight, edge, i, NUMBERS_AHEAD, heads)
                    prefetch_row(d_weight, edge, i, NUMBERS_AHEAD, heads)
                    # One read of the gradient row serves both results: memory is the bottleneck.
                    total = add_weighted_heads(total, weight, edge[i], rows, indices[i])
                    # Each edge leaves exactly one source, so no other thread writes this row.
                    store_head_products(total, rows, indices[i], own, m, d_weight, edge[i])
                store_row_accumulator(parts, part, indptr, m, total, out, cut)
        add_split_rows(parts, indptr, out, cut)

    return narrow_backward_kernel
