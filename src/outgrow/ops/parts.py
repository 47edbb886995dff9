"""Even shares of the edges: where parallel kernels cut their work, so that no thread waits for a heavy row.

A kernel over parts walks the rows of each part, and of each row the edges that are in the part:

    for part in prange(len(parts)):
        for m in range(parts[part, ROW], parts[part, END_ROW]):
            for i in range(*piece(parts, part, indptr, m)): ...

Only a row with more edges than a part is cut. Its first piece writes the row itself; the others (`is_continued`) write
to a scratch row of their part, and are added in order once all parts are done: the number of threads changes no result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import sequential

Array = NDArray[Any]

ROW, END_ROW, EDGE, END_EDGE = 0, 1, 2, 3
PARTS = 64
"""Parts that are worked on side by side, the same ones whatever the number of threads."""
_LEAST = 256
"""Rows and edges that are worth a part of their own."""


def even_parts(indptr: Array) -> NDArray[np.int64]:
    """``[P, 4]``: first row, last row + 1, first edge and last edge + 1 of each part, in order.

    Parts hold about the same number of rows and edges together. Every row begins in one part; a row that is larger than
    a part goes on in the next.

    Args:
        indptr: ``[M + 1]`` int64; the edges of row ``m`` are ``indptr[m]`` to ``indptr[m + 1]``.
    """
    size = int(indptr[-1] - indptr[0]) + len(indptr) - 1
    parts = np.empty((max(1, min(PARTS, size // _LEAST)), 4), dtype=np.int64)
    _find_parts(indptr, parts)
    return parts


def cut_rows(parts: Array, indptr: Array) -> NDArray[np.int64]:
    """The rows that are cut, in order; a few at most."""
    first = parts[1:, ROW]
    inside = first < len(indptr) - 1
    return np.unique(first[inside][parts[1:, EDGE][inside] > indptr[first[inside]]])


@sequential
def piece(parts: Array, part: int, indptr: Array, row: int) -> tuple[int, int]:
    """First edge and last edge + 1 of a row within a part."""
    return max(indptr[row], parts[part, EDGE]), min(indptr[row + 1], parts[part, END_EDGE])


@sequential
def is_continued(parts: Array, part: int, indptr: Array, row: int) -> bool:
    """Whether a row of this part began in a part before it: then it is the first row of this part."""
    return bool(parts[part, EDGE] > indptr[row])


@sequential
def is_whole(parts: Array, part: int, indptr: Array, row: int) -> bool:
    """Whether all edges of a row are in this part."""
    return bool(parts[part, EDGE] <= indptr[row] and indptr[row + 1] <= parts[part, END_EDGE])


@sequential
def begins(parts: Array, indptr: Array) -> Array:
    """``[P]``: the part in which the first row of each part begins."""
    out = np.arange(len(parts))
    for part in range(1, len(parts)):
        if is_continued(parts, part, indptr, parts[part, ROW]):
            out[part] = out[part - 1] if parts[part - 1, ROW] == parts[part, ROW] else part - 1
    return out


@sequential
def _find_parts(indptr: NDArray[np.int64], parts: NDArray[np.int64]) -> None:
    num_rows, count, origin = len(indptr) - 1, len(parts), indptr[0]
    total = indptr[num_rows] - origin + num_rows
    row, edge = 0, origin
    for part in range(count):
        parts[part, ROW], parts[part, EDGE] = row, edge
        row, edge = _cut(indptr, total * (part + 1) // count, max(1, total // count))
        begun = row < num_rows and edge > indptr[row]
        parts[part, END_ROW], parts[part, END_EDGE] = row + 1 if begun else row, edge


@sequential
def _cut(indptr: NDArray[np.int64], target: int, heavy: int) -> tuple[int, int]:
    """Row and edge with ``target`` rows and edges before them; the start of a row, unless it has ``heavy`` edges."""
    low, high = 0, len(indptr) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if indptr[middle] - indptr[0] + middle <= target:
            low = middle
        else:
            high = middle - 1
    before = indptr[low] - indptr[0] + low
    if low == len(indptr) - 1 or before == target:
        return low, indptr[low]
    inside = indptr[low] + target - before
    if indptr[low + 1] - indptr[low] <= heavy or inside == indptr[low + 1]:
        return low + 1, indptr[low + 1]
    return low, inside
