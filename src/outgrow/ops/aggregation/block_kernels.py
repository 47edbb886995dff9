"""CPU kernels of rows times small matrices, one for each relation and block of columns, in registers.

A row visits its edges relation by relation: their weighted sum is multiplied by the matrix of the relation at once, so
there is no table of pairs. Sums of a head of 16 columns are one instruction a step, where a product of a matrix library
for each relation and head costs more to prepare than to compute. Letters: ``R`` relations, ``K`` blocks, each of ``I``
by ``J`` numbers; ``P`` parts of the work. Rows ``[N, K * I]`` are given as ``[N * K, I]``, or as some of these with
``step`` rows from a node to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import device_function, kernel_factory, parallel_kernel, prange, reducing_kernel
from outgrow.ops.kernels.numerics import LINE_BYTES, prefetch_distance, prefetch_line
from outgrow.ops.kernels.registers import add_scaled_row, add_to_row, store_accumulator, zero_accumulator
from outgrow.ops.kernels.work_split import END_ROW, ROW, add_split_rows, row_span, store_row

Array = NDArray[Any]


@device_function
def _find_end(relation: Array, first: int, last: int) -> int:
    """Return the position after the edges of the same relation as the first one."""
    end = first + 1
    while end < last and relation[end] == relation[first]:
        end += 1
    return end


@device_function
def _prefetch_blocks(rows: Array, step: int, indices: Array, first: int, end: int, ahead: int, width: int) -> None:
    """Prefetch the rows, ``width`` numbers each, of edges that come ``ahead`` edges after some others."""
    for i in range(first, end):
        row = indices[min(i + ahead, len(indices) - 1)] * step
        # Blocks of a row lie one after another.
        for column in range(0, width, LINE_BYTES // rows.itemsize):
            prefetch_line(rows, row, column)


@device_function
def _sum_block(
    rows: Array,
    step: int,
    edges: tuple[Array, Array, Array, Array],
    span: tuple[int, int],
    weight: Array,
    k: int,
    sums: Array,
    width: int,
) -> None:
    """Write the weighted sum of block ``k`` of the rows of some edges to ``sums[k]``; ``width`` is a constant."""
    _, indices, edge, _ = edges
    total = zero_accumulator(rows, width)
    for i in range(span[0], span[1]):
        total = add_scaled_row(total, weight[edge[i], k if weight.shape[1] > 1 else 0], rows, indices[i] * step + k)
    store_accumulator(total, sums, k)


@device_function
def _add_product(
    total: Array, k: int, factors: Array, row: int, matrix: Array, begin: int, height: int, width: int
) -> None:
    """Add the product of ``factors[row]`` and ``height`` rows of a matrix, from ``begin`` on, to ``total[k]``.

    Both sizes are constants.
    """
    product = add_scaled_row(zero_accumulator(matrix, width), total.dtype.type(1), total, k)
    for f in range(height):
        product = add_scaled_row(product, factors[row, f], matrix, begin + f)
    store_accumulator(product, total, k)


@kernel_factory
def make_block_sum(blocks: int, inner: int, outer: int) -> Callable[..., None]:
    """Make the kernel of ``out[m] = sum over edges i of m of (weight[edge[i]] * rows[indices[i]]) @ matrix[relation]``.

    It takes ``parts``, the edges (``indptr``, ``indices``, ``edge``, ``relation``, which ascends within each row),
    ``weight [E, 1 or K]``, ``rows [., I]`` and their step, ``matrix [R * K * I, J]``, and ``out [M, K * J]``, which it
    writes.
    """

    @parallel_kernel
    def block_sum_kernel(
        parts: Array,
        edges: tuple[Array, Array, Array, Array],
        weight: Array,
        rows: Array,
        step: int,
        matrix: Array,
        out: Array,
    ) -> None:
        indptr, indices, _, relation = edges
        cut = np.empty((len(parts), out.shape[1]), out.dtype)
        ahead = prefetch_distance(blocks * inner * rows.itemsize)
        for part in prange(len(parts)):
            sums, row = np.empty((blocks, inner), out.dtype), np.empty(blocks * outer, out.dtype)
            total = row.reshape(blocks, outer)
            for m in range(parts[part, ROW], parts[part, END_ROW]):
                total[:] = 0
                first, last = row_span(parts, part, indptr, m)
                while first < last:
                    end = _find_end(relation, first, last)
                    _prefetch_blocks(rows, step, indices, first, end, ahead, blocks * inner)
                    for k in range(blocks):
                        _sum_block(rows, step, edges, (first, end), weight, k, sums, inner)
                        _add_product(total, k, sums, k, matrix, (relation[first] * blocks + k) * inner, inner, outer)
                    first = end
                store_row(parts, part, indptr, m, row, out, cut)
        add_split_rows(parts, indptr, out, cut)

    return block_sum_kernel


@kernel_factory
def make_block_dot(blocks: int, inner: int, outer: int) -> Callable[..., None]:
    """Make the kernel of ``out[edge[i], k] = (rows[indices[i], k] @ matrix[relation, k]) . other[m, k]``.

    It takes ``parts``, the edges, ``rows [., I]`` and their step, ``other [., J]`` and their step, ``back [R * K * J,
    I]``, the transposed matrices, and ``out [E, K]``, which it writes.
    """

    @reducing_kernel
    def block_dot_kernel(
        parts: Array,
        edges: tuple[Array, Array, Array, Array],
        rows: Array,
        step: int,
        other: Array,
        other_step: int,
        back: Array,
        out: Array,
    ) -> None:
        indptr, indices, edge, relation = edges
        ahead = prefetch_distance(blocks * inner * rows.itemsize)
        for part in prange(len(parts)):
            mapped = np.empty((blocks, inner), out.dtype)
            for m in range(parts[part, ROW], parts[part, END_ROW]):
                first, last = row_span(parts, part, indptr, m)
                while first < last:
                    end = _find_end(relation, first, last)
                    _prefetch_blocks(rows, step, indices, first, end, ahead, blocks * inner)
                    mapped[:] = 0
                    for k in range(blocks):
                        pair = relation[first] * blocks + k
                        _add_product(mapped, k, other, m * other_step + k, back, pair * outer, outer, inner)
                    for i in range(first, end):
                        row = indices[i] * step
                        for k in range(blocks):
                            total = out.dtype.type(0)
                            for f in range(inner):
                                total += mapped[k, f] * rows[row + k, f]
                            out[edge[i], k] = total
                    first = end

    return block_dot_kernel


@kernel_factory
def make_block_gradient(blocks: int, inner: int, outer: int) -> Callable[..., None]:
    """Make the kernel of the gradients of own rows and of the matrices, from the out-edges of each row ``m``.

    With ``sum[m, r] = sum over its out-edges i of relation r of weight[edge[i]] * rows[indices[i]]``, it computes
    ``out[m] = sum over r of sum[m, r] @ matrix[r].T`` and ``d_matrix[p, r] = sum over m of part p of own[m].T @
    sum[m, r]``. It takes ``parts``, the edges, ``weight [E, 1 or K]``, ``rows [., J]`` and their step, ``own [., I]``
    and their step, ``back [R * K * J, I]``, the transposed matrices, ``out [M, K * I]``, and ``d_matrix [P * R * K *
    I, J]``, which is zeros at first.
    """

    @parallel_kernel
    def block_gradient_kernel(
        parts: Array,
        edges: tuple[Array, Array, Array, Array],
        weight: Array,
        rows: Array,
        step: int,
        own: Array,
        own_step: int,
        back: Array,
        out: Array,
        d_matrix: Array,
    ) -> None:
        indptr, indices, _, relation = edges
        cut = np.empty((len(parts), out.shape[1]), out.dtype)
        of_part = len(d_matrix) // len(parts)
        ahead = prefetch_distance(blocks * outer * rows.itemsize)
        for part in prange(len(parts)):
            sums, row = np.empty((blocks, outer), out.dtype), np.empty(blocks * inner, out.dtype)
            total = row.reshape(blocks, inner)
            for m in range(parts[part, ROW], parts[part, END_ROW]):
                total[:] = 0
                first, last = row_span(parts, part, indptr, m)
                while first < last:
                    end = _find_end(relation, first, last)
                    _prefetch_blocks(rows, step, indices, first, end, ahead, blocks * outer)
                    for k in range(blocks):
                        pair = relation[first] * blocks + k
                        _sum_block(rows, step, edges, (first, end), weight, k, sums, outer)
                        _add_product(total, k, sums, k, back, pair * outer, outer, inner)
                        for f in range(inner):
                            at = part * of_part + pair * inner + f
                            add_to_row(d_matrix, at, own[m * own_step + k, f], sums, k, outer)
                    first = end
                store_row(parts, part, indptr, m, row, out, cut)
        add_split_rows(parts, indptr, out, cut)

    return block_gradient_kernel
