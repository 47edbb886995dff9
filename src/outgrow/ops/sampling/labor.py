"""Layer-neighbour sampling (LABOR): rows choose by numbers of the sources, which all rows share.

Source ``u`` has one number ``r_u`` in [0, 1), and every row keeps the ``k`` in-neighbours with the smallest:
``k`` edges as in neighbour sampling, of fewer distinct sources. By weight, ``r_u / w`` takes the place of
``r_u``. Balin and Catalyurek: Layer-neighbor sampling: defusing neighborhood explosion in GNNs, NeurIPS 2023,
LABOR-0, in the form of sequential Poisson sampling, whose sizes are exact (Ohlsson: Sequential Poisson
sampling, Journal of Official Statistics 14, 1998).

The number of ``u`` is ``uniform01(hash64(key, u))``. Of parallel edges from ``u``, which are neighbours in a
row, the first has that number and the ``c``-th after it has ``uniform01(hash64(hash64(key, u), c))``: with one
number for all, the first of them would be kept more often than the second, and sums would be biased. All
numbers of a row are thereby independent, and each choice of ``k`` of its edges is equally likely.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import serial_kernel
from outgrow.ops.rng import hash64, uniform01
from outgrow.ops.sampling.bitset import Bits
from outgrow.ops.sampling.earliest import heap_push, heap_replace, write_ascending
from outgrow.ops.sampling.uniform import Array, Ids, Out, Rows, copy_all


@serial_kernel
def sample_labor(
    rows: Rows, indices: Array, weight: Array | None, fanout: int, key: np.uint64, bits: Bits, out: Out
) -> int:
    """Choose ``fanout`` edges of each row with more, and all edges of the others.

    By weight, edges of weight 0 are not chosen from rows with more than ``fanout`` edges, and weights are as in
    `outgrow.ops.sampling.weighted.sample_weighted`.

    Args:
        rows: See `outgrow.ops.sampling.uniform.Rows`.
        indices: Source of every edge of the graph, ascending in each row but for a self-loop at its end.
        weight: Weight of every edge of the graph, 0 or more; None to choose without regard to weights.
        fanout: At least 1.
        key: Key of (seed, epoch, step, layer).
        bits: A set for numbers below the largest degree.
        out: See `outgrow.ops.sampling.uniform.Out`; written.

    Returns:
        ``E``, at most the count of `outgrow.ops.sampling.uniform.find_row_bounds`.
    """
    nodes, first, degree = rows
    indptr, chosen, stands_for = out
    numbers, places = np.empty(fanout), np.empty(fanout, dtype=np.int64)
    at = 0
    indptr[0] = 0
    for i in range(len(nodes)):
        count, origin, start = degree[i], first[i], at
        if count <= fanout:
            copy_all(origin, count, chosen, stands_for, at)
            at += count
        else:
            total, positive = _select_smallest(indices, weight, origin, count, key, numbers, places)
            at = write_ascending(places[: min(positive, fanout)], count, origin, bits, chosen, at)
            for e in range(start, at):
                share = total if weight is None else total / np.float64(weight[chosen[e]])
                stands_for[e] = share / fanout if positive > fanout else 1.0
        indptr[i + 1] = at
    return at


@serial_kernel
def _select_smallest(
    indices: Array,
    weight: Array | None,
    origin: int,
    count: int,
    key: np.uint64,
    numbers: NDArray[np.float64],
    places: Ids,
) -> tuple[float, int]:
    """Find the places of the edges with the smallest numbers, in any order.

    Returns the sum of weights, or of edges, and how many edges may be chosen.
    """
    most = len(numbers)
    positive, copies = 0, 0
    total = 0.0
    for j in range(count):
        source = indices[np.uint64(origin + j)]
        copies = copies + 1 if j > 0 and source == indices[np.uint64(origin + j - 1)] else 0
        rate = 1.0 if weight is None else np.float64(weight[origin + j])
        if rate > 0:
            total += rate
            hashed = hash64(key, np.uint64(source))
            if copies > 0:
                hashed = hash64(hashed, np.uint64(copies))
            number = uniform01(hashed) / rate
            if positive < most:
                heap_push(numbers, places, positive, number, j)
            elif number < numbers[0]:
                heap_replace(numbers, places, number, j)
            positive += 1
    return total, positive
