"""CPU kernels of rows times a matrix for each relation: sums of pairs and their products, a few rows at a time.

The edges of some consecutive rows are sorted by relation; the pairs of a relation are summed into a small buffer, which
is multiplied while it is in the cache. No table of pairs exists, and a matrix is read once for many pairs. Letters:
``R`` relations, ``I`` columns of summed rows, ``O`` of products, ``D`` of own rows; ``P`` parts of the work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.aggregation.pair_edges import sort_by_relation
from outgrow.ops.backend import kernel_factory, parallel_kernel, prange, serial_kernel
from outgrow.ops.kernels.numerics import prefetch_distance, prefetch_row
from outgrow.ops.kernels.register_tiles import add_product, tile_height
from outgrow.ops.kernels.registers import add_scaled_row, copy_row, store_accumulator, zero_accumulator
from outgrow.ops.kernels.work_split import EDGE, END_EDGE, END_ROW, ROW, add_split_rows, continues_row

Array = NDArray[Any]

BLOCK_SIZE = 4096
"""Rows and edges that are sorted at a time: their results stay in the cache."""
_PAIRS = 64
"""Pairs that are summed before they are multiplied."""


@serial_kernel
def _find_block(parts: Array, part: int, indptr: Array, first: int) -> tuple[int, int, int]:
    """Return the row after those of the block that begins with a row, its first edge, and the one after its last."""
    begin = max(indptr[first], parts[part, EDGE])
    last = first + 1
    while last < parts[part, END_ROW] and indptr[last + 1] - begin + last + 1 - first <= BLOCK_SIZE:
        last += 1
    return last, begin, min(indptr[last], parts[part, END_EDGE])


@kernel_factory
def make_pair_kernel(inner: int, outer: int, own_width: int, itemsize: int) -> Callable[..., None]:
    """Make the kernel of products and gradients of the sums ``s[m, r]`` over the edges of row ``m`` and relation ``r``.

    With ``s[m, r] = sum over these edges i of weight[edge[i]] * rows[indices[i]]`` it writes ``out[m] = sum over r of
    s[m, r] @ matrix[r]`` and adds ``sum over m of part p of own[m].T @ s[m, r]`` to ``d_matrix[p, r]``. It takes
    ``parts``, ``indptr [M + 1]``, ``indices [E]``, ``edge [E]`` or None for the given order, ``relation [E]``, ``weight
    [E, 1]``, ``rows [N, I]``; ``matrix [R * I, O]`` and ``out [M, O]``, or None twice; ``own [M, D]`` and ``d_matrix
    [P * R * D, I]``, or None twice. ``R`` is given as well. Rows may be longer than their columns.
    """
    height, gradient_height = tile_height(outer * itemsize), tile_height(inner * itemsize)

    @parallel_kernel
    def pair_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        edge: Array | None,
        relation: Array,
        num_relations: int,
        weight: Array,
        rows: Array,
        matrix: Array | None,
        out: Array | None,
        own: Array | None,
        d_matrix: Array | None,
    ) -> None:
        cut = np.empty((len(parts) if out is not None else 0, outer), rows.dtype)
        ahead = prefetch_distance(inner * rows.itemsize)
        for part in prange(len(parts)):
            scratch, borders = np.empty((3, num_relations), np.int64), np.empty(num_relations + 1, np.int64)
            sums, mine = np.empty((_PAIRS, inner), rows.dtype), np.empty((_PAIRS, own_width), rows.dtype)
            first = parts[part, ROW]
            while first < parts[part, END_ROW]:
                last, begin, end = _find_block(parts, part, indptr, first)
                row, ends, order = sort_by_relation(
                    indptr, edge, relation, (first, last), (begin, end), scratch, borders
                )
                sources = indices[order]
                total = np.zeros((last - first if out is not None else 0, outer), rows.dtype)
                for r in range(num_relations):
                    for p in range(borders[r], borders[r + 1], _PAIRS):
                        count = min(_PAIRS, borders[r + 1] - p)
                        for j in range(count):
                            single = zero_accumulator(rows, inner)
                            for i in range(ends[p + j], ends[p + j + 1]):
                                prefetch_row(rows, sources, i, ahead, inner)
                                at = order[i] if edge is None else edge[order[i]]
                                single = add_scaled_row(single, weight[at, 0], rows, sources[i])
                            store_accumulator(single, sums, j)
                        if out is not None and matrix is not None:
                            of_relation = (r * inner, (r + 1) * inner)
                            add_product(sums, (0, count), matrix, of_relation, total, row[p:], height, outer)
                        if own is not None and d_matrix is not None:
                            for j in range(count):
                                copy_row(own, first + row[p + j], mine, j, own_width)
                            place = (part * num_relations + r) * own_width
                            places = np.arange(place, place + own_width)
                            span = (0, own_width)
                            add_product(mine.T, span, sums, (0, count), d_matrix, places, gradient_height, inner)
                if out is not None:
                    for v in range(first, last):
                        # A branch rather than a view of one row: the store intrinsic takes an array and a row.
                        if continues_row(parts, part, indptr, v):
                            copy_row(total, v - first, cut, part, outer)
                        else:
                            copy_row(total, v - first, out, v, outer)
                first = last
        if out is not None:
            add_split_rows(parts, indptr, out, cut)

    return pair_kernel
