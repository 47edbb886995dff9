"""Undirected neighbours of the nodes of a topology, with the number of edges between each two nodes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.partition.partition import balanced_range_ends
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy, parallel_kernel, prange, serial_kernel
from outgrow.ops.kernels.work_split import PARTS

Array = NDArray[Any]


class SymmetricCsr(NamedTuple):
    """In-edges and out-edges of every node, both sorted within each node.

    Attributes:
        in_ptr: ``[V + 1]`` int64.
        src: ``[E]`` int32 or int64, the sources of in-edges; may be memory-mapped.
        out_ptr: ``[V + 1]`` int64.
        dst: ``[E]``, the destinations of out-edges.
        bounds: ``[P + 1]``, the first node of each share of the work, then the number of nodes.
    """

    in_ptr: Array
    src: Array
    out_ptr: Array
    dst: Array
    bounds: Array


def symmetrize(topology: Topology) -> SymmetricCsr:
    """Return in-edges and out-edges; allocates one array of ``E`` and two of ``V`` elements."""
    in_ptr = as_numpy(topology.indptr)
    src = as_numpy(topology.indices)
    num_nodes = topology.num_nodes
    # One entry more: counts are shifted by two, and the fill moves each start to its end, the next start.
    out_ptr = np.zeros(num_nodes + 2, dtype=np.int64)
    dst = np.empty(len(src), dtype=src.dtype)
    _transpose_csr(in_ptr, src, out_ptr, dst)
    out_ptr = out_ptr[:-1]
    # A fixed number of shares, of equal edges and nodes: rows of hubs would otherwise hold up one thread.
    bounds = balanced_range_ends(in_ptr + out_ptr + np.arange(num_nodes + 1), min(PARTS, num_nodes))
    return SymmetricCsr(in_ptr, src, out_ptr, dst, bounds)


def count_neighbours(edges: SymmetricCsr) -> NDArray[np.int64]:
    """Return ``[V]``: the number of distinct neighbours of each node, excluding itself."""
    count = np.empty(len(edges.in_ptr) - 1, dtype=np.int64)
    _merge_neighbours(*edges, count, None, None, None)
    return count


def fill_neighbours(edges: SymmetricCsr, indptr: Array, neighbours: Array, multiplicity: Array) -> None:
    """Write the neighbours of each node in ascending order, and the number of edges to each of them.

    Args:
        edges: The edges.
        indptr: ``[V + 1]``, cumulative sums of `count_neighbours`.
        neighbours: ``[N]``, written.
        multiplicity: ``[N]``, written; edges in both directions together.
    """
    _merge_neighbours(*edges, None, indptr, neighbours, multiplicity)


@serial_kernel
def _transpose_csr(in_ptr: Array, src: Array, out_ptr: Array, dst: Array) -> None:
    """Group destinations by source; ``out_ptr`` has one extra entry at the end."""
    for e in range(len(src)):
        out_ptr[src[e] + 2] += 1
    for u in range(2, len(out_ptr)):
        out_ptr[u] += out_ptr[u - 1]
    # Destinations ascend in this loop, so every row of out-edges comes out sorted.
    for v in range(len(in_ptr) - 1):
        for e in range(in_ptr[v], in_ptr[v + 1]):
            at = out_ptr[src[e] + 1]
            dst[at] = v
            out_ptr[src[e] + 1] = at + 1


@parallel_kernel
def _merge_neighbours(
    in_ptr: Array,
    src: Array,
    out_ptr: Array,
    dst: Array,
    bounds: Array,
    count: Array | None,
    indptr: Array | None,
    neighbours: Array | None,
    multiplicity: Array | None,
) -> None:
    """Merge both sorted rows of each node; count the neighbours, or write them."""
    for share in prange(len(bounds) - 1):
        for v in range(bounds[share], bounds[share + 1]):
            i, j = in_ptr[v], out_ptr[v]
            last_i, last_j = in_ptr[v + 1], out_ptr[v + 1]
            # One kernel for both passes: they cannot disagree about which neighbours there are.
            at = 0 if indptr is None else indptr[v]
            found = 0
            while i < last_i or j < last_j:
                # The smaller head of the two sorted rows, as in a merge sort.
                u = src[i] if j == last_j or (i < last_i and src[i] < dst[j]) else dst[j]
                times = 0
                # Parallel edges and both directions add up to the weight of one undirected edge.
                while i < last_i and src[i] == u:
                    times += 1
                    i += 1
                while j < last_j and dst[j] == u:
                    times += 1
                    j += 1
                # METIS takes no self-loops.
                if u != v:
                    if neighbours is not None and multiplicity is not None:
                        neighbours[at + found] = u
                        multiplicity[at + found] = times
                    found += 1
            if count is not None:
                count[v] = found
