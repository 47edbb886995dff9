"""Weighted sampling of in-edges without replacement, as a pure function of a key and the node of each row.

An edge of weight ``w`` gets an exponential time of rate ``w``; the ``k`` earliest edges of a row are chosen.
This equals drawing one after another, each with probability proportional to its share of the remaining weight
(Efraimidis and Spirakis: Weighted random sampling with a reservoir, IPL 97, 2006). The time of the edge at
position ``j`` of the row of node ``v`` is ``-log(1 - x) / w`` with ``x = uniform01(hash64(hash64(key, v),
j))``.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import serial_kernel
from outgrow.ops.rng import hash64, uniform01
from outgrow.ops.sampling.bitset import Bits
from outgrow.ops.sampling.earliest import heap_push, heap_replace, write_ascending
from outgrow.ops.sampling.uniform import Array, Ids, Out, Rows, copy_all


@serial_kernel
def sample_weighted(rows: Rows, weight: NDArray[np.float32], fanout: int, key: np.uint64, bits: Bits, out: Out) -> int:
    """Choose ``fanout`` edges of positive weight of each row with more edges, and all of the others.

    Where edges of positive weight are left out, the product of ``sample_weight`` and weight is the same for
    all chosen edges of the row: a ``fanout``-th of the weight of all its edges.

    Args:
        rows: See `outgrow.ops.sampling.uniform.Rows`.
        weight: Weight of every edge of the graph, 0 or more.
        fanout: At least 1.
        key: Key of (seed, epoch, step, layer).
        bits: A set for numbers below the largest degree.
        out: See `outgrow.ops.sampling.uniform.Out`; written.

    Returns:
        ``E``, at most the count of `outgrow.ops.sampling.uniform.find_row_bounds`.
    """
    nodes, first, degree = rows
    indptr, chosen, stands_for = out
    times, places = np.empty(fanout), np.empty(fanout, dtype=np.int64)
    at = 0
    indptr[0] = 0
    for i in range(len(nodes)):
        count = degree[i]
        origin = first[i]
        start = at
        if count <= fanout:
            copy_all(origin, count, chosen, stands_for, at)
            at += count
        else:
            row = weight[origin : origin + count]
            total, positive = _select_earliest_edges(row, hash64(key, np.uint64(nodes[i])), times, places)
            at = write_ascending(places[: min(positive, fanout)], count, origin, bits, chosen, at)
            for e in range(start, at):
                stands_for[e] = total / (fanout * np.float64(weight[chosen[e]])) if positive > fanout else 1.0
        indptr[i + 1] = at
    return at


@serial_kernel
def _select_earliest_edges(weight: Array, key: np.uint64, times: NDArray[np.float64], places: Ids) -> tuple[float, int]:
    """Find the positions of the earliest edges, in any order.

    Returns the sum of weights and how many of them are positive.
    """
    most = len(times)
    positive = 0
    total = 0.0
    for j in range(len(weight)):
        rate = np.float64(weight[j])
        if rate > 0:
            total += rate
            x = uniform01(hash64(key, np.uint64(j)))
            if positive < most:
                heap_push(times, places, positive, -math.log1p(-x) / rate, j)
            # Since -log(1 - x) >= x, this rules out most late edges without the cost of a logarithm.
            elif x < rate * times[0]:
                time = -math.log1p(-x) / rate
                if time < times[0]:
                    heap_replace(times, places, time, j)
            positive += 1
    return total, positive
