"""The edges of a graph that are links, by number, and their ends: without a list of all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.graph.link_triples import LinkTriples, iterate_in_links, mark_relations
from outgrow.graph.topology import Topology
from outgrow.ops.csc import find_self_loops


class LinkNumbers:
    """The edges that are links: all but loops, or those of some relations. Final.

    Args:
        topology: In-edges of all nodes.
        relations: ``[n]`` int64, the relations whose links are predicted; None for all.
        edges: ``[L]`` int64, ascending: ids of the edges that are links, whatever their relations; None to find them.
    """

    def __init__(self, topology: Topology, relations: Tensor | None = None, edges: Tensor | None = None) -> None:
        self._topology = topology
        self._links = edges
        if edges is None and relations is not None:
            chunks = iterate_in_links(topology)
            found = [number[links.non_loop_mask & mark_relations(links, relations)] for links, number in chunks]
            self._links = torch.cat([torch.empty(0, dtype=torch.int64), *found])
        if self._links is None:
            # All other edges are links, so the loops are listed, which are few.
            loops = find_self_loops(topology.indptr, topology.indices)
            self._before = loops - torch.arange(len(loops))

    def __len__(self) -> int:
        return self._topology.num_edges - len(self._before) if self._links is None else len(self._links)

    def find_edges(self, place: Tensor) -> Tensor:
        """Return ``[L]`` int64: the ids of the edges that are links number ``place``, ``[L]`` int64."""
        if self._links is not None:
            return self._links[place]
        # The number of loops before a link is what its place lacks to the id of its edge.
        return place + torch.searchsorted(self._before, place, right=True)

    def find_links(self, edges: Tensor) -> LinkTriples:
        """Return the ends and the relation of some edges, ``[L]`` int64."""
        graph = self._topology
        tail = torch.searchsorted(graph.indptr, edges, right=True) - 1
        relation = torch.zeros_like(edges) if graph.relation is None else graph.relation[edges].long()
        return LinkTriples(graph.indices[edges].long(), tail, relation)


def count_link_degrees(topology: Topology, relations: Tensor | None = None) -> Tensor:
    """Return ``[V]`` int64: the number of links that a node is an end of."""
    degree = torch.zeros(topology.num_nodes, dtype=torch.int64)
    for links, _ in iterate_in_links(topology):
        chosen = links.select_links(links.non_loop_mask & mark_relations(links, relations))
        for end in (chosen.head, chosen.tail):
            degree += torch.bincount(end, minlength=topology.num_nodes)
    return degree
