"""Links to train on as answers to queries, looked up in the graph: no list of all links is held."""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.engine.link_candidates import Side
from outgrow.graph.topology import Topology
from outgrow.ops.rows.gather import concat_ranges
from outgrow.ops.rows.positions import find_positions


class GraphAnswers:
    """The links of a graph as answers: see `outgrow.engine.link_candidates.LinkAnswers`. Final.

    Time is proportional to the in-edges of the candidates for tails, or of the nodes asked about for heads.

    Args:
        topology: In-edges of all nodes, the links to train on; loops are no links.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        relation = topology.relation
        self.num_relations = 1 if relation is None or not len(relation) else int(relation.max()) + 1

    def answers_among(self, query: Tensor, side: Side, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Return the query's place and the candidate's position of each answer."""
        # Without relations the reverse of a link is an answer too, so both ends of edges are looked at.
        both = self._topology.relation is None
        found = []
        if side == "tail" or both:
            found.append(self._edges_into_candidates(query, candidates))
        if side == "head" or both:
            found.append(self._edges_into_queries(query, candidates))
        width = max(1, len(candidates))
        code = torch.unique(torch.cat([place * width + slot for place, slot in found]))
        return code // width, code % width

    def _edges_into_candidates(self, query: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        slot, source, relation = self._in_edges(candidates)
        place = find_positions(query, source * self.num_relations + relation)
        known = (place >= 0) & (source != candidates[slot])
        return place[known], slot[known]

    def _edges_into_queries(self, query: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        nodes = torch.unique_consecutive(query // self.num_relations)
        row, source, relation = self._in_edges(nodes)
        slot = find_positions(candidates, source)
        known = (slot >= 0) & (source != nodes[row])
        place = find_positions(query, nodes[row[known]] * self.num_relations + relation[known])
        # Edges of relations that the step asks nothing about.
        asked = place >= 0
        return place[asked], slot[known][asked]

    def _in_edges(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return row, source and relation of all in-edges of some nodes, int64."""
        graph = self._topology
        first = graph.indptr[nodes]
        count = graph.indptr[nodes + 1] - first
        number = concat_ranges(first, count)
        source = graph.indices[number].long()
        relation = torch.zeros_like(source) if graph.relation is None else graph.relation[number].long()
        return torch.repeat_interleave(count), source, relation
