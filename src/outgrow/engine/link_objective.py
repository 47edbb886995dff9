"""The objective for links: those of the graph should score higher than negatives, or their targets are learned."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.candidate_loss import BLOCK_BYTES, BLOCK_COPIES
from outgrow.engine.hidden_edges import HiddenEdges
from outgrow.engine.link_candidates import CandidatePlanner, CandidateQueries
from outgrow.engine.link_options import LinkOptions
from outgrow.engine.link_step_loss import LinkStepLoss, Pairs, draw_pairs
from outgrow.engine.row_exchange import RowFetchPlan
from outgrow.engine.shard import GraphShard
from outgrow.graph.link_triples import LinkTriples, collect_in_links, mark_relations
from outgrow.nn.decoder import Decoder
from outgrow.nn.edge_decoder import EdgeDecoder
from outgrow.ops.pair_draws import PairRange, mark_pairs
from outgrow.ops.rng import fold_in

NEGATIVES = 0x4C494E4B
"""Part of the key, far from those of layers."""

_ROWS = 5
"""Copies of the rows: own and received ones, their gradient and its two parts."""
_PER_EDGE = 8
"""Copies of a row for an edge with a target: both ends, hidden units, and their gradients."""
_PER_NODE = 10
"""Bytes of a node in a step: its row number, and whether its row is read, and fetched."""
_PER_PAIR = 96
"""Bytes of a pair: both ends twice, their positions, relation, order, score, target and gradients."""
_PER_LINK = 160
"""Bytes of a link whose ends are queries: both queries, their order and answers, positions and gradients."""


class LinkObjective:
    """A loss of the links of a graph and of negatives, step by step. Final.

    Each worker scores the links into the nodes that it owns, and what is drawn in their place; rows of other
    nodes are fetched. What is drawn depends on the seed, the epoch, the step and the number of the edge alone (see
    `outgrow.ops.link_scores.sample_negatives` and `CandidatePlanner`).

    Args:
        shard: What the worker holds of the graph, which is trained on; loops are no links.
        decoder: Scores links, or edges with targets.
        options: Options of training.
    """

    as_rowwise = None

    def __init__(self, shard: GraphShard, decoder: Decoder | EdgeDecoder, options: LinkOptions) -> None:
        self.shard = shard
        self.decoder = decoder
        self.options = options
        links, number = collect_in_links(shard.topology, shard.owned_nodes)
        if options.labels is None:
            predicted = links.non_loop_mask & mark_relations(links, options.relations)
        else:
            predicted = options.labels.mark_trained(number)
        self.links = links.select_links(predicted)
        # Edge numbers of the whole graph key the random draws: negatives do not depend on the partition.
        self.number = number[predicted]
        self.total = self._sum_over_workers(len(self.links))
        self.planner = CandidatePlanner.for_shard(shard, options) if options.ranks_candidates else None

    def extra_bytes(self, columns: int, number_bytes: int) -> int:
        """Return the bytes of the rows of all pairs, with their gradients, of the pairs, and of a block of scores."""
        links, own = len(self.links), len(self.shard.owned_nodes)
        others = self.shard.topology.num_nodes - own
        if self.planner is None:
            pairs = links * (1 + self.options.negatives)
            rows = own + min(others, 2 * pairs)
            beside = self._bytes_of_outputs(links, columns, number_bytes)
            return _ROWS * rows * columns * number_bytes + _PER_PAIR * pairs + 2 * BLOCK_BYTES + beside
        everyone = self.options.scores_all_nodes
        fetched = others if everyone else min(others, links + self.options.negatives)
        rows = (_ROWS + 2 * everyone) * (own + fetched) * columns * number_bytes
        return rows + (_PER_PAIR + _PER_LINK) * links + BLOCK_COPIES * BLOCK_BYTES

    def bytes_of_read_rows(self, columns: int, number_bytes: int) -> int:
        """Return `extra_bytes` where only output that a step reads is kept: see `LinksOfStep.find_rows`."""
        options, num_nodes = self.options, self.shard.topology.num_nodes
        mean = len(self.links) / options.steps.num_steps
        # Pairs of nodes draw their step, so that steps differ: six standard deviations are never seen.
        links = min(len(self.links), math.ceil(mean + 6 * math.sqrt(mean)))
        everyone = options.scores_all_nodes
        shared = self.planner is not None
        nodes = num_nodes if everyone else min(num_nodes, (2 + options.negatives) * links)
        if shared and not everyone:
            kinds = len(options.ends) - 1
            nodes = min(num_nodes, 2 * links + kinds * options.negatives)
        rows = (_ROWS + 2 * everyone) * nodes * columns * number_bytes
        ends = (_PER_PAIR + _PER_LINK) * links if shared else _PER_PAIR * links * (1 + options.negatives)
        ends += self._bytes_of_outputs(links, columns, number_bytes)
        return rows + ends + _PER_NODE * num_nodes + (BLOCK_COPIES * BLOCK_BYTES if shared else 2 * BLOCK_BYTES)

    def _bytes_of_outputs(self, links: int, columns: int, number_bytes: int) -> int:
        """Return the bytes of rows for each edge with a target."""
        return 0 if self.options.labels is None else _PER_EDGE * links * columns * number_bytes

    def to(self, device: torch.device) -> LinkObjective:
        """Return the objective itself, which uses the device of the output."""
        return self

    def for_step(self, seed: int, epoch: int, number: int) -> LinksOfStep:
        """Return the objective of a step: see `Objective.for_step`."""
        options = self.options
        asked, hidden = options.steps.pairs_of_step(seed, epoch, number)
        hides = None
        if hidden is not None:
            hides = HiddenEdges(pairs=hidden, topology=self.shard.topology, relations=options.relations)
        if asked is None:
            return LinksOfStep(self, self.links, self.number, self.total, asked, hides)
        mark = mark_pairs(self.links.head, self.links.tail, asked)
        links = self.links.select_links(mark)
        return LinksOfStep(self, links, self.number[mark], self._sum_over_workers(len(links)), asked, hides)

    def _sum_over_workers(self, count: int) -> int:
        return int(self.shard.comm.all_reduce(torch.tensor(count)))


class _StepDraws(NamedTuple):
    """What is drawn for a step.

    Attributes:
        pairs: Ends and relations of the links, then of the negatives of each.
        queries: Queries with candidates that links have in common; None for negatives of each link.
        read: ``[V]`` bool: the nodes whose rows this worker's links need.
        fetch_plan: Fetches those of other workers.
    """

    pairs: Pairs
    queries: list[CandidateQueries] | None
    read: Tensor
    fetch_plan: RowFetchPlan


class LinksOfStep:
    """The loss of the links that a step asks about. Final.

    Args:
        objective: That of all links.
        links: The worker's links of the step.
        number: ``[L]`` int64, ids of these edges.
        total: Number of links over all workers.
        asked: The pairs of nodes that the step asks about; None for all.
        hidden: The edges that the step hides; None for none.
    """

    as_rowwise = None

    def __init__(
        self,
        objective: LinkObjective,
        links: LinkTriples,
        number: Tensor,
        total: int,
        asked: PairRange | None,
        hidden: HiddenEdges | None,
    ) -> None:
        self.shard = objective.shard
        self.decoder = objective.decoder
        self.options = objective.options
        self.planner = objective.planner
        self.links = links
        self.number = number
        self.num_targets = total
        self.asked = asked
        self.hidden = hidden
        self._drawn: tuple[int, _StepDraws] | None = None

    def find_rows(self, key: int) -> Tensor:
        """Return ``[m]`` int64, ascending: the own rows that `loss` reads. All workers together."""
        draws = self._draw(key)
        read = draws.read.clone()
        read[draws.fetch_plan.asked_nodes] = True
        own = read[self.shard.owned_nodes]
        # A worker without such rows computes one: others may wait for what follows from its gradients.
        own[:1] |= not own.any()
        return own.nonzero()[:, 0]

    def loss(self, out: Tensor, key: int, rows: Tensor | None = None) -> Tensor:
        """Return the sum over the worker's links, divided by their number over all workers.

        Args:
            out: ``[n, C]`` of the own nodes, or ``[m, C]`` of some.
            key: Random key of (seed, epoch, step).
            rows: ``[m]`` int64, ascending, the own rows of ``out``, among them those of `find_rows`; None for all.
        """
        draws = self._draw(key)
        self._drawn = None
        at, known = self._gather_rows(out, draws, rows)
        loss = LinkStepLoss(self.decoder, self.options, self.links, self.num_targets, self.shard.comm, self.number)
        return loss.compute(known, at, draws.pairs, draws.queries)

    def _draw(self, key: int) -> _StepDraws:
        """Return what is drawn for the step; kept until the loss is computed."""
        if self._drawn is None or self._drawn[0] != key:
            head, tail, relation = self.links
            pairs, queries = (tail, head, relation), None
            if self.planner is None:
                pairs = self._draw_pairs(fold_in(key, NEGATIVES))
            else:
                queries = self.planner.plan_queries(self.links, self.number, self.asked, key)
            read = torch.zeros(self.shard.topology.num_nodes, dtype=torch.bool)
            for nodes in (*pairs[:2], *(each.candidates for each in queries or ())):
                read[nodes] = True
            foreign = read.clone()
            foreign[self.shard.owned_nodes] = False
            # Also without foreign nodes, since all workers take part in the exchange.
            self._drawn = key, _StepDraws(pairs, queries, read, self.shard.plan_fetch(foreign.nonzero()[:, 0]))
        return self._drawn[1]

    def _draw_pairs(self, key: int) -> Pairs:
        """Return tails, heads and relations of all pairs: of the links, then of each number of negatives."""
        return draw_pairs(self.links, self.number, self.options, key)

    def _gather_rows(self, out: Tensor, draws: _StepDraws, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the row number of each node, and the rows: the own ones, then those of others."""
        own = self.shard.owned_nodes if rows is None else self.shard.owned_nodes[rows]
        at = torch.full((self.shard.topology.num_nodes,), -1)
        at[own] = torch.arange(len(own))
        if self.shard.comm.size == 1:
            return at, out
        plan = draws.fetch_plan if rows is None else draws.fetch_plan.of_rows(own)
        at[plan.nodes] = len(own) + torch.arange(len(plan.nodes))
        return at, torch.cat([out, plan.fetch_rows(out, Kind.ACTIVATIONS).wait()])
