"""Sampling of in-edges with a fan-out for each relation, and totals of each relation in the graph.

Within a relation, edges are chosen as by `outgrow.ops.sampling.uniform.sample_uniform` among the row's edges
of that relation, with the key ``hash64(hash64(key, v), relation)`` instead of ``hash64(key, v)``. Relation
-1, an added self-loop, counts as the last of ``R + 1``. Both kernels read all edges of a row, since those of
one relation are not consecutive.
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
    """Choose ``fanout[r]`` edges of each relation ``r`` with more in a row, and all of the others.

    Args:
        rows: See `outgrow.ops.sampling.uniform.Rows`.
        relation: Relation of every edge of the graph, -1 to ``R - 1``.
        fanout: ``[R + 1]``, at least 1 each.
        key: Key of (seed, epoch, step, layer).
        bits: A set for numbers below the largest degree and ``R + 1`` words more.
        out: See `outgrow.ops.sampling.uniform.Out`; written.

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
        # Draws are ranks among the edges of a relation: a second pass over the row turns ranks into edges.
        used = _sample_each_relation(hash64(key, np.uint64(nodes[i])), fanout, counts, rank, words)
        for e in range(first[i], end):
            r = relation[e]
            whole = counts[r] <= fanout[r]
            # Relation -1 indexes the last entry of each table, which is that of added self-loops.
            if whole or has_bit(words, 0, np.uint64(rank[r])):
                chosen[at] = e
                stands_for[at] = 1.0 if whole else counts[r] / fanout[r]
                at += 1
            rank[r] += 1
        # Only the words of this row were touched; the next one expects an empty set.
        words[:used] = 0
        indptr[i + 1] = at
    return at


@serial_kernel
def _sample_each_relation(key: np.uint64, fanout: Ids, counts: Ids, rank: Ids, words: Words) -> int:
    """Draw for each relation with too many edges, in words of its own; return how many words are in use.

    ``rank`` is written: the first bit of the words of each relation.
    """
    used = 0
    for r in range(len(fanout)):
        rank[r] = used * WORD_BITS
        if counts[r] > fanout[r]:
            relation_key = hash64(key, np.uint64(r))
            for j in range(fanout[r]):
                last = np.uint64(counts[r] - fanout[r] + j)
                number = draw_integer(relation_key, j, last)
                # Floyd's method: a number that was drawn before is replaced by the newest candidate.
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
    """Compute the total weight in the graph of all in-edges of the same row and relation.

    Args:
        rows: See `outgrow.ops.sampling.uniform.Rows`.
        relation: Relation of every edge of the graph, -1 to ``R - 1``.
        weight: Weight of every edge of the graph; None if all are 1.
        num_relations: ``R``.
        indptr: ``[n + 1]``, where the chosen edges of each row begin.
        chosen: ``[E]``, the chosen edges.
        out: ``[E]``, written.
    """
    _, first, degree = rows
    # Degrees of the graph rather than of the sample: means over a sample must not depend on its size.
    totals = np.empty(num_relations + 1)
    for i in range(len(first)):
        totals[:] = 0
        for e in range(first[i], first[i] + degree[i]):
            totals[relation[e]] += 1.0 if weight is None else weight[e]
        for at in range(indptr[i], indptr[i + 1]):
            out[at] = totals[relation[chosen[at]]]
