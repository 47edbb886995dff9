"""Uniform sampling of in-edges without replacement, as a pure function of a key and the node of each row.

Draw ``i`` of node ``v`` is ``hash64(hash64(key, v), i)``. Of ``d`` in-edges, ``k`` are chosen by Floyd's
method (Bentley and Floyd: A sample of brilliance, CACM 30, 1987): for ``last`` from ``d - k`` to ``d - 1``
take a number in ``[0, last]``, or ``last`` if that number was taken before. All kernels of the sampler run on
one thread without Python's lock, so that callers sample several batches in parallel. Letters: ``n`` rows,
``E`` chosen edges, ``V`` nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import device_function, serial_kernel
from outgrow.ops.kernels.numerics import prefetch_line
from outgrow.ops.rng import hash64, uniform01
from outgrow.ops.sampling.bitset import (
    GROUP_BITS,
    ONE,
    WORD_BITS,
    Bits,
    Words,
    add_bit,
    drain_bitset,
    has_bit,
    lowest_bit,
    mark_word,
    scale_to_range,
)

Array = NDArray[Any]
Ids = NDArray[np.int64]
Rows = tuple[Ids, Ids, Ids]
"""``[n]`` each: nodes, first edge of each row in the graph, number of edges of each row in the graph."""
Out = tuple[Ids, Ids, NDArray[np.float32]]
"""Output of the kernels.

``[n + 1]``: where the chosen edges of each row begin. ``[E]``: the chosen edges, ascending in each row.
``[E]``: how many in-edges each of them represents.
"""

_ROWS_AHEAD = 16


@serial_kernel
def find_row_bounds(rows: Rows, indptr: Ids, fanout: int) -> tuple[int, int]:
    """Find the rows of some nodes and count their edges.

    Args:
        rows: The nodes; the two other arrays are written.
        indptr: ``[V + 1]`` of the graph.
        fanout: Edges that are chosen from a row with more.

    Returns:
        How many edges will be chosen, and how many there are.
    """
    nodes, first, degree = rows
    chosen, every = 0, 0
    lines = indptr.reshape((len(indptr), 1))
    for i in range(len(nodes)):
        prefetch_line(lines, nodes[min(i + _ROWS_AHEAD, len(nodes) - 1)], 0)
        v = np.uint64(nodes[i])
        first[i] = indptr[v]
        degree[i] = indptr[v + ONE] - first[i]
        # Summed here, so that callers can allocate the results before anything is sampled.
        chosen += min(degree[i], fanout)
        every += degree[i]
    return chosen, every


@device_function
def draw_integer(key: np.uint64, i: int, last: np.uint64) -> np.uint64:
    """Return draw ``i`` of a key: a number from 0 to ``last``."""
    number: np.uint64 = scale_to_range(hash64(key, np.uint64(i)), last + ONE)
    return number


@serial_kernel
def fill_uniform(key: np.uint64, out: NDArray[np.float64]) -> None:
    """Fill ``out[i]`` with draw ``i`` of a key, in [0, 1)."""
    for i in range(len(out)):
        out[i] = uniform01(hash64(key, np.uint64(i)))


@serial_kernel
def sample_uniform(rows: Rows, fanout: int, key: np.uint64, bits: Bits, out: Out) -> int:
    """Choose ``fanout`` edges of each row with more, and all edges of the others.

    Args:
        rows: See `Rows`.
        fanout: At least 1.
        key: Key of (seed, epoch, step, layer).
        bits: A set for numbers below the largest degree, if rows are cut.
        out: See `Out`; written.

    Returns:
        ``E``.
    """
    nodes, first, degree = rows
    words, groups = bits
    indptr, chosen, stands_for = out
    at = 0
    indptr[0] = 0
    for i in range(len(nodes)):
        count = degree[i]
        origin = first[i]
        if count <= fanout:
            copy_all(origin, count, chosen, stands_for, at)
            at += count
        else:
            row_key = hash64(key, np.uint64(nodes[i]))
            # The set of chosen edges in the smallest form for the degree: a register for most rows.
            if count <= WORD_BITS:
                _sample_in_word(row_key, count, fanout, origin, chosen, at)
            elif count <= GROUP_BITS:
                _sample_in_group(row_key, count, fanout, words, origin, chosen, at)
            else:
                for j in range(fanout):
                    last = np.uint64(count - fanout + j)
                    number = draw_integer(row_key, j, last)
                    mark_word(groups, add_bit(words, 0, last if has_bit(words, 0, number) else number))
                drain_bitset(words, groups, count, origin, chosen, at)
            # Each chosen edge is weighted by the inverse of its probability (Horvitz & Thompson).
            represented = np.float32(count / fanout)
            for j in range(fanout):
                stands_for[np.uint64(at + j)] = represented
            at += fanout
        indptr[i + 1] = at
    return at


@device_function
def copy_all(origin: int, count: int, chosen: Ids, sample_weight: NDArray[np.float32], at: int) -> None:
    """Choose all edges of a row."""
    for j in range(count):
        chosen[np.uint64(at + j)] = origin + j
        sample_weight[np.uint64(at + j)] = 1


@device_function
def _sample_in_word(key: np.uint64, count: int, fanout: int, origin: int, chosen: Ids, at: int) -> None:
    """Choose from a row of at most 64 edges, with the set in a register."""
    word = np.uint64(0)
    for j in range(fanout):
        last = np.uint64(count - fanout + j)
        number = draw_integer(key, j, last)
        # A number below last + 1 that was taken gives way to ``last``, which no earlier draw could reach.
        word |= ONE << (last if (word >> number) & ONE else number)
    for j in range(fanout):
        chosen[np.uint64(at + j)] = origin + lowest_bit(word)
        word &= word - ONE


@device_function
def _sample_in_group(key: np.uint64, count: int, fanout: int, words: Words, origin: int, chosen: Ids, at: int) -> None:
    """Choose from a row of at most 4,096 edges, with the bits of nonzero words in a register."""
    group = np.uint64(0)
    for j in range(fanout):
        last = np.uint64(count - fanout + j)
        number = draw_integer(key, j, last)
        group |= ONE << add_bit(words, 0, last if has_bit(words, 0, number) else number)
    # Bits are read from low to high, so that the chosen edges are ascending; words are cleared for the next
    # row.
    place = 0
    word = np.uint64(0)
    for j in range(fanout):
        if word == 0:
            place = lowest_bit(group)
            group &= group - ONE
            word = words[np.uint64(place)]
            words[np.uint64(place)] = 0
        chosen[np.uint64(at + j)] = origin + place * WORD_BITS + lowest_bit(word)
        word &= word - ONE
