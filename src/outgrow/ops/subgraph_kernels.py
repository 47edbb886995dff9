"""Kernels of `outgrow.ops.subgraph`: passes over the edges of some rows of a graph.

They visit even parts of the selected rows: edge ``i`` of row ``m`` among these is edge ``start[m] - indptr[m]
+ i`` of the graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import parallel_kernel, prange
from outgrow.ops.kernels.work_split import EDGE, END_ROW, ROW, continues_row, row_span

Array = NDArray[Any]

NOT_PRESENT, IS_SOURCE = -1, -2
"""Entries of a table of all nodes: not among the selected rows; nor that, but a source of their edges."""


@parallel_kernel
def count_loops(parts: Array, indptr: Array, indices: Array, out: Array, cut: Array) -> None:
    """Write the number of self-loops of each row of the graph; ``cut`` is scratch for cut rows."""
    for part in prange(len(parts)):
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            count = 0
            for e in range(*row_span(parts, part, indptr, v)):
                if indices[e] == v:
                    count += 1
            # The part in which a row begins owns its entry; pieces of later parts are added after the loop.
            if continues_row(parts, part, indptr, v):
                cut[part] = count
            else:
                out[v] = count
    for part in range(1, len(parts)):
        if continues_row(parts, part, indptr, parts[part, ROW]):
            out[parts[part, ROW]] += cut[part]


@parallel_kernel
def mark_edge_sources(parts: Array, indptr: Array, start: Array, indices: Array, place: Array) -> None:
    """Replace `NOT_PRESENT` by `IS_SOURCE` at the sources of the edges."""
    for part in prange(len(parts)):
        for m in range(parts[part, ROW], parts[part, END_ROW]):
            for i in range(*row_span(parts, part, indptr, m)):
                src = indices[start[m] - indptr[m] + i]
                # Threads may write the same entry at once, but only ever the same value.
                if place[src] == NOT_PRESENT:
                    place[src] = IS_SOURCE


@parallel_kernel
def write_edge_ids(parts: Array, indptr: Array, start: Array, out: Array) -> None:
    """Write the id of each edge."""
    for part in prange(len(parts)):
        for m in range(parts[part, ROW], parts[part, END_ROW]):
            for i in range(*row_span(parts, part, indptr, m)):
                out[i] = start[m] - indptr[m] + i


@parallel_kernel
def count_part_loops(parts: Array, indptr: Array, start: Array, nodes: Array, indices: Array, out: Array) -> None:
    """Write the number of self-loops in each part of some rows."""
    for part in prange(len(parts)):
        count = 0
        for m in range(parts[part, ROW], parts[part, END_ROW]):
            for i in range(*row_span(parts, part, indptr, m)):
                if indices[start[m] - indptr[m] + i] == nodes[m]:
                    count += 1
        out[part] = count


@parallel_kernel
def copy_edge_values(
    parts: Array,
    indptr: Array,
    start: Array,
    nodes: Array,
    indices: Array,
    lost: Array | None,
    place: Array | None,
    values: Array | None,
    out: Array,
) -> None:
    """Copy ``values`` of edges, or table entries of them if there is a ``place``; without values, edge ids.

    With ``lost``, the number of loops before each part, loops are skipped and an entry is left open after
    each row.
    """
    for part in prange(len(parts)):
        # Where the part's first edge goes: edges before it, less their loops, plus one added loop per row
        # before it.
        at = parts[part, EDGE] if lost is None else parts[part, EDGE] - lost[part] + parts[part, ROW]
        for m in range(parts[part, ROW], parts[part, END_ROW]):
            for i in range(*row_span(parts, part, indptr, m)):
                e = start[m] - indptr[m] + i
                if lost is None or indices[e] != nodes[m]:
                    if values is None:
                        out[at] = e
                    else:
                        out[at] = values[e] if place is None else place[values[e]]
                    at += 1
            if lost is not None:
                at += 1


@parallel_kernel
def count_sources_below(parts: Array, indptr: Array, indices: Array, first: int, out: Array) -> None:
    """Write the number of edges in each part whose source row is before ``first``."""
    for part in prange(len(parts)):
        count = 0
        for m in range(parts[part, ROW], parts[part, END_ROW]):
            for i in range(*row_span(parts, part, indptr, m)):
                if indices[i] < first:
                    count += 1
        out[part] = count


@parallel_kernel
def partition_edges(
    parts: Array,
    indptr: Array,
    indices: Array,
    first: int,
    before: Array,
    low_ptr: Array,
    high_ptr: Array,
    order: Array,
    out: Array,
) -> None:
    """Write the edges from source rows before ``first``, then the others, and their former positions.

    ``before`` counts the former in earlier parts. The last entries of ``low_ptr`` and ``high_ptr`` are set
    already.
    """
    for part in prange(len(parts)):
        # Positions follow from the counts of earlier parts, so that parts write disjoint ranges without
        # communication.
        num_low = low_ptr[len(indptr) - 1]
        low = before[part]
        high = parts[part, EDGE] - low
        for m in range(parts[part, ROW], parts[part, END_ROW]):
            if not continues_row(parts, part, indptr, m):
                low_ptr[m] = low
                high_ptr[m] = high
            for i in range(*row_span(parts, part, indptr, m)):
                if indices[i] < first:
                    order[low] = i
                    out[low] = indices[i]
                    low += 1
                else:
                    order[num_low + high] = i
                    out[num_low + high] = indices[i] - first
                    high += 1


@parallel_kernel
def sum_row_weights(
    parts: Array,
    indptr: Array,
    nodes: Array,
    start: Array,
    all_ends: Array,
    indices: Array,
    weight: Array,
    cuts: Array,
    loop_weight: Array | None,
    out: Array,
) -> None:
    """Write the sum of the weights of each row; in the view with self-loops if ``loop_weight [n]`` is given.

    ``start`` is where rows begin in the graph or view that is summed. ``cuts`` are the edges at which its
    even parts begin; pieces of rows are summed separately there, to round as `outgrow.ops.csc.in_degree`
    does.
    """
    for part in prange(len(parts)):
        for m in range(parts[part, ROW], parts[part, END_ROW]):
            # A cut row is summed as a whole by its first part, since the cuts that count are those of the
            # full graph.
            if continues_row(parts, part, indptr, m):
                continue
            v = nodes[m]
            at = start[m]
            last = all_ends[v + 1]
            cut = np.searchsorted(cuts, at, side="right")
            earlier = total = 0.0
            for e in range(all_ends[v], last):
                # In the view, loops are gone and do not advance ``at``.
                if loop_weight is not None and indices[e] == v:
                    continue
                # Close a piece where the full graph would be cut: float sums depend on where they are split.
                if cut < len(cuts) and cuts[cut] == at:
                    earlier, total, cut = earlier + total, 0.0, cut + 1
                total += weight[e]
                at += 1
            if loop_weight is not None:
                # The loop is the last edge of its row, and may itself begin a piece.
                if cut < len(cuts) and cuts[cut] == at:
                    earlier, total = earlier + total, 0.0
                total += loop_weight[m]
            out[m] = earlier + total
