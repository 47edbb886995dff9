"""Quality of a partition: edge cut, balance, and the rows that workers need from one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.partition.partition import Partition
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy, num_threads, parallel_kernel, prange, serial_kernel
from outgrow.ops.kernels.work_split import END_ROW, ROW, balanced_work, row_span

Array = NDArray[Any]

_MASK_BYTES = 1 << 28


@dataclass(frozen=True, kw_only=True)
class PartitionQuality:
    """Quality figures of a partition of ``V`` nodes and ``E`` edges.

    Attributes:
        edge_cut: Number of edges whose ends are in different parts.
        cut_share: Share of cut edges; 0 without edges.
        nodes: Number of nodes in each part.
        edges: Number of in-edges of the nodes of each part.
        halo: For each part, the number of nodes of other parts with an edge to one of its own.
        node_balance: Largest number of nodes over the mean.
        edge_balance: Largest number of in-edges over the mean; 1 without edges.
        replication_factor: Nodes plus halo of all parts, over ``V``.
    """

    edge_cut: int
    cut_share: float
    nodes: tuple[int, ...]
    edges: tuple[int, ...]
    halo: tuple[int, ...]
    node_balance: float
    edge_balance: float
    replication_factor: float


def measure_quality(topology: Topology, partition: Partition) -> PartitionQuality:
    """Measure a partition.

    The edges are read in order, once for every 64 parts. Memory is one bit per node and part of a pass, times
    a limited number of threads.

    Raises:
        InputError: The partition belongs to another graph.
    """
    if partition.num_nodes != topology.num_nodes:
        raise InputError(
            "the partition is not one of this graph",
            needed=f"{topology.num_nodes:,} nodes",
            got=f"{partition.num_nodes:,} nodes",
            repair="partition this graph",
        )
    num_parts = partition.num_parts
    edge_cut, halo = count_cut_edges(
        as_numpy(topology.indptr), as_numpy(topology.indices), as_numpy(partition.part), num_parts
    )
    nodes = partition.part_sizes.numpy()
    edges = np.zeros(num_parts, dtype=np.int64)
    _add_degrees(as_numpy(topology.indptr), as_numpy(partition.part), edges)
    return PartitionQuality(
        edge_cut=edge_cut,
        cut_share=edge_cut / max(1, topology.num_edges),
        nodes=tuple(nodes.tolist()),
        edges=tuple(edges.tolist()),
        halo=tuple(halo.tolist()),
        node_balance=_max_over_mean(nodes),
        edge_balance=_max_over_mean(edges),
        replication_factor=float((nodes.sum() + halo.sum()) / max(1, topology.num_nodes)),
    )


def _max_over_mean(counts: Array) -> float:
    # Without counts all parts are equally empty: 1 instead of 0 / 0.
    return float(counts.max() / counts.mean()) if counts.any() else 1.0


def count_cut_edges(indptr: Array, indices: Array, part: Array, num_parts: int) -> tuple[int, Array]:
    """Return the number of cut edges, and the size of the halo of each part, ``[num_parts]``."""
    shares = balanced_work(indptr)
    # One bit for each part: few parts take a byte per node instead of eight.
    kind = np.dtype(np.uint8 if num_parts <= 8 else np.uint64)
    # A table of marks for each thread avoids atomic operations; the limit keeps their memory bounded.
    lanes = max(1, min(num_threads(), len(shares), _MASK_BYTES // max(1, len(part) * kind.itemsize)))
    needs = np.empty((lanes, len(part)), dtype=kind)
    cut = np.zeros(lanes, dtype=np.int64)
    halo = np.zeros(num_parts, dtype=np.int64)
    width = kind.itemsize * 8
    for first in range(0, num_parts, width):
        needs[:] = 0
        _mark_halo(shares, indptr, indices, part, first, width, needs, cut)
        _count_halo(needs, first, halo[first : first + width])
    return int(cut.sum()), halo


@parallel_kernel
def _mark_halo(
    shares: Array, indptr: Array, indices: Array, part: Array, first: int, width: int, needs: Array, cut: Array
) -> None:
    """For each source, mark the other parts from ``first`` to ``first + width - 1`` with an edge from it."""
    lanes = len(needs)
    for lane in prange(lanes):
        crossing = 0
        # Shares are assigned by lane, not by thread, so each lane is written by one thread only.
        for share in range(len(shares) * lane // lanes, len(shares) * (lane + 1) // lanes):
            for v in range(shares[share, ROW], shares[share, END_ROW]):
                bit = part[v] - first
                if 0 <= bit < width:
                    mark = needs.dtype.type(np.uint64(1) << np.uint64(bit))
                    for e in range(*row_span(shares, share, indptr, v)):
                        # Bits make marks idempotent: a source is counted once per part, however many edges it
                        # has there.
                        if part[indices[e]] != part[v]:
                            needs[lane, indices[e]] |= mark
                            crossing += 1
        # Summed locally first: lanes share a cache line here.
        cut[lane] += crossing


@serial_kernel
def _count_halo(needs: Array, first: int, halo: Array) -> None:
    """Count the nodes that each part of a pass needs, over the marks of all threads."""
    for v in range(needs.shape[1]):
        marks = np.uint64(0)
        for lane in range(len(needs)):
            # Several lanes may have marked the same part: it still counts once.
            marks |= np.uint64(needs[lane, v])
        bit = 0
        while marks != np.uint64(0):
            if marks & np.uint64(1):
                halo[bit] += 1
            marks >>= np.uint64(1)
            bit += 1


@serial_kernel
def _add_degrees(indptr: Array, part: Array, edges: Array) -> None:
    for v in range(len(part)):
        edges[part[v]] += indptr[v + 1] - indptr[v]
