"""Local numbers of nodes: in order of first appearance, shared by all hops of a batch.

A table holds ``base`` plus the number of each node of the batch; whatever is less was left by batches before. So a
table is not cleared between batches: the next one takes a larger base. Letters: ``n`` nodes, ``E`` edges, ``V`` nodes
of the graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import sequential
from outgrow.ops.prefetch import prefetch

Array = NDArray[Any]
Ids = NDArray[np.int64]
Table = NDArray[np.int32]

_INDICES_AHEAD = 128
_MARKS_AHEAD = 48
_VALUES_AHEAD = 32


@sequential
def number_seeds(seeds: Ids, table: Table, base: int) -> int:
    """Number the first nodes of a batch from 0.

    Args:
        seeds: ``[n]``.
        table: ``[V]``, see above.
        base: More than whatever is in the table.

    Returns:
        How many were numbered: ``n``, or the position of the first that is no node or that came before.
    """
    for i in range(len(seeds)):
        if seeds[i] < 0 or seeds[i] >= len(table) or table[seeds[i]] >= base:
            return i
        table[seeds[i]] = base + i
    return len(seeds)


@sequential
def number_sources(
    edges: Ids, indices: Array, table: Table, base: int, nodes: Ids, known: int, local: NDArray[np.int32]
) -> int:
    """Number the sources of some edges.

    Args:
        edges: ``[E]``.
        indices: Source of every edge of the graph.
        table: ``[V]``, see above.
        base: That of the batch.
        nodes: At least ``[known + E]``, written: new nodes go behind the ``known`` ones.
        known: Nodes that have a number.
        local: ``[E]``, written: the number of each edge's source.

    Returns:
        Nodes that have a number now.
    """
    last = len(edges) - 1
    lines, marks = indices.reshape((len(indices), 1)), table.reshape((len(table), 1))
    for e in range(len(edges)):
        prefetch(lines, edges[np.uint64(min(e + _INDICES_AHEAD, last))], 0)
        prefetch(marks, indices[np.uint64(edges[np.uint64(min(e + _MARKS_AHEAD, last))])], 0)
        node = np.uint64(indices[np.uint64(edges[e])])
        number = table[node] - base
        new = number < 0  # without a branch, which would be guessed wrongly too often
        number = known if new else number
        table[node] = base + number
        nodes[np.uint64(known)] = node
        known += new
        local[e] = number
    return known


@sequential
def take(values: Array, rows: Ids, out: Array) -> None:
    """``out[i] = values[rows[i]]``."""
    lines = values.reshape((len(values), 1))
    for i in range(len(rows)):
        prefetch(lines, rows[np.uint64(min(i + _VALUES_AHEAD, len(rows) - 1))], 0)
        out[i] = values[np.uint64(rows[i])]
