"""Local numbers of the nodes of a batch that several workers draw together: own ones, and those of others.

Own nodes keep their number for all hops of a batch, those of others for one hop. In the table of a worker the sign
says whose a node is, so that ownership costs no look-up of its own: an entry from 0 on belongs to an own node and holds
``base`` plus its number, one below 0 to a node of another worker and holds ``-(other_base + its number)``. What was
left there before is nearer to 0. Letters: ``E`` edges, ``V`` nodes of the graph, ``r`` nodes of others.
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


def new_table(own: NDArray[np.bool_]) -> Table:
    """``[V]``: a table in which no node has a number, for bases from 1 for own nodes and from 2 for those of others."""
    return np.where(own, 0, -1).astype(np.int32)


@sequential
def number_ends(
    edges: Ids,
    indices: Array,
    table: Table,
    base: int,
    other_base: int,
    nodes: Ids,
    known: int,
    local: NDArray[np.int32],
) -> tuple[int, int]:
    """Number the sources of some edges.

    Args:
        edges: ``[E]``.
        indices: Source of every edge of the graph.
        table: ``[V]``, see above.
        base: That of the batch.
        other_base: That of the hop.
        nodes: ``[known + E]``, written: new own nodes go behind the ``known`` ones, those of others come from the end
            backwards.
        known: Own nodes that have a number.
        local: ``[E]``, written: the number of the edge's source, if it is an own node; ``-1 -`` its number if not.

    Returns:
        Own nodes that have a number now, and nodes of others that have one.
    """
    last, room, others = len(edges) - 1, len(nodes), 0
    lines, marks = indices.reshape((len(indices), 1)), table.reshape((len(table), 1))
    for e in range(len(edges)):
        prefetch(lines, edges[np.uint64(min(e + _INDICES_AHEAD, last))], 0)
        prefetch(marks, indices[np.uint64(edges[np.uint64(min(e + _MARKS_AHEAD, last))])], 0)
        node = np.uint64(indices[np.uint64(edges[e])])
        entry = table[node]
        own = entry >= 0
        number = entry - base if own else -entry - other_base
        new = number < 0  # without a branch, which would be guessed wrongly too often
        number = (known if own else others) if new else number
        table[node] = base + number if own else -(other_base + number)
        nodes[np.uint64(known if own else room - 1 - others)] = node
        known += new and own
        others += new and not own
        local[e] = number if own else -1 - number
    return known, others


@sequential
def place_others(local: NDArray[np.int32], num_own: int, place: Ids) -> None:
    """Give sources of others the rows behind the own ones.

    Args:
        local: ``[E]`` as `number_ends` leaves it, changed: row of each edge's source.
        num_own: Number of own nodes.
        place: ``[r]`` where each node of others comes among these.
    """
    for e in range(len(local)):
        number = local[e]
        if number < 0:
            local[e] = num_own + place[np.uint64(-1 - number)]
