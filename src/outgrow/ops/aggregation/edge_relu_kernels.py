"""CPU kernels of leaky ReLUs of what both ends and the features of an edge add up to; no row per edge is materialised.

``z[e] = src[u] + dst[v] + features[e] @ weight + shift`` for an edge ``e`` from ``u`` to ``v``. The kernels compute it
again wherever they need it. ``shift`` is the last row of ``terms``, the rows before it are ``weight``. Letters: ``I``
inputs that the features are, ``K`` scales of an edge, ``W`` columns of all of them, ``W / K`` for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import device_function, kernel_factory, parallel_kernel, prange, reducing_kernel
from outgrow.ops.edge_features import add_edge_product
from outgrow.ops.kernels.numerics import as_float, prefetch_distance, prefetch_row
from outgrow.ops.kernels.registers import add_scaled_row, add_to_row, store_accumulator, zero_accumulator
from outgrow.ops.kernels.work_split import END_ROW, ROW, add_split_rows, row_span, store_row

Array = NDArray[Any]

_EDGES_AHEAD = 8
_EDGES_PER_TABLE = 1024


@device_function
def _fill_sum(src: Array, u: int, dst: Array | None, v: int, terms: Array, z: Array) -> None:
    """Write the sum of both ends and the shift to ``z``."""
    last = len(terms) - 1
    for f in range(len(z)):
        z[f] = as_float(src[u, f]) + terms[last, f]
    if dst is not None:
        for f in range(len(z)):
            z[f] += dst[v, f]


@device_function
def _add_product(features: Array | None, starts: Array | None, terms: Array, e: int, z: Array) -> None:
    if features is not None:
        add_edge_product(features, starts, terms, e, z)


@device_function
def _fill_in_registers(
    src: Array,
    dst: Array | None,
    ends: tuple[int, int],
    features: Array | None,
    terms: Array,
    e: int,
    z: Array,
    width: int,
) -> None:
    """Write ``z[e]`` to ``z``, ``[1, W]``, in the order of `_fill_sum` and `_add_product`; ``width`` is a constant."""
    one = terms.dtype.type(1)
    total = add_scaled_row(zero_accumulator(terms, width), one, src, ends[0])
    total = add_scaled_row(total, one, terms, len(terms) - 1)
    if dst is not None:
        total = add_scaled_row(total, one, dst, ends[1])
    if features is not None:
        for d in range(features.shape[1]):
            total = add_scaled_row(total, features[e, d], terms, d)
    store_accumulator(total, z, 0)


@kernel_factory
def make_sum_kernel(fixed: int | None) -> Callable[..., None]:
    """Make the kernel of ``out[v] = sum over in-edges e of weight[e] * leaky_relu(z[e])``."""

    @parallel_kernel
    def relu_sum_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        src: Array,
        features: Array | None,
        starts: Array | None,
        terms: Array,
        slope: float,
        weight: Array | None,
        out: Array,
        cut: Array,
    ) -> None:
        width = terms.shape[1] if fixed is None else fixed
        one = out.dtype.type(1)
        negative_slope = out.dtype.type(slope)
        for part in prange(len(parts)):
            ahead = prefetch_distance(width * src.itemsize)
            total, z = np.empty(width, out.dtype), np.empty(width, out.dtype)
            for v in range(parts[part, ROW], parts[part, END_ROW]):
                for f in range(width):
                    total[f] = 0
                for e in range(*row_span(parts, part, indptr, v)):
                    prefetch_row(src, indices, e, ahead, width)
                    _fill_sum(src, indices[e], None, v, terms, z)
                    _add_product(features, starts, terms, e, z)
                    scale = one if weight is None else weight[e, 0]
                    below = scale * negative_slope
                    for f in range(width):
                        total[f] += z[f] * (scale if z[f] > 0 else below)
                store_row(parts, part, indptr, v, total, out, cut)
        add_split_rows(parts, indptr, out, cut)

    return relu_sum_kernel


@kernel_factory
def make_score_kernel(fixed: tuple[int, int] | None, in_registers: bool) -> Callable[..., None]:
    """Make the kernel of ``out[e, k] = attention[k] . leaky_relu(z[e, k])``.

    Args:
        fixed: Heads, and columns of each; None for any.
        in_registers: Whether ``z`` of fixed widths is summed in registers: of numbers of one type.
    """
    known = 0 if fixed is None else fixed[0] * fixed[1]

    @reducing_kernel
    def relu_score_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        src: Array,
        dst: Array,
        features: Array | None,
        starts: Array | None,
        terms: Array,
        slope: float,
        attention: Array,
        out: Array,
    ) -> None:
        heads = out.shape[1] if fixed is None else fixed[0]
        columns = terms.shape[1] // heads if fixed is None else fixed[1]
        width = heads * columns
        negative_slope = out.dtype.type(slope)
        for part in prange(len(parts)):
            ahead = prefetch_distance(width * src.itemsize)
            z_row = np.empty((1, width), out.dtype)
            z = z_row[0]
            for v in range(parts[part, ROW], parts[part, END_ROW]):
                for e in range(*row_span(parts, part, indptr, v)):
                    prefetch_row(src, indices, e, ahead, width)
                    if in_registers:
                        _fill_in_registers(src, dst, (indices[e], v), features, terms, e, z_row, known)
                    else:
                        _fill_sum(src, indices[e], dst, v, terms, z)
                        _add_product(features, starts, terms, e, z)
                    for k in range(heads):
                        score = out.dtype.type(0)
                        for f in range(k * columns, (k + 1) * columns):
                            score += attention[f] * max(z[f], z[f] * negative_slope)
                        out[e, k] = score

    return relu_score_kernel


@kernel_factory
def make_grad_src_kernel(fixed: tuple[int, int] | None, in_registers: bool) -> Callable[..., None]:
    """Make the kernel of ``out[u] = sum over out-edges e of scale[e] * rate[v] * leaky_relu'(z[e])``.

    ``rate`` has a row for each destination; it is 1 if it is None. Arguments as in `make_score_kernel`.
    """
    known = 0 if fixed is None else fixed[0] * fixed[1]

    @parallel_kernel
    def grad_src_kernel(
        parts: Array,
        edges: tuple[Array, Array, Array],
        src: Array,
        dst: Array | None,
        features: Array | None,
        starts: Array | None,
        terms: Array,
        settings: tuple[float, int],
        scale: Array | None,
        rate: Array | None,
        result: tuple[Array, Array],
    ) -> None:
        slope, heads = settings
        indptr, indices, edge = edges
        out, cut = result
        count = heads if fixed is None else fixed[0]
        columns = terms.shape[1] // count if fixed is None else fixed[1]
        width = count * columns
        one = out.dtype.type(1)
        negative_slope = out.dtype.type(slope)
        for part in prange(len(parts)):
            ahead = prefetch_distance(width * out.itemsize)
            total, z_row = np.empty(width, out.dtype), np.empty((1, width), out.dtype)
            z = z_row[0]
            for u in range(parts[part, ROW], parts[part, END_ROW]):
                for f in range(width):
                    total[f] = 0
                for i in range(*row_span(parts, part, indptr, u)):
                    if dst is not None:
                        prefetch_row(dst, indices, i, ahead, width)
                    if rate is not None:
                        prefetch_row(rate, indices, i, ahead, width)
                    if features is not None:
                        prefetch_row(features, edge, i, _EDGES_AHEAD, features.shape[1])
                    if scale is not None:
                        prefetch_row(scale, edge, i, _EDGES_AHEAD, count)
                    v, e = indices[i], edge[i]
                    if in_registers:
                        _fill_in_registers(src, dst, (u, v), features, terms, e, z_row, known)
                    else:
                        _fill_sum(src, u, dst, v, terms, z)
                        _add_product(features, starts, terms, e, z)
                    for k in range(count):
                        factor = one if scale is None else scale[e, k]
                        below = factor * negative_slope
                        for f in range(k * columns, (k + 1) * columns):
                            z[f] = factor if z[f] > 0 else below
                    if rate is not None:
                        for f in range(width):
                            z[f] *= rate[v, f]
                    for f in range(width):
                        total[f] += z[f]
                store_row(parts, part, indptr, u, total, out, cut)
        add_split_rows(parts, indptr, out, cut)

    return grad_src_kernel


@kernel_factory
def make_grad_terms_kernel(fixed: tuple[int, int] | None, in_registers: bool) -> Callable[..., None]:
    """Make the kernel of the gradients of ``terms``, of destinations, and of the attention where there is one.

    With ``r[e] = scale[e] * rate[v] * leaky_relu'(z[e])``: row ``d`` of ``sums`` is that of ``features[e, d] * r[e]``
    over a share of the edges, row ``I`` that of ``r[e]``, row ``I + 1`` that of ``scale[e] * leaky_relu(z[e])`` if
    there is such a row; ``out[v]`` is the sum of ``r`` over in-edges. Arguments as in `make_score_kernel`.
    """
    known = 0 if fixed is None else fixed[0] * fixed[1]

    @parallel_kernel
    def grad_terms_kernel(
        parts: Array,
        edges: tuple[Array, Array],
        src: Array,
        dst: Array | None,
        features: Array | None,
        starts: Array | None,
        terms: Array,
        settings: tuple[float, int],
        scale: Array | None,
        rate: Array | None,
        out: Array | None,
        result: tuple[Array, Array],
    ) -> None:
        slope, heads = settings
        indptr, indices = edges
        cut, sums = result
        count = heads if fixed is None else fixed[0]
        columns = terms.shape[1] // count if fixed is None else fixed[1]
        width = count * columns
        inputs = len(terms) - 1
        one = terms.dtype.type(1)
        negative_slope = terms.dtype.type(slope)
        shares, num_parts = len(sums), len(parts)
        # A gradient of codes goes to few rows of many, so these are added to at once.
        first_row = 0 if starts is None else inputs
        num_rows = sums.shape[1] - first_row
        # Whole parts per share: the order of each sum follows from the edges alone, not from the threads.
        for share in prange(shares):
            ahead = prefetch_distance(width * src.itemsize)
            total, z_row = np.empty(width, terms.dtype), np.empty((1, width), terms.dtype)
            z = z_row[0]
            table = np.zeros((num_rows, width), terms.dtype)
            for part in range(num_parts * share // shares, num_parts * (share + 1) // shares):
                for v in range(parts[part, ROW], parts[part, END_ROW]):
                    for f in range(width):
                        total[f] = 0
                    first, last = row_span(parts, part, indptr, v)
                    for e in range(first, last):
                        prefetch_row(src, indices, e, ahead, width)
                        if in_registers:
                            _fill_in_registers(src, dst, (indices[e], v), features, terms, e, z_row, known)
                        else:
                            _fill_sum(src, indices[e], dst, v, terms, z)
                            _add_product(features, starts, terms, e, z)
                        for k in range(count):
                            factor = one if scale is None else scale[e, k]
                            below = factor * negative_slope
                            for f in range(k * columns, (k + 1) * columns):
                                slope_f = factor if z[f] > 0 else below
                                if sums.shape[1] > inputs + 1:
                                    table[num_rows - 1, f] += slope_f * z[f]
                                z[f] = slope_f
                        if rate is not None:
                            for f in range(width):
                                z[f] *= rate[v, f]
                        for f in range(width):
                            total[f] += z[f]
                        if features is not None:
                            if in_registers:
                                for d in range(features.shape[1]):
                                    add_to_row(table, d, features[e, d], z_row, 0, known)
                            else:
                                _add_outer(features, starts, e, z, table, sums[share])
                        # Numbers of a few edges in the type of the rows, those of all edges in float64.
                        if e % _EDGES_PER_TABLE == 0:
                            _add_table(table, sums[share], first_row)
                    for f in range(width):
                        table[inputs - first_row, f] += total[f]
                    if out is not None:
                        store_row(parts, part, indptr, v, total, out, cut)
                _add_table(table, sums[share], first_row)
        if out is not None:
            add_split_rows(parts, indptr, out, cut)

    return grad_terms_kernel


@device_function
def _add_outer(features: Array, starts: Array | None, e: int, row: Array, table: Array, sums: Array) -> None:
    """Add the outer product of the features of edge ``e`` and a row: numbers to ``table``, codes to ``sums``."""
    for d in range(features.shape[1]):
        if starts is None:
            value = table.dtype.type(as_float(features[e, d]))
            for f in range(len(row)):
                table[d, f] += value * row[f]
        else:
            code = features[e, d]
            if code >= 0:
                for f in range(len(row)):
                    sums[starts[d] + code, f] += row[f]


@device_function
def _add_table(table: Array, sums: Array, first: int) -> None:
    """Add a table to rows from ``first`` on, and clear it."""
    for d in range(table.shape[0]):
        for f in range(table.shape[1]):
            sums[first + d, f] += table[d, f]
            table[d, f] = 0
