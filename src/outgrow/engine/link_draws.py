"""What a step or a batch asks about, over all workers: its links, their negatives, and the rows that each worker needs.

The links into a node are scored by its owner, as on the whole graph.

Letters: ``L`` links, of all workers; ``V`` nodes; ``K`` candidates.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.engine.graph_answers import GraphAnswers
from outgrow.engine.link_candidates import CandidatePlanner
from outgrow.engine.link_objective import NEGATIVES
from outgrow.engine.link_options import DEGREE, LinkOptions
from outgrow.engine.link_step_loss import Pairs, draw_pairs
from outgrow.graph.link_numbers import count_link_degrees
from outgrow.graph.link_triples import LinkTriples
from outgrow.graph.topology import Topology
from outgrow.ops.rng import fold_in


class DrawnLinks(NamedTuple):
    """Links of all workers, with what is scored beside them.

    Attributes:
        links: The links.
        edges: ``[L]`` int64, ids of these edges.
        pairs: Their pairs of nodes, then those of negatives of their own: see `LinkStepLoss.compute`.
        candidates: ``[K]`` int64 ascending nodes of each type, which the links have in common; none where links have
            negatives of their own.
    """

    links: LinkTriples
    edges: Tensor
    pairs: Pairs
    candidates: list[Tensor]


class LinkDraws:
    """Draws the negatives of links. Final; may be called from several threads at once.

    Args:
        topology: The graph, whose edges but loops are the links.
        options: Options of training.
    """

    def __init__(self, topology: Topology, options: LinkOptions) -> None:
        self.options = options
        self._num_nodes = topology.num_nodes
        self.planner = None
        if options.ranks_candidates:
            by_degree = options.sampling == DEGREE
            degree = count_link_degrees(topology, options.relations) if by_degree else None
            self.planner = CandidatePlanner(options, GraphAnswers(topology), degree)

    def draw_negatives(self, links: LinkTriples, edges: Tensor, key: int) -> DrawnLinks:
        """Return links of all workers with their negatives.

        Args:
            links: The links.
            edges: ``[L]`` int64, ids of these edges.
            key: Random key of the step.
        """
        if self.planner is None:
            return DrawnLinks(links, edges, draw_pairs(links, edges, self.options, fold_in(key, NEGATIVES)), [])
        pairs = links.tail, links.head, links.relation
        return DrawnLinks(links, edges, pairs, self.planner.draw_candidates(links, edges, key))

    def list_needed(self, drawn: DrawnLinks, owner: Tensor, num_workers: int) -> list[Tensor]:
        """Return ``[n]`` int64, ascending, for each worker: the nodes whose rows its links need.

        Args:
            drawn: What was drawn.
            owner: ``[L]`` int64: the worker that owns the tail of each link.
            num_workers: Number of workers.
        """
        links, num_nodes = drawn.links, self._num_nodes
        worker = owner.repeat(len(drawn.pairs[0]) // max(1, len(links)))
        found = [worker * num_nodes + each for each in drawn.pairs[:2]]
        # None are drawn where links have negatives of their own.
        for candidates, (first, last) in zip(drawn.candidates, pairwise(self.options.ends.tolist()), strict=False):
            # Workers score candidates of the types that their links have as ends.
            of_type = [(each >= first) & (each < last) for each in (links.head, links.tail)]
            asks = torch.unique(owner[of_type[0] | of_type[1]])
            found.append((asks[:, None] * num_nodes + candidates).reshape(-1))
        codes = torch.unique(torch.cat(found))
        starts = torch.searchsorted(codes, torch.arange(num_workers + 1) * num_nodes).tolist()
        return [codes[starts[each] : starts[each + 1]] - each * num_nodes for each in range(num_workers)]
