"""Choice of in-edges with a number for each relation, and what the graph has of each relation.

Within a relation the choice is that of `outgrow.ops.sampling.uniform.choose` among the row's edges of that relation,
with the key ``mix(mix(key, v), relation)`` instead of ``mix(key, v)``. Relation -1, a loop that was added, counts as
the last of ``R + 1``. Both kernels read all edges of a row, because those of a relation are not side by side.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import sequential
from outgrow.ops.rng import mix
from outgrow.ops.sampling.bitset import WORD_BITS, Bits, Words, add, has
from outgrow.ops.sampling.uniform import Array, Ids, Out, Rows, drawn


@sequential
def choose_related(rows: Rows, relation: Array, most: Ids, key: np.uint64, bits: Bits, out: Out) -> int:
    """Choose ``most[r]`` edges of relation ``r`` of each row that has more of them, and all of the other relations.

    Args:
        rows: See `Rows`.
        relation: Relation of every edge of the graph, -1 to ``R - 1``.
        most: ``[R + 1]``, at least 1 each.
        key: Of (seed, epoch, step, layer).
        bits: A set for numbers below the largest degree and ``R + 1`` words more.
        out: Written.

    Returns:
        ``E``.
    """
    nodes, first, degree = rows
    words, _ = bits
    indptr, chosen, stands_for = out
    counts, rank = np.empty_like(most), np.empty_like(most)
    at = 0
    indptr[0] = 0
    for i in range(len(nodes)):
        end = first[i] + degree[i]
        counts[:] = 0
        for e in range(first[i], end):
            counts[relation[e]] += 1
        used = _draw_each(mix(key, np.uint64(nodes[i])), most, counts, rank, words)
        for e in range(first[i], end):
            r = relation[e]
            whole = counts[r] <= most[r]
            if whole or has(words, 0, np.uint64(rank[r])):
                chosen[at], stands_for[at] = e, 1.0 if whole else counts[r] / most[r]
                at += 1
            rank[r] += 1
        words[:used] = 0
        indptr[i + 1] = at
    return at


@sequential
def _draw_each(key: np.uint64, most: Ids, counts: Ids, rank: Ids, words: Words) -> int:
    """Draw for each relation that is cut, in words of its own; returns how many are in use.

    ``rank`` is written: the first bit of each relation's words.
    """
    used = 0
    for r in range(len(most)):
        rank[r] = used * WORD_BITS
        if counts[r] > most[r]:
            relation_key = mix(key, np.uint64(r))
            for j in range(most[r]):
                last = np.uint64(counts[r] - most[r] + j)
                number = drawn(relation_key, j, last)
                add(words, used, last if has(words, used, number) else number)
            used += (counts[r] + WORD_BITS - 1) // WORD_BITS
    return used


@sequential
def relation_degrees(
    rows: Rows,
    relation: Array,
    weight: Array | None,
    num_relations: int,
    indptr: Ids,
    chosen: Ids,
    out: NDArray[np.float64],
) -> None:
    """Weight in the graph of all in-edges of the same row and relation.

    Args:
        rows: See `Rows`.
        relation: Relation of every edge of the graph, -1 to ``R - 1``.
        weight: Weight of every edge of the graph; None if all are 1.
        num_relations: ``R``.
        indptr: ``[n + 1]``, where the chosen edges of each row begin.
        chosen: ``[E]``, the chosen edges.
        out: ``[E]``, written.
    """
    _, first, degree = rows
    totals = np.empty(num_relations + 1)
    for i in range(len(first)):
        totals[:] = 0
        for e in range(first[i], first[i] + degree[i]):
            totals[relation[e]] += 1.0 if weight is None else weight[e]
        for at in range(indptr[i], indptr[i + 1]):
            out[at] = totals[relation[chosen[at]]]
