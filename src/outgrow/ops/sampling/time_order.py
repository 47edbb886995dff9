"""The order of the in-edges of every row by time, which tells those before a time by bisection.

Letters: ``E`` edges, ``V`` nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import parallel_kernel, prange
from outgrow.ops.kernels.work_split import EDGE, END_ROW, ROW, balanced_work
from outgrow.ops.sampling.uniform import Array, Ids

NO_TIME = int(np.iinfo(np.int64).min)
"""Time of a node or an edge without one.

Such an edge has the time of its source; if that has none, it is before every time. Such a node cannot be a seed.
"""
_NEVER = int(np.iinfo(np.int64).max)

Graph = tuple[Ids, Array]
"""``indptr [V + 1]`` and ``indices [E]``."""


class TimeOrder(NamedTuple):
    """In-edges of every row, by time; of equal times in the order of the graph.

    Attributes:
        edges: ``[E]`` int32 or int64, positions among the edges of the graph.
        times: ``[E]`` int64, ascending in each row. Self-loops that are left out are last, with the largest number.
    """

    edges: Array
    times: Ids


def order_by_time(graph: Graph, edge_time: Ids | None, node_time: Ids | None, *, leave_out_loops: bool) -> TimeOrder:
    """Sort the in-edges of every row by time.

    Args:
        graph: The graph.
        edge_time: ``[E]`` int64. An edge without a time has that of its source; None if all are without.
        node_time: ``[V]`` int64; None if nodes have no times.
        leave_out_loops: Whether self-loops come last.
    """
    indptr, indices = graph
    edges: Array = np.empty(len(indices), position_dtype(len(indices)))
    times = np.empty(len(indices), np.int64)
    _sort_rows(balanced_work(indptr), indptr, indices, edge_time, node_time, leave_out_loops, edges, times)
    return TimeOrder(edges, times)


def iterate_time_order(
    graph: Graph, edge_time: Ids | None, node_time: Ids | None, most_edges: int
) -> Iterator[TimeOrder]:
    """Yield the order of the in-edges of consecutive rows, at most ``most_edges`` of several rows at a time.

    Together these are `order_by_time`, with all self-loops at their times. Other arguments as there; arrays may be
    mapped.
    """
    indptr, indices = graph
    narrow = position_dtype(len(indices))
    first = 0
    while first < len(indptr) - 1:
        begin = int(indptr[first])
        last = max(first + 1, int(np.searchsorted(indptr, begin + most_edges, side="right")) - 1)
        end = int(indptr[last])
        times = None if edge_time is None else edge_time[begin:end]
        part = indptr[first : last + 1] - begin, indices[begin:end]
        found = order_by_time(part, times, node_time, leave_out_loops=False)
        yield TimeOrder(found.edges.astype(narrow) + narrow.type(begin), found.times)
        first = last


def position_dtype(num_edges: int) -> np.dtype[Any]:
    """Return the type of positions among so many edges."""
    return np.dtype(np.int32 if num_edges < 2**31 else np.int64)


@parallel_kernel
def _sort_rows(
    parts: Array,
    indptr: Ids,
    indices: Array,
    edge_time: Array | None,
    node_time: Array | None,
    leave_out_loops: bool,
    edges: Array,
    times: Ids,
) -> None:
    for part in prange(len(parts)):
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            begin, end = indptr[v], indptr[v + 1]
            # A row that is cut is sorted where it begins.
            if begin < parts[part, EDGE]:
                continue
            ascending = True
            for e in range(begin, end):
                if leave_out_loops and indices[e] == v:
                    times[e] = _NEVER
                else:
                    times[e] = NO_TIME if edge_time is None else edge_time[e]
                    if times[e] == NO_TIME and node_time is not None:
                        times[e] = node_time[indices[e]]
                edges[e] = e
                if e > begin and times[e] < times[e - 1]:
                    ascending = False
            if not ascending:
                # A stable sort: edges of equal times keep the order of the graph.
                order = np.argsort(times[begin:end], kind="mergesort")
                row = times[begin:end].copy()
                for j in range(len(order)):
                    times[begin + j] = row[order[j]]
                    edges[begin + j] = begin + order[j]


def sum_weights_by_time(indptr: Ids, order: TimeOrder, weight: Array) -> NDArray[np.float64]:
    """Return ``[E]``: the weight of each edge and of those before it in its row, in the order of time."""
    sums = np.empty(len(weight))
    _sum_rows(balanced_work(indptr), indptr, order.edges, weight, sums)
    return sums


@parallel_kernel
def _sum_rows(parts: Array, indptr: Ids, edges: Array, weight: Array, sums: NDArray[np.float64]) -> None:
    for part in prange(len(parts)):
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            if indptr[v] >= parts[part, EDGE]:
                total = 0.0
                for e in range(indptr[v], indptr[v + 1]):
                    total += weight[edges[e]]
                    sums[e] = total
