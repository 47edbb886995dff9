"""In-edges before a time: which those of a row are, and where chosen ones are in the graph.

The in-edges of every row are sorted by time once (`outgrow.ops.sampling.time_order`), so that those before a time are
the first ``k`` of their row, found by bisection: ``O(log d)`` for a row of ``d``. That matters because a batch has a
node of many in-edges once for each of its times. The price is 8 bytes an edge for the times and 4 (8 from 2^31 edges
on) for the order. The samplers of `outgrow.ops.sampling` draw among these ``k`` as if they were all of the row;
positions in the order are turned into edges of the graph afterwards. A row is a pair of a node and a time, and its
draws are keyed by both.

With self-loops, the loops of the graph are left out, and the position after the first ``k`` stands for the one that is
added. Letters as in `outgrow.ops.sampling.uniform`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import serial_kernel
from outgrow.ops.rng import as_int64, hash64
from outgrow.ops.sampling.self_loops import ADDED, GivenLoops
from outgrow.ops.sampling.time_order import Graph
from outgrow.ops.sampling.uniform import Array, Ids, Out, Rows

_SHORT = 32

Resolved = tuple[Ids, Ids, Ids, Ids, NDArray[np.float32]]
"""``[n + 1]`` ends of rows; ``[E]`` each: edges of the view, edges of the graph, sources, in-edges represented."""


@serial_kernel
def _count_before(times: Ids, begin: int, end: int, time: int) -> int:
    """Count the times of a row that are before another."""
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        if times[middle] < time:
            low = middle + 1
        else:
            high = middle
    return low - begin


@serial_kernel
def find_rows_before(
    rows: Rows, row_times: Ids, pairs: Ids, indptr: Ids, times: Ids, loops: int, fanout: int
) -> tuple[int, int]:
    """Find the in-edges before the time of each row in the order of time, and count them.

    Args:
        rows: The nodes; the two other arrays are written, for positions in the order of time.
        row_times: ``[n]``, the time of each row.
        pairs: ``[n]``, written: a number for node and time, by which draws are keyed.
        indptr: ``[V + 1]`` of the graph.
        times: See `outgrow.ops.sampling.time_order.TimeOrder`.
        loops: Self-loops that are added to each row: 0 or 1.
        fanout: Edges that are chosen from a row with more.

    Returns:
        How many edges will be chosen, and how many there are.
    """
    nodes, first, degree = rows
    chosen, every = 0, 0
    for i in range(len(nodes)):
        v = nodes[i]
        first[i] = indptr[v]
        degree[i] = _count_before(times, indptr[v], indptr[v + 1], row_times[i]) + loops
        pairs[i] = as_int64(hash64(np.uint64(v), np.uint64(row_times[i])))
        chosen += min(degree[i], fanout)
        every += degree[i]
    return chosen, every


@serial_kernel
def total_weight_before(
    nodes: Ids,
    row_times: Ids,
    indptr: Ids,
    times: Ids,
    sums: NDArray[np.float64] | None,
    loops: int,
    out: NDArray[np.float64],
) -> None:
    """Compute ``out [n]``, the total weight of the in-edges of nodes before their times, and of added self-loops.

    ``sums`` are those of `outgrow.ops.sampling.time_order.sum_weights_by_time`; None if all weights are 1. Other
    arguments as in `find_rows_before`.
    """
    for i in range(len(nodes)):
        begin = indptr[nodes[i]]
        count = _count_before(times, begin, indptr[nodes[i] + 1], row_times[i])
        if sums is None:
            out[i] = count + loops
        else:
            out[i] = loops if count == 0 else sums[begin + count - 1] + loops


@serial_kernel
def choose_last(rows: Rows, fanout: int, out: Out) -> int:
    """Choose the ``fanout`` last edges of each row with more, and all edges of the others.

    Args:
        rows: Rows in the order of time.
        fanout: At least 1.
        out: See `outgrow.ops.sampling.uniform.Out`; written.

    Returns:
        ``E``.
    """
    nodes, first, degree = rows
    indptr, chosen, stands_for = out
    at = 0
    indptr[0] = 0
    for i in range(len(nodes)):
        count = min(degree[i], fanout)
        for j in range(count):
            chosen[at] = first[i] + degree[i] - count + j
            stands_for[at] = degree[i] / count
            at += 1
        indptr[i + 1] = at
    return at


@serial_kernel
def choose_last_by_relation(rows: Rows, relation: Array, fanout: Ids, out: Out) -> int:
    """Choose the ``fanout[r]`` last edges of each relation ``r`` with more in a row, and all of the others.

    Args:
        rows: Rows in the order of time.
        relation: ``[E]`` relation of every edge, in the order of time.
        fanout: ``[R + 1]``, at least 1 each.
        out: See `outgrow.ops.sampling.uniform.Out`; written.

    Returns:
        ``E``.
    """
    nodes, first, degree = rows
    indptr, chosen, stands_for = out
    counts = np.empty_like(fanout)
    at = 0
    indptr[0] = 0
    for i in range(len(nodes)):
        end = first[i] + degree[i]
        counts[:] = 0
        for e in range(first[i], end):
            counts[relation[e]] += 1
        # Forward again: an edge is among the last of its relation once enough of it have been passed over.
        skipped = np.maximum(counts - fanout, 0)
        for e in range(first[i], end):
            r = relation[e]
            if skipped[r] > 0:
                skipped[r] -= 1
            else:
                chosen[at] = e
                stands_for[at] = counts[r] / min(counts[r], fanout[r])
                at += 1
        indptr[i + 1] = at
    return at


@serial_kernel
def resolve_edges_before(
    rows: Rows, drawn: Out, edges: Array, graph: Graph, given: GivenLoops | None, keeps_loops: bool, out: Resolved
) -> int:
    """Find edges that were chosen in the order of time, and write them ascending in each row; added self-loops last.

    Args:
        rows: Rows in the order of time.
        drawn: What was chosen of them.
        edges: See `outgrow.ops.sampling.time_order.TimeOrder`.
        graph: The graph.
        given: Its self-loops; None if none are added.
        keeps_loops: Whether each row gets its added self-loop, which is then not among what was drawn from.
        out: See `Resolved`; written. Edges of the view are numbered as in
            `outgrow.ops.sampling.self_loops.resolve_looped_edges`.

    Returns:
        ``E``.
    """
    nodes, first, degree = rows
    drawn_ends, chosen, drawn_weights = drawn
    indptr, view_edges, found, sources, stands_for = out
    at = 0
    indptr[0] = 0
    for i in range(len(nodes)):
        v = nodes[i]
        start, has_loop = at, keeps_loops
        for j in range(drawn_ends[i], drawn_ends[i + 1]):
            # The last place of a row stands for the added self-loop, and is drawn last.
            if given is not None and not keeps_loops and chosen[j] == first[i] + degree[i] - 1:
                has_loop = True
                loop_weight = drawn_weights[j]
            else:
                found[at] = edges[chosen[j]]
                stands_for[at] = drawn_weights[j]
                at += 1
        _sort_row(found[start:at], stands_for[start:at])
        for e in range(start, at):
            sources[e] = graph[1][found[e]]
            view_edges[e] = found[e]
        if given is not None:
            end = graph[0][v + 1]
            before = np.searchsorted(given.nodes, v)
            within = np.searchsorted(given.nodes, v + 1) - before
            # Loops of a row lie side by side: the view has none of them, and one after the row instead.
            gap = given.edges[before] if within > 0 else end
            for e in range(start, at):
                view_edges[e] += v - before - (within if found[e] > gap else 0)
            if has_loop:
                view_edges[at] = end + v - before - within
                found[at] = ADDED
                sources[at] = v
                stands_for[at] = 1 if keeps_loops else loop_weight
                at += 1
        indptr[i + 1] = at
    return at


@serial_kernel
def _sort_row(edges: Ids, weights: NDArray[np.float32]) -> None:
    """Sort distinct edges, and their weights with them."""
    if len(edges) > _SHORT:
        order = np.argsort(edges)
        edges[:] = edges[order]
        weights[:] = weights[order]
        return
    for j in range(1, len(edges)):
        edge, weight, k = edges[j], weights[j], j
        while k > 0 and edges[k - 1] > edge:
            edges[k], weights[k] = edges[k - 1], weights[k - 1]
            k -= 1
        edges[k], weights[k] = edge, weight


@serial_kernel
def relation_degrees_before(
    rows: Rows,
    loops: int,
    edges: Array,
    relation: Array,
    weight: Array | None,
    num_relations: int,
    indptr: Ids,
    found: Ids,
    out: NDArray[np.float64],
) -> None:
    """Compute the total weight of all in-edges of the same row and relation before the time of the row.

    Args:
        rows: Rows in the order of time.
        loops: Self-loops that are added to each row: 0 or 1.
        edges: See `outgrow.ops.sampling.time_order.TimeOrder`.
        relation: ``[E]`` relation of every edge of the graph, 0 to ``R - 1``.
        weight: ``[E]`` weight of every edge of the graph; None if all are 1.
        num_relations: ``R``.
        indptr: ``[n + 1]``, where the edges of each row begin.
        found: Edges of the graph, or `ADDED`.
        out: One number for each edge; written.
    """
    _, first, degree = rows
    totals: NDArray[Any] = np.empty(num_relations)
    for i in range(len(first)):
        totals[:] = 0
        for e in range(first[i], first[i] + degree[i] - loops):
            edge = edges[e]
            totals[relation[edge]] += 1.0 if weight is None else weight[edge]
        for at in range(indptr[i], indptr[i + 1]):
            out[at] = 1.0 if found[at] == ADDED else totals[relation[found[at]]]
