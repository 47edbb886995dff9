"""In-edges of a graph to which self-loops are added, without a copy of the graph that has them.

In the *view* every row has exactly one self-loop, at its end; self-loops that the graph has are left out. Edges of the
view are numbered as if it were in memory. ``L`` self-loops of the graph, ascending, tell how the numbers differ.
Letters as in `outgrow.ops.sampling.uniform`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import serial_kernel
from outgrow.ops.kernels.numerics import prefetch_line
from outgrow.ops.sampling.uniform import Array, Ids, Rows

_ROWS_AHEAD = 16
_EDGES_AHEAD = 32
ADDED = -1
"""Position in the graph of a self-loop that it does not have."""


class GivenLoops(NamedTuple):
    """The self-loops that a graph has.

    Attributes:
        nodes: ``[L]`` int64, the node of each, ascending.
        edges: ``[L]`` int64, its position among the edges of the graph, ascending.
    """

    nodes: Ids
    edges: Ids


@serial_kernel
def find_looped_row_bounds(rows: Rows, indptr: Ids, loops: GivenLoops, fanout: int) -> tuple[int, int]:
    """Find the rows of some nodes in the view and count their edges: see `find_row_bounds`.

    Args:
        rows: The nodes; the two other arrays are written.
        indptr: ``[V + 1]`` of the graph.
        loops: Its self-loops.
        fanout: Edges that are chosen from a row with more.

    Returns:
        How many edges will be chosen, and how many there are.
    """
    nodes, first, degree = rows
    chosen, every = 0, 0
    lines = indptr.reshape((len(indptr), 1))
    for i in range(len(nodes)):
        prefetch_line(lines, nodes[min(i + _ROWS_AHEAD, len(nodes) - 1)], 0)
        v = nodes[i]
        before = np.searchsorted(loops.nodes, v)
        within = _count_loops(loops.nodes, before, v)
        first[i] = indptr[v] + v - before
        degree[i] = indptr[v + 1] - indptr[v] - within + 1
        chosen += min(degree[i], fanout)
        every += degree[i]
    return chosen, every


@serial_kernel
def resolve_looped_edges(
    rows: Rows,
    indptr: Ids,
    chosen: Ids,
    graph: tuple[Ids, Array],
    loops: GivenLoops,
    edges: Ids,
    sources: NDArray[np.int64],
) -> None:
    """Find chosen edges of the view in the graph.

    Args:
        rows: The nodes, and their rows in the view.
        indptr: ``[n + 1]``, where the chosen edges of each row begin.
        chosen: ``[E]``, the chosen edges, by their positions in the view.
        graph: ``indptr [V + 1]`` and ``indices`` of the graph.
        loops: Its self-loops.
        edges: ``[E]``, written: positions in the graph; of a self-loop that of the last one that its node has there,
            or `ADDED`.
        sources: ``[E]``, written: the source of each edge.
    """
    nodes, first, degree = rows
    graph_indptr, indices = graph
    for i in range(len(nodes)):
        v = nodes[i]
        before = np.searchsorted(loops.nodes, v)
        within = _count_loops(loops.nodes, before, v)
        start = graph_indptr[v]
        # Sources of a row ascend, so its loops lie side by side; edges behind them are further back in the graph.
        gap = loops.edges[before] - start if within > 0 else degree[i]
        for at in range(indptr[i], indptr[i + 1]):
            place = chosen[at] - first[i]
            if place == degree[i] - 1:
                edges[at] = loops.edges[before + within - 1] if within > 0 else ADDED
            else:
                edges[at] = start + place + (within if place >= gap else 0)
    lines = indices.reshape((len(indices), 1))
    last = len(edges) - 1
    for i in range(len(nodes)):
        for at in range(indptr[i], indptr[i + 1]):
            prefetch_line(lines, max(edges[min(at + _EDGES_AHEAD, last)], 0), 0)
            sources[at] = nodes[i] if edges[at] == ADDED else indices[np.uint64(edges[at])]


@serial_kernel
def _count_loops(nodes: Ids, begin: int, node: int) -> int:
    """Count how often a node occurs in ascending ones from its first place on."""
    end = begin
    while end < len(nodes) and nodes[end] == node:
        end += 1
    return end - begin
