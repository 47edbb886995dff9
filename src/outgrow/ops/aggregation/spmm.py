"""SpMM and SDDMM kernels over the edges of each node: forward and backward of `WeightedSum`.

For large inputs the kernels are compiled with the widths as constants, so that the sum of a row stays in
registers and the first-level cache. For small inputs they read the widths at run time, so that one compiled
kernel serves all widths. Letters: ``M`` result rows, ``N`` input rows, ``E`` edges, ``C`` channels, ``K``
weights of an edge, ``F`` columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.aggregation.narrow_spmm import has_narrow_kernel, make_narrow_backward, make_narrow_spmm
from outgrow.ops.backend import as_numpy, gpu_dispatch, kernel_factory, parallel_kernel, prange, reducing_kernel
from outgrow.ops.kernels.numerics import NUMBERS_AHEAD, as_float, prefetch_distance, prefetch_row
from outgrow.ops.kernels.work_split import END_ROW, ROW, add_split_rows, balanced_work, continues_row, row_span
from outgrow.ops.memory_pool import as_input_rows, as_output_rows

Array = NDArray[Any]
Widths = tuple[int, int, int]
"""``K``, ``C`` and ``F``."""

_LARGE = 1 << 24
"""Numbers that are summed from which a kernel is compiled for its width before it runs."""
_MANY_EDGES = 1 << 17
"""Edges from which a kernel for the width saves a millisecond a call.

Where it has the bits of the one for all widths, it runs once another process has compiled it."""


@gpu_dispatch
def spmm(
    indptr: Tensor,
    indices: Tensor,
    edge: Tensor | None,
    weight: Tensor | None,
    rows: Tensor,
    out: Tensor,
    *,
    add: bool = False,
    num_edges: int | None = None,
) -> None:
    """Compute ``out[m, k] = sum over edges i of m of weight[edge[i] or i, k] * rows[indices[i], k or 0]``.

    Args:
        indptr: ``[M + 1]`` int64.
        indices: ``[E]`` row of each edge.
        edge: ``[E]`` position of the weight of each edge; None if it is that of the edge.
        weight: ``[E, K]``; None if all are 1.
        rows: ``[N, C, F]``; ``C`` is ``K`` or 1. May be stored in half precision.
        out: ``[M, K, F]``, written.
        add: Whether to add to ``out``; rows without edges stay as they are.
        num_edges: Edges of the whole graph, of which these are a chunk; None for ``E``.
    """
    given = as_input_rows(rows)
    sums = as_output_rows(out)
    num_weights, num_channels, columns = _kernel_widths(out, rows)
    # Sum the padding columns too: loops over whole cache lines need no remainder.
    if num_weights == num_channels == 1:
        columns = min(given.shape[1], sums.shape[1])
    widths = num_weights, num_channels, columns
    # By the whole graph, so that all of its chunks run the same kernel.
    num_edges = len(indices) if num_edges is None else num_edges
    large = _is_large(num_edges, widths)
    ends = as_numpy(indptr)
    edges = balanced_work(ends), ends, as_numpy(indices)
    operands = None if edge is None else as_numpy(edge), None if weight is None else as_numpy(weight), given, sums

    def sum_any_width() -> None:
        _make_spmm_kernel(None)(*edges, *operands, widths, add)

    if not large and num_edges < _MANY_EDGES:
        sum_any_width()
        return
    # The register kernel starts each sum at zero, so it cannot add to ``out``.
    narrow = not add and has_narrow_kernel(widths, given, sums)
    kernel: Any = make_narrow_spmm(num_weights, columns) if narrow else _make_spmm_kernel(widths)
    given_to_it = (*edges, *operands) if narrow else (*edges, *operands, widths, add)
    if large:
        kernel(*given_to_it)
    else:
        kernel.run_if_compiled(sum_any_width, *given_to_it)


@gpu_dispatch
def spmm_sum_heads(indptr: Tensor, indices: Tensor, edge: Tensor, weight: Tensor, rows: Tensor, out: Tensor) -> None:
    """Compute ``out[m, 0] = sum over edges i of m and k of weight[edge[i], k] * rows[indices[i], k]``.

    Args:
        indptr: ``[M + 1]`` int64.
        indices: ``[E]`` row of each edge.
        edge: ``[E]`` position of the weights of each edge.
        weight: ``[E, K]``.
        rows: ``[N, K, F]``.
        out: ``[M, 1, F]``, written.
    """
    widths = _kernel_widths(rows, out)
    run = _make_sum_heads_kernel(widths if _is_large(len(indices), widths) else None)
    ends = as_numpy(indptr)
    operands = as_numpy(edge), as_numpy(weight), as_input_rows(rows), as_output_rows(out)
    run(balanced_work(ends), ends, as_numpy(indices), *operands, widths)


@gpu_dispatch
def sddmm_dot(indptr: Tensor, indices: Tensor, rows: Tensor, other: Tensor, out: Tensor) -> None:
    """Compute ``out[e, k] = other[m, k] . rows[indices[e], k or 0]`` for each edge ``e`` of ``m``.

    Args:
        indptr: ``[M + 1]`` int64.
        indices: ``[E]`` row of each edge.
        rows: ``[N, C, F]``; ``C`` is ``K`` or 1. May be stored in half precision.
        other: ``[M, K, F]``.
        out: ``[E, K]``, written.
    """
    widths = _kernel_widths(other, rows)
    run = _make_sddmm_kernel(widths if _is_large(len(indices), widths) else None)
    ends = as_numpy(indptr)
    run(balanced_work(ends), ends, as_numpy(indices), as_input_rows(rows), as_input_rows(other), out.numpy(), widths)


@gpu_dispatch
def spmm_backward_fused(
    indptr: Tensor,
    indices: Tensor,
    edge: Tensor,
    weight: Tensor,
    rows: Tensor,
    own: Tensor,
    out: Tensor,
    d_weight: Tensor,
) -> None:
    """Compute both gradients of a weighted sum in one pass over the out-edges ``i`` of each source ``m``.

    ``out[m, k or 0] = sum of weight[edge[i], k] * rows[indices[i], k]`` and
    ``d_weight[edge[i], k] = rows[indices[i], k] . own[m, k or 0]``.

    Args:
        indptr: ``[M + 1]`` int64.
        indices: ``[E]`` destination row of each edge.
        edge: ``[E]`` position of the weights of each edge.
        weight: ``[E, K]``.
        rows: ``[N, K, F]`` gradient of the destinations.
        own: ``[M, C, F]`` rows of the sources; ``C`` is ``K`` or 1.
        out: ``[M, C, F]``, written.
        d_weight: ``[E, K]``, written.
    """
    widths = _kernel_widths(rows, own)
    ends, gradients, sums = as_numpy(indptr), as_input_rows(rows), as_output_rows(out)
    operands = as_numpy(edge), as_numpy(weight), gradients, as_input_rows(own)
    given = balanced_work(ends), ends, as_numpy(indices), *operands, sums, d_weight.numpy()
    large = _is_large(len(indices), widths)
    if (large or len(indices) >= _MANY_EDGES) and has_narrow_kernel(widths, gradients, sums):
        make_narrow_backward(widths[0], widths[2])(*given)
    else:
        _make_backward_kernel(widths if large else None)(*given, widths)


def _kernel_widths(wide: Tensor, narrow: Tensor) -> Widths:
    """Return ``K`` of ``wide``, and ``C`` and ``F`` of ``narrow``."""
    return wide.shape[1], narrow.shape[1], narrow.shape[2]


def _is_large(num_edges: int, widths: Widths) -> bool:
    return num_edges * widths[0] * widths[2] >= _LARGE


@kernel_factory
def _make_spmm_kernel(fixed: Widths | None) -> Callable[..., None]:
    # Frozen by Numba: each ``fixed > 0`` below is decided at compile time.
    fixed_weights, fixed_channels, fixed_columns = fixed or (0, 0, 0)

    @parallel_kernel
    def spmm_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        edge: Array | None,
        weight: Array | None,
        rows: Array,
        out: Array,
        widths: Widths,
        add: bool,
    ) -> None:
        cut = np.empty((len(parts), out.shape[1]), out.dtype)
        for part in prange(len(parts)):
            num_weights = fixed_weights if fixed_weights > 0 else widths[0]
            num_channels = fixed_channels if fixed_channels > 0 else widths[1]
            columns = fixed_columns if fixed_columns > 0 else widths[2]
            ahead = prefetch_distance(num_channels * columns * rows.itemsize)
            total = np.empty((num_weights, columns), out.dtype)
            for m in range(parts[part, ROW], parts[part, END_ROW]):
                first, last = row_span(parts, part, indptr, m)
                continued = continues_row(parts, part, indptr, m)
                if add and first == last and not continued:
                    continue
                total[:] = 0
                # Later pieces of a row start from zero, or ``out`` would count several times.
                if add and not continued:
                    for k in range(num_weights):
                        for f in range(columns):
                            total[k, f] = out[m, k * columns + f]
                for i in range(first, last):
                    prefetch_row(rows, indices, i, ahead, num_channels * columns)
                    at = i if edge is None else edge[i]
                    # The processor prefetches sequential reads by itself: weights in edge order.
                    if edge is not None and weight is not None:
                        prefetch_row(weight, edge, i, NUMBERS_AHEAD, num_weights)
                    row = indices[i]
                    for k in range(num_weights):
                        # With one channel, all weights of an edge scale the same source row (bases).
                        c = k if num_channels > 1 else 0
                        scale = total.dtype.type(1) if weight is None else weight[at, k]
                        for f in range(columns):
                            total[k, f] += scale * as_float(rows[row, c * columns + f])
                # The part where a row begins writes ``out``, others scratch: no two threads share a row.
                target = cut[part] if continued else out[m]
                for k in range(num_weights):
                    for f in range(columns):
                        target[k * columns + f] = total[k, f]
        add_split_rows(parts, indptr, out, cut)

    return spmm_kernel


@kernel_factory
def _make_sum_heads_kernel(fixed: Widths | None) -> Callable[..., None]:
    fixed_weights, _, fixed_columns = fixed or (0, 0, 0)

    @parallel_kernel
    def sum_heads_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        edge: Array,
        weight: Array,
        rows: Array,
        out: Array,
        widths: Widths,
    ) -> None:
        cut = np.empty((len(parts), out.shape[1]), out.dtype)
        for part in prange(len(parts)):
            num_weights = fixed_weights if fixed_weights > 0 else widths[0]
            columns = fixed_columns if fixed_columns > 0 else widths[2]
            ahead = prefetch_distance(num_weights * columns * rows.itemsize)
            total = np.empty(columns, out.dtype)
            for m in range(parts[part, ROW], parts[part, END_ROW]):
                total[:] = 0
                first, last = row_span(parts, part, indptr, m)
                for i in range(first, last):
                    prefetch_row(rows, indices, i, ahead, num_weights * columns)
                    prefetch_row(weight, edge, i, NUMBERS_AHEAD, num_weights)
                    row = indices[i]
                    for k in range(num_weights):
                        scale = weight[edge[i], k]
                        # All heads read one source row, so its gradient sums over the heads as well.
                        for f in range(columns):
                            total[f] += scale * rows[row, k * columns + f]
                target = cut[part] if continues_row(parts, part, indptr, m) else out[m]
                for f in range(columns):
                    target[f] = total[f]
        add_split_rows(parts, indptr, out, cut)

    return sum_heads_kernel


@kernel_factory
def _make_sddmm_kernel(fixed: Widths | None) -> Callable[..., None]:
    fixed_weights, fixed_channels, fixed_columns = fixed or (0, 0, 0)

    @reducing_kernel
    def sddmm_kernel(
        parts: Array, indptr: Array, indices: Array, rows: Array, other: Array, out: Array, widths: Widths
    ) -> None:
        for part in prange(len(parts)):
            num_weights = fixed_weights if fixed_weights > 0 else widths[0]
            num_channels = fixed_channels if fixed_channels > 0 else widths[1]
            columns = fixed_columns if fixed_columns > 0 else widths[2]
            ahead = prefetch_distance(num_channels * columns * rows.itemsize)
            for m in range(parts[part, ROW], parts[part, END_ROW]):
                first, last = row_span(parts, part, indptr, m)
                for e in range(first, last):
                    prefetch_row(rows, indices, e, ahead, num_channels * columns)
                    row = indices[e]
                    for k in range(num_weights):
                        c = k if num_channels > 1 else 0
                        # Vectorised, since a `reducing_kernel` may reorder additions. Cut rows need no care.
                        total = out.dtype.type(0)
                        for f in range(columns):
                            total += other[m, k * columns + f] * as_float(rows[row, c * columns + f])
                        out[e, k] = total

    return sddmm_kernel


@kernel_factory
def _make_backward_kernel(fixed: Widths | None) -> Callable[..., None]:
    fixed_weights, fixed_channels, fixed_columns = fixed or (0, 0, 0)

    @reducing_kernel
    def backward_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        edge: Array,
        weight: Array,
        rows: Array,
        own: Array,
        out: Array,
        d_weight: Array,
        widths: Widths,
    ) -> None:
        cut = np.empty((len(parts), out.shape[1]), out.dtype)
        for part in prange(len(parts)):
            num_weights = fixed_weights if fixed_weights > 0 else widths[0]
            num_channels = fixed_channels if fixed_channels > 0 else widths[1]
            columns = fixed_columns if fixed_columns > 0 else widths[2]
            ahead = prefetch_distance(num_weights * columns * rows.itemsize)
            total = np.empty((num_channels, columns), out.dtype)
            for m in range(parts[part, ROW], parts[part, END_ROW]):
                total[:] = 0
                first, last = row_span(parts, part, indptr, m)
                for i in range(first, last):
                    prefetch_row(rows, indices, i, ahead, num_weights * columns)
                    prefetch_row(weight, edge, i, NUMBERS_AHEAD, num_weights)
                    prefetch_row(d_weight, edge, i, NUMBERS_AHEAD, num_weights)
                    row = indices[i]
                    at = edge[i]
                    for k in range(num_weights):
                        c = k if num_channels > 1 else 0
                        scale = weight[at, k]
                        product = out.dtype.type(0)
                        # One read of the gradient row serves both results: memory is the bottleneck.
                        for f in range(columns):
                            value = rows[row, k * columns + f]
                            total[c, f] += scale * value
                            product += value * own[m, c * columns + f]
                        # Each edge leaves exactly one source, so no other thread writes this row.
                        d_weight[at, k] = product
                target = cut[part] if continues_row(parts, part, indptr, m) else out[m]
                for c in range(num_channels):
                    for f in range(columns):
                        target[c * columns + f] = total[c, f]
        add_split_rows(parts, indptr, out, cut)

    return backward_kernel
