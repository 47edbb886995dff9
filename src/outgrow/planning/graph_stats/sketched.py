"""The figures of a graph at hand that is too large to be counted in seconds: degrees, and how well a sample is cut."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.graph.graph import Graph
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.graph.topology import Topology
from outgrow.planning.graph_stats.analytic import AnalyticGraph, DegreeDistribution
from outgrow.planning.sizes import dataset_sizes

_BALL, _MOST_EDGES = 30_000, 2_000_000
_SEED = 0


def sketch_graph(graph: Graph) -> AnalyticGraph:
    """A graph that has features and labels, modelled by the in-degrees of its nodes and by a part of it."""
    degrees = DegreeDistribution.from_degrees(graph.topology.indptr.diff())
    ball = cache(lambda: bfs_ball(graph.topology))

    def edge_locality(method: str, parts: int) -> float:
        if parts == 1:
            return 1.0
        if not method.startswith("metis"):
            return 1 / parts
        return internal_edge_share(ball(), parts)

    return AnalyticGraph(dataset_sizes(graph), degrees, edge_locality)


def bfs_ball(topology: Topology) -> Topology:
    """Nodes around one of them, hop by hop, with the edges among these; some 30,000, fewer where they are dense."""
    graph = ChunkGraph(topology, self_loops=False)
    generator = torch.Generator().manual_seed(_SEED)
    order = torch.randperm(topology.num_nodes, generator=generator)
    order = order[topology.indptr.diff()[order] > 0]
    mean = max(1.0, topology.num_edges / max(1, topology.num_nodes))
    most = max(1000, min(_BALL, topology.num_nodes, round(_MOST_EDGES / mean)))
    inside, begun = order[:0], 0
    frontier = inside
    while len(inside) < min(most, topology.num_nodes):
        if not len(frontier):  # one component is used up, or none is begun
            if begun >= len(order):
                break
            step = 1 + begun  # components that are small are taken many at once
            frontier, begun = order[begun : begun + step], begun + step
        inside = torch.unique(torch.cat([inside, frontier]))
        around = graph.source_ids(frontier)
        around = around[~torch.isin(around, inside)]
        room = most - len(inside)
        frontier = around if len(around) <= room else around[torch.randperm(len(around), generator=generator)[:room]]
    return _induced_subgraph(topology, inside)


def _induced_subgraph(topology: Topology, nodes: Tensor) -> Topology:
    """The edges among some nodes, ascending."""
    begin, count = topology.indptr[nodes], topology.indptr[nodes + 1] - topology.indptr[nodes]
    ends = count.cumsum(0)
    at = torch.arange(int(count.sum())) + (begin - (ends - count)).repeat_interleave(count)
    source, target = topology.indices[at].long(), torch.arange(len(nodes)).repeat_interleave(count)
    place = torch.searchsorted(nodes, source).clamp(max=len(nodes) - 1)
    here = nodes[place] == source
    sizes = torch.bincount(target[here], minlength=len(nodes))
    indptr = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return Topology(indptr=indptr, indices=place[here].int())


@cache
def internal_edge_share(ball: Topology, parts: int) -> float:
    """Share of the edges that METIS leaves within parts."""
    part = WITHOUT_CHUNKS["metis"].partition_nodes(ball, min(parts, ball.num_nodes)).part.long()
    target = torch.arange(ball.num_nodes).repeat_interleave(ball.indptr.diff())
    return float((part[ball.indices.long()] == part[target]).double().mean()) if ball.num_edges else 1.0
