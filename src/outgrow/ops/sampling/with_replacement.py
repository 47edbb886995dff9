"""Sampling of in-edges with replacement, as a pure function of a key and the node of each row.

Draw ``i`` of node ``v`` is ``hash64(hash64(key, v), i)``: a position in the row, or a point of the row's summed
weights. Equal draws are one edge, which represents as many in-edges as its draws do together (Hansen and
Hurwitz: On the theory of sampling from finite populations, Annals of Mathematical Statistics 14, 1943).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import device_function, serial_kernel
from outgrow.ops.rng import hash64, uniform01
from outgrow.ops.sampling.bitset import Bits, add_bit, drain_bitset, mark_word
from outgrow.ops.sampling.uniform import Array, Out, Rows, draw_integer


@serial_kernel
def sample_with_replacement(rows: Rows, weight: Array | None, fanout: int, key: np.uint64, bits: Bits, out: Out) -> int:
    """Draw ``fanout`` times from each row that has edges, however few: uniformly, or in proportion to weights.

    An edge that was drawn ``m`` times represents ``m / fanout`` of the row's edges; by weight, its weight times
    that number is ``m / fanout`` of the weight of the row. A row whose weights are all 0 keeps nothing.

    Args:
        rows: See `outgrow.ops.sampling.uniform.Rows`.
        weight: Weight of every edge of the graph, 0 or more; None to draw uniformly.
        fanout: At least 1.
        key: Key of (seed, epoch, step, layer).
        bits: A set for numbers below the largest degree.
        out: See `outgrow.ops.sampling.uniform.Out`; written.

    Returns:
        ``E``, at most the count of `outgrow.ops.sampling.uniform.find_row_bounds`.
    """
    nodes, first, degree = rows
    words, groups = bits
    indptr, chosen, stands_for = out
    largest = 0
    for i in range(len(degree)):
        largest = max(largest, degree[i])
    times = np.zeros(largest, dtype=np.int64)
    bounds = np.empty(0 if weight is None else largest)
    at = 0
    indptr[0] = 0
    for i in range(len(nodes)):
        count, origin, start = degree[i], first[i], at
        total = np.float64(count) if weight is None else _add_up(weight, origin, count, bounds)
        if total > 0:
            row_key = hash64(key, np.uint64(nodes[i]))
            for j in range(fanout):
                if weight is None:
                    place = draw_integer(row_key, j, np.uint64(count - 1))
                else:
                    place = _find_point(bounds, count, total * uniform01(hash64(row_key, np.uint64(j))))
                times[place] += 1
                mark_word(groups, add_bit(words, 0, place))
            at = drain_bitset(words, groups, count, origin, chosen, at)
            for e in range(start, at):
                place = np.uint64(chosen[e] - origin)
                share = total if weight is None else total / np.float64(weight[chosen[e]])
                stands_for[e] = share * times[place] / fanout
                # Only the drawn places were touched; the next row expects zeros.
                times[place] = 0
        indptr[i + 1] = at
    return at


@device_function
def _add_up(weight: Array, origin: int, count: int, bounds: NDArray[np.float64]) -> float:
    """Write the running sums of a row's weights, and return the last."""
    total = 0.0
    for j in range(count):
        total += np.float64(weight[origin + j])
        bounds[j] = total
    return total


@device_function
def _find_point(bounds: NDArray[np.float64], count: int, point: float) -> np.uint64:
    """Return the first place whose running sum exceeds ``point``: never one of weight 0."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        if bounds[middle] > point:
            high = middle
        else:
            low = middle + 1
    return np.uint64(low)
