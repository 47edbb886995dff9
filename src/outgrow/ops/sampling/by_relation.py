"""Choice of in-edges with a number for each relation, and what the graph has of each relation.

Within a relation the choice is that of `outgrow.ops.sampling.uniform01.sample_uniform` among the row's edges
of that relation, with the key ``hash64(mix(key, v), relation)`` instead of ``hash64(key, v)``. Relation -1, a
loop that was added, counts as the last of ``R + 1``. Both kernels read all edges of a row, because those of a
relation are not side by side.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import serial_kernel
from outgrow.ops.rng import hash64
from outgrow.ops.sampling.bitset import WORD_BITS, Bits, Words, add_bit, has_bit
from outgrow.ops.sampling.uniform import Array, Ids, Out, Rows, draw_integer


@serial_kernel
def sample_by_relation(rows: Rows, relation: Array, fanout: Ids, key: np.uint64, bits: Bits, out: Out) -> int:
    """Choose ``most[r]`` edges of relation ``r`` of each row that has more of them, and all of the other relations.

    Args:
        rows: See `NodeMessages`.
        relation: Relation of every edge of the graph, -1 to ``R - 1``.
        fanout: ``[R + 1]``, at least 1 each.
        key: Of (seed, epoch, step, layer).
        bits: A set for numbers below the largest degree and ``R + 1`` words more.
        out: Written.

    Returns:
        ``E``.
    """
    nodes, first, degree = rows
    words, _ = bits
    indptr, chosen, stands_for = out
    counts, rank = np.empty_like(fanout), np.empty_like(fanout)
    at = 0
    indptr[0] = 0
    for i in range(len(nodes)):
        end = first[i] + degree[i]
        counts[:] = 0
        for e in range(first[i], end):
            counts[relation[e]] += 1
        used = _sample_each_relation(hash64(key, np.uint64(nodes[i])), fanout, counts, rank, words)
        for e in range(first[i], end):
            r = relation[e]
            whole = counts[r] <= fanout[r]
            if whole or has_bit(words, 0, np.uint64(rank[r])):
                chosen[at], stands_for[at] = e, 1.0 if whole else counts[r] / fanout[r]
                at += 1
            rank[r] += 1
        words[:used] = 0
        indptr[i + 1] = at
    return at


@serial_kernel
def _sample_each_relation(key: np.uint64, fanout: Ids, counts: Ids, rank: Ids, words: Words) -> int:
    """Draw for each relation that is cut, in words of its own; returns how many are in use.

    ``rank`` is written: the first bit of each relation's words.
    """
    used = 0
    for r in range(len(fanout)):
        rank[r] = used * WORD_BITS
        if counts[r] > fanout[r]:
            relation_key = hash64(key, np.uint64(r))
            for j in range(fanout[r]):
                last = np.uint64(counts[r] - fanout[r] + j)
                number = draw_integer(relation_key, j, last)
                add_bit(words, used, last if has_bit(words, used, number) else number)
            used += (counts[r] + WORD_BITS - 1) // WORD_BITS
    return used


@serial_kernel
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
        rows: See `NodeMessages`.
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
