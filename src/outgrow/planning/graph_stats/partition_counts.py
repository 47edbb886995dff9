"""Counts of the nodes, edges and halos of a partition."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.graph.topology import Topology
from outgrow.planning.graph_stats.chunk_waves import Matrix
from outgrow.planning.workload import PartitionStats
from outgrow.runtime.distributed.serialization import serialize

_SAMPLED_EDGES = 1000


def single_worker_stats(nodes: int, edges: int) -> PartitionStats:
    """Return the statistics of a graph that is on one worker."""
    return PartitionStats(np.array([nodes]), np.array([edges]), np.zeros((1, 1), dtype=np.int64), 0)


def estimate_neighbours(topology: Topology) -> int:
    """Return about how many neighbours all nodes have in edges of both directions, from a sample of edges."""
    num_edges = topology.num_edges
    at = torch.arange(0, num_edges, max(1, num_edges // _SAMPLED_EDGES))
    target = torch.searchsorted(topology.indptr, at, right=True) - 1
    source = topology.indices[at].long()
    begin, end = topology.indptr[source].tolist(), topology.indptr[source + 1].tolist()
    mutual = [
        bool((topology.indices[first:last] == node).any())
        for first, last, node in zip(begin, end, target.tolist(), strict=True)
    ]
    # An edge whose reverse there is as well makes one neighbour of either end, as that does.
    return round(num_edges * (2 - sum(mutual) / max(1, len(mutual))))


def count_partition(topology: Topology, part: Tensor, parts: int, borders: tuple[int, ...] = ()) -> PartitionStats:
    """Count the statistics of a partition.

    Args:
        topology: The graph.
        part: ``[V]`` the worker of each node.
        parts: ``P``.
        borders: ``[T + 1]``: the first node of each type, and ``V``; empty not to tell types apart.
    """
    graph = ChunkGraph(topology, self_loops=False)
    owner = part.long()
    own = [(owner == worker).nonzero()[:, 0] for worker in range(parts)]
    # A source with many edges to a worker is sent once, so distinct ids count.
    sources = [graph.source_ids(nodes) for nodes in own]
    halo = np.stack([torch.bincount(owner[needed], minlength=parts).numpy() for needed in sources])
    np.fill_diagonal(halo, 0)
    return PartitionStats(
        nodes=np.array([len(nodes) for nodes in own]),
        edges=np.array([graph.count_in_edges(nodes) for nodes in own]),
        halo=halo,
        # The pickled size, headers included, because the broadcast counts that.
        owner_bytes=len(serialize(part)),
        typed_halo=_count_typed_halo(owner, sources, parts, borders) if borders else None,
    )


def _count_typed_halo(owner: Tensor, sources: list[Tensor], parts: int, borders: tuple[int, ...]) -> Matrix:
    inner, count = torch.tensor(borders[1:-1]), len(borders) - 1
    found = np.zeros((count, parts, parts), dtype=np.int64)
    for worker, needed in enumerate(sources):
        kinds = torch.bucketize(needed, inner, right=True)
        found[:, worker] = torch.bincount(kinds * parts + owner[needed], minlength=count * parts).view(count, parts)
        found[:, worker, worker] = 0
    return found
