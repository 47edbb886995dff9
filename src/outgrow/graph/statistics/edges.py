"""Counts over the edges of a graph: self-loops, duplicates, edges that go both ways, out-degrees."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy, serial_kernel
from outgrow.ops.rng import fold_in, permute_range

SAMPLED_EDGES = 1 << 14
"""Edges of a sample: shares are then right to about one in a hundred."""
_KEY = fold_in(0, 97)
_LOOP, _DUPLICATE, _RECIPROCAL = 0, 1, 2


class EdgeCounts(NamedTuple):
    """What edges are like.

    Attributes:
        num_edges: Number of edges that were looked at.
        self_loops: Edges from a node to itself.
        duplicates: Edges with the same ends and relation as one before.
        reciprocal: Edges between two nodes of which an edge goes back as well, of any relation; None if not counted.
        out_degree: ``[V]`` int64, number of out-edges; None of a sample.
    """

    num_edges: int
    self_loops: int
    duplicates: int
    reciprocal: int | None
    out_degree: NDArray[np.int64] | None = None


class EdgeSample(NamedTuple):
    """Some edges, drawn by a key without repetition: the same of the same graph.

    Attributes:
        number: ``[n]`` int64, ascending.
        src: ``[n]`` int64.
        dst: ``[n]`` int64.
    """

    number: NDArray[np.int64]
    src: NDArray[np.int64]
    dst: NDArray[np.int64]

    def move_ends(self, step: int, num_nodes: int) -> EdgeSample:
        """Return the edges between the nodes that are ``step`` numbers further, where there are such nodes."""
        src, dst = self.src + step, self.dst + step
        inside = (np.minimum(src, dst) >= 0) & (np.maximum(src, dst) < num_nodes)
        return EdgeSample(self.number[inside], src[inside], dst[inside])


def count_edge_kinds(topology: Topology, *, reciprocal: bool = True) -> EdgeCounts:
    """Count over all edges, in one pass and memory of ``V`` numbers, or twice that with ``reciprocal``.

    Args:
        topology: In-edges; may be mapped.
        reciprocal: Whether to count edges that go both ways, which reads edges in another order too.
    """
    indptr = as_numpy(topology.indptr)
    relation = None if topology.relation is None else as_numpy(topology.relation)
    totals = np.zeros(3, np.int64)
    out_degree = np.zeros(topology.num_nodes, np.int64)
    cursor = indptr[:-1].copy() if reciprocal else None
    _count_edges(indptr, as_numpy(topology.indices), relation, out_degree, cursor, totals)
    loops, duplicates, both_ways = totals.tolist()
    return EdgeCounts(topology.num_edges, loops, duplicates, both_ways if reciprocal else None, out_degree)


def sample_edges(topology: Topology, most: int = SAMPLED_EDGES) -> EdgeSample:
    """Return a sample of edges, or all of them where there are no more."""
    count = topology.num_edges
    number = np.arange(count) if count <= most else np.sort(permute_range(0, most, count, _KEY))
    dst = np.searchsorted(as_numpy(topology.indptr), number, side="right") - 1
    return EdgeSample(number, as_numpy(topology.indices)[number].astype(np.int64), dst.astype(np.int64))


def count_sampled_kinds(topology: Topology, sample: EdgeSample) -> EdgeCounts:
    """Count over the edges of a sample; reads some rows of the graph."""
    indptr, indices = as_numpy(topology.indptr), as_numpy(topology.indices)
    number, src, dst = sample
    before = np.maximum(number - 1, 0)
    # Parallel edges stand side by side, ordered by relation.
    twice = (number > indptr[dst]) & (indices[before] == src)
    if topology.relation is not None:
        relation = as_numpy(topology.relation)
        twice &= relation[before] == relation[number]
    loops = src == dst
    back = sum(
        _has_source(indices[indptr[u] : indptr[u + 1]], v)
        for u, v in zip(src[~loops].tolist(), dst[~loops].tolist(), strict=True)
    )
    return EdgeCounts(len(number), int(loops.sum()), int(twice.sum()), back)


def _has_source(row: NDArray[Any], node: int) -> bool:
    at = int(np.searchsorted(row, node))
    return at < len(row) and int(row[at]) == node


@serial_kernel
def _count_edges(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    relation: NDArray[Any] | None,
    out_degree: NDArray[np.int64],
    cursor: NDArray[np.int64] | None,
    totals: NDArray[np.int64],
) -> None:
    for v in range(len(indptr) - 1):
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            out_degree[u] += 1
            if e > indptr[v] and indices[e - 1] == u:
                equal = True
                if relation is not None:
                    equal = relation[e] == relation[e - 1]
                if equal:
                    totals[_DUPLICATE] += 1
            if u == v:
                totals[_LOOP] += 1
                continue
            if cursor is not None:
                # Sources ascend within a row, and this loop asks each row for ascending nodes: so a row is searched
                # from left to right, once.
                at = cursor[u]
                while at < indptr[u + 1] and indices[at] < v:
                    at += 1
                cursor[u] = at
                if at < indptr[u + 1] and indices[at] == v:
                    totals[_RECIPROCAL] += 1
