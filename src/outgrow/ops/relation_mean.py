"""The share of each edge in its relation at its destination: the kernel under `relation_mean`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import kernel, prange, sequential
from outgrow.ops.parts import END_ROW, ROW, begins, is_continued, is_whole, piece

Array = NDArray[Any]


@kernel
def divide_by_totals(
    parts: Array, indptr: Array, relation: Array, weight: Array | None, total: Array, out: Array
) -> None:
    """The weight of each edge over that of all edges of its row and its relation; 0 where that is not finite.

    Args:
        parts: ``[P, 4]``.
        indptr: ``[M + 1]`` int64.
        relation: ``[E]`` integer, below ``R``.
        weight: ``[E]``; None if all are 1.
        total: ``[P, 2, R]`` zeros, for what a part adds to the row that began before it, and to the one that goes on.
        out: ``[E]``, written.
    """
    for part in prange(len(parts)):
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            if not is_whole(parts, part, indptr, v):
                slot = 0 if is_continued(parts, part, indptr, v) else 1
                _count(piece(parts, part, indptr, v), relation, weight, total[part, slot])
    begin = begins(parts, indptr)
    for part in range(len(parts)):
        total[begin[part], 1] += total[part, 0]
    for part in prange(len(parts)):
        own = np.zeros(total.shape[2])
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            span = piece(parts, part, indptr, v)
            if is_whole(parts, part, indptr, v):
                _count(span, relation, weight, own)
                _divide(span, relation, weight, own, out)
                for e in range(*span):
                    own[relation[e]] = 0
            else:
                mine = total[begin[part]] if is_continued(parts, part, indptr, v) else total[part]
                _divide(span, relation, weight, mine[1], out)


@sequential
def _count(span: tuple[int, int], relation: Array, weight: Array | None, total: Array) -> None:
    """Add the weights of a span of edges to the totals of their relations."""
    for e in range(*span):
        total[relation[e]] += 1.0 if weight is None else weight[e]


@sequential
def _divide(span: tuple[int, int], relation: Array, weight: Array | None, total: Array, out: Array) -> None:
    """The share of each edge of a span in the total of its relation."""
    for e in range(*span):
        value = (1.0 if weight is None else weight[e]) / total[relation[e]]
        out[e] = value if np.isfinite(value) else 0.0
