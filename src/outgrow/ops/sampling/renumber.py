"""Renumbering of a batch: from global node ids to local ones.

A table holds ``base`` plus the local number of each node of the batch; smaller entries are left from earlier
batches. So the table is not cleared between batches: the next one takes a larger base.

With several workers, all sources are first numbered as on a single worker. Then the new nodes, far fewer than
edges, are split: own nodes move together and keep their numbers for the batch; those of other workers are
grouped by owner and forgotten, since a later hop may need them again.

Letters: ``n`` nodes, ``E`` edges, ``V`` nodes of the graph, ``N`` new nodes, ``r`` new nodes of other
workers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import serial_kernel
from outgrow.ops.kernels.numerics import prefetch_line
from outgrow.ops.sampling.bitset import ONE

Array = NDArray[Any]
Ids = NDArray[np.int64]
Table = NDArray[np.int32]

_INDICES_AHEAD = 128
_MARKS_AHEAD = 48
_VALUES_AHEAD = 32


@serial_kernel
def renumber_seeds(seeds: Ids, table: Table, base: int) -> int:
    """Number the first nodes of a batch from 0.

    Args:
        seeds: ``[n]``.
        table: ``[V]``, see above.
        base: More than any entry of the table.

    Returns:
        How many were numbered: ``n``, or the position of the first id that is invalid or repeated.
    """
    for i in range(len(seeds)):
        if seeds[i] < 0 or seeds[i] >= len(table) or table[seeds[i]] >= base:
            return i
        table[seeds[i]] = base + i
    return len(seeds)


@serial_kernel
def renumber_sources(
    edges: Ids, indices: Array, table: Table, base: int, nodes: Ids, known: int, local: NDArray[np.int32]
) -> int:
    """Number the sources of some edges.

    Args:
        edges: ``[E]``.
        indices: Source of every edge of the graph.
        table: ``[V]``, see above.
        base: Base of the batch.
        nodes: At least ``[known + E]``, written: new nodes follow the ``known`` ones.
        known: Nodes that have a number.
        local: ``[E]``, written: the number of each edge's source.

    Returns:
        How many nodes have a number now.
    """
    last = len(edges) - 1
    lines = indices.reshape((len(indices), 1))
    marks = table.reshape((len(table), 1))
    # Two dependent loads per edge: its source, then that node's entry in the table. The source is requested
    # further ahead, so that it has arrived when the entry is requested.
    for e in range(len(edges)):
        prefetch_line(lines, edges[np.uint64(min(e + _INDICES_AHEAD, last))], 0)
        prefetch_line(marks, indices[np.uint64(edges[np.uint64(min(e + _MARKS_AHEAD, last))])], 0)
        node = np.uint64(indices[np.uint64(edges[e])])
        number = table[node] - base
        # Without a branch, which the processor would mispredict too often.
        new = number < 0
        number = known if new else number
        table[node] = base + number
        # Written always and counted only if new: the next node overwrites it otherwise.
        nodes[np.uint64(known)] = node
        known += new
        local[e] = number
    return known


@serial_kernel
def gather_values(values: Array, rows: Ids, out: Array) -> None:
    """Copy ``out[i] = values[rows[i]]``."""
    lines = values.reshape((len(values), 1))
    for i in range(len(rows)):
        prefetch_line(lines, rows[np.uint64(min(i + _VALUES_AHEAD, len(rows) - 1))], 0)
        out[i] = values[np.uint64(rows[i])]


@serial_kernel
def gather_row_lengths(indptr: Ids, rows: Ids, out: Array) -> None:
    """Compute ``out[i] = indptr[rows[i] + 1] - indptr[rows[i]]``."""
    lines = indptr.reshape((len(indptr), 1))
    for i in range(len(rows)):
        prefetch_line(lines, rows[np.uint64(min(i + _VALUES_AHEAD, len(rows) - 1))], 0)
        row = np.uint64(rows[i])
        out[i] = indptr[row + ONE] - indptr[row]


Rows = NDArray[np.int32]

_OWNERS_AHEAD = 32


class NewNodes(NamedTuple):
    """New nodes, split by owner.

    Attributes:
        num_own: Own nodes that have a number now.
        others: ``[r]`` nodes of other workers, by owner.
        sizes: How many of these each worker owns.
        remap: ``[N]`` number of a new node if it is own; else ``-1 -`` its position in ``others``.
    """

    num_own: int
    others: Ids
    sizes: tuple[int, ...]
    remap: Rows


def group_new_by_owner(nodes: Ids, first: int, owner: Array, rank: int, size: int, table: Table, base: int) -> NewNodes:
    """Split new nodes into own ones and those of other workers.

    Args:
        nodes: ``[first + N]`` nodes with a number, changed: own ones move together.
        first: Number of nodes that were known before, all own.
        owner: ``[V]`` worker of each node.
        rank: The worker whose nodes are own.
        size: Number of workers.
        table: ``[V]``, changed; see above.
        base: Base of the batch.
    """
    num_new = len(nodes) - first
    others, peers = np.empty(num_new, dtype=np.int64), np.empty(num_new, dtype=np.int16)
    remap = np.empty(num_new, dtype=np.int32)
    num_own, num_others = _compact_owned(nodes, first, owner, rank, table, base, others, peers, remap)
    grouped, sizes = np.empty(num_others, dtype=np.int64), np.zeros(size + 1, dtype=np.int64)
    _group_remote(others, peers[:num_others], sizes, grouped, remap)
    return NewNodes(num_own, grouped, tuple(np.diff(sizes, prepend=0)[:size].tolist()), remap)


@serial_kernel
def _compact_owned(
    nodes: Ids,
    first: int,
    owner: Array,
    rank: int,
    table: Table,
    base: int,
    others: Ids,
    peers: NDArray[np.int16],
    remap: Rows,
) -> tuple[int, int]:
    own, count, last = first, 0, len(nodes) - 1
    owners = owner.reshape((len(owner), 1))
    for i in range(first, len(nodes)):
        prefetch_line(owners, nodes[np.uint64(min(i + _OWNERS_AHEAD, last))], 0)
        node = np.uint64(nodes[np.uint64(i)])
        peer = owner[node]
        # Without a branch, as above. ``own`` never exceeds i, so no node is overwritten before it is read.
        is_own = peer == rank
        remap[np.uint64(i - first)] = own if is_own else -1 - count
        # An entry of 0 is below every base: a later hop sees the node as new again.
        table[node] = base + own if is_own else 0
        nodes[np.uint64(own)] = node
        # Own nodes are written here too and overwritten by the next; the minimum keeps the last one in
        # bounds.
        others[np.uint64(min(count, len(others) - 1))] = node
        peers[np.uint64(min(count, len(others) - 1))] = peer
        own += is_own
        count += not is_own
    return own, count


@serial_kernel
def _group_remote(others: Ids, peers: NDArray[np.int16], starts: Ids, grouped: Ids, remap: Rows) -> None:
    """Group by owner. ``starts [P + 1]`` is zeros at first; afterwards it holds the end of each group."""
    for peer in peers:
        starts[peer + 1] += 1
    for peer in range(1, len(starts)):
        starts[peer] += starts[peer - 1]
    position = np.empty(len(peers), dtype=np.int32)
    for i in range(len(peers)):
        at = starts[peers[i]]
        starts[peers[i]] += 1
        grouped[at] = others[i]
        position[i] = at
    for i in range(len(remap)):
        number = remap[i]
        if number < 0:
            remap[i] = -1 - position[-1 - number]


@serial_kernel
def map_sources(local: Rows, first: int, num_own: int, remap: Rows) -> int:
    """Replace the number of each edge's source by its row: own nodes first, then those of others.

    Args:
        local: ``[E]`` numbers before new nodes were split; changed.
        first: Number of nodes that were known before.
        num_own: Own nodes of the hop, including those that other workers request.
        remap: ``[N]``, see `NewNodes`.

    Returns:
        Number of edges whose source is own.
    """
    # One table of rows, much smaller than the edges: the loop over edges then has a single lookup and no
    # branch.
    rows = np.empty(first + len(remap), dtype=np.int32)
    for i in range(first):
        rows[i] = i
    for i in range(len(remap)):
        rows[first + i] = remap[i] if remap[i] >= 0 else num_own - 1 - remap[i]
    num_remote = 0
    for e in range(len(local)):
        row = rows[np.uint64(local[e])]
        local[e] = row
        num_remote += row >= num_own
    return len(local) - num_remote
