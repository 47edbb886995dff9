"""Sums of weighted rows over the edges of each node, where a row fits into the processor's registers.

Letters: ``M`` result rows, ``N`` given rows, ``E`` edges, ``F`` columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.accumulator import MOST_BYTES, accumulator, plus_row, put_row
from outgrow.ops.backend import kernel, prange
from outgrow.ops.parts import END_ROW, ROW, is_continued, piece
from outgrow.ops.pieces import add_cut
from outgrow.ops.prefetch import NUMBERS_AHEAD, edges_ahead, prefetch_row

Array = NDArray[Any]


def is_narrow(rows: Array, out: Array, columns: int) -> bool:
    """Whether sums of so many columns of ``rows``, of the type of ``out``, fit into registers."""
    return rows.dtype == out.dtype and columns * out.itemsize <= MOST_BYTES


@cache
def narrow_gather_of(columns: int) -> Callable[..., None]:
    """``out[m] = sum over edges i of m of weight[edge[i] or i, 0] * rows[indices[i]]``, of rows of ``columns`` numbers.

    The kernel takes ``parts``, ``indptr [M + 1]``, ``indices [E]``, ``edge [E]`` or None, ``weight [E, 1]`` or None,
    ``rows [N, S]`` and ``out [M, S]`` with ``S >= F``, which it writes.
    """

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
        cut = np.empty((len(parts), out.shape[1]), out.dtype)
        for part in prange(len(parts)):
            ahead = edges_ahead(columns * rows.itemsize)
            for m in range(parts[part, ROW], parts[part, END_ROW]):
                total = accumulator(rows, columns)
                for i in range(*piece(parts, part, indptr, m)):
                    prefetch_row(rows, indices, i, ahead, columns)
                    at = i if edge is None else edge[i]
                    if edge is not None and weight is not None:
                        prefetch_row(weight, edge, i, NUMBERS_AHEAD, 1)
                    scale = out.dtype.type(1) if weight is None else weight[at, 0]
                    total = plus_row(total, scale, rows, indices[i])
                if is_continued(parts, part, indptr, m):
                    put_row(total, cut, part)
                else:
                    put_row(total, out, m)
        add_cut(parts, indptr, out, cut)

    return gather
