"""The objective for links: those of the graph should score higher than sampled negatives."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from outgrow.core.ledger import Kind
from outgrow.engine.link_ranking import CHUNK_BYTES
from outgrow.engine.shard import GraphShard
from outgrow.graph.link_split import collect_in_links, mark_relations
from outgrow.nn.decoder import Decoder
from outgrow.ops.link_scores import NodePairs, sample_negatives
from outgrow.ops.rng import fold_in

_NEGATIVES = 0x4C494E4B
"""Part of the key, far from those of layers."""

_ROWS = 5
"""Copies of the rows: own and received ones, their gradient and its two parts."""
_PER_PAIR = 96
"""Bytes of a pair: both ends twice, their positions, relation, order, score, target and gradients."""


class LinkObjective:
    """Binary cross-entropy of the links of a graph and of ``negatives`` sampled links for each. Final.

    Each worker scores the links into the nodes that it owns, and what is drawn in their place; rows of other
    nodes are fetched. What is drawn depends on the seed, the epoch and the number of the edge alone (see
    `outgrow.ops.link_scores.sample_negatives`).

    Args:
        shard: What the worker holds of the graph, which is trained on; loops are no links.
        decoder: Scores links.
        ends: ``[T + 1]`` int64: nodes ``ends[t]`` to ``ends[t + 1] - 1`` are of type ``t``.
        negatives: Number of negative links sampled for each link of the graph.
        relations: ``[n]`` int64, the relations whose edges are links; None for all.
    """

    as_rowwise = None

    def __init__(
        self, shard: GraphShard, decoder: Decoder, ends: Tensor, *, negatives: int, relations: Tensor | None = None
    ) -> None:
        self.shard = shard
        self.decoder = decoder
        self.ends = ends
        self.negatives = negatives
        links, number = collect_in_links(shard.topology, shard.owned_nodes)
        predicted = links.non_loop_mask & mark_relations(links, relations)
        self.links = links.select_links(predicted)
        # Edge numbers of the whole graph key the random draws: negatives do not depend on the partition.
        self.number = number[predicted]
        self.total = int(shard.comm.all_reduce(torch.tensor(len(self.links))))

    def extra_bytes(self, columns: int, number_bytes: int) -> int:
        """Return the bytes of the rows of all pairs, with their gradients, and of the pairs."""
        pairs = len(self.links) * (1 + self.negatives)
        own = len(self.shard.owned_nodes)
        rows = own + min(self.shard.topology.num_nodes - own, 2 * pairs)
        return _ROWS * rows * columns * number_bytes + _PER_PAIR * pairs + 2 * CHUNK_BYTES

    def to(self, device: torch.device) -> LinkObjective:
        """Return the objective itself, which uses the device of the output."""
        return self

    def loss(self, out: Tensor, key: int) -> Tensor:
        """Return the sum over the worker's pairs, divided by their number over all workers."""
        first, second, relation, target = self._draw_pairs(fold_in(key, _NEGATIVES))
        at, rows = self._gather_rows(out, first, second)
        ends = at[first].to(out.device), at[second].to(out.device)
        pairs = NodePairs.from_endpoints(*ends, relation.to(out.device), len(rows))
        score = self.decoder(rows, pairs)
        aim = target.to(out.device)[pairs.order].to(score.dtype)
        each = functional.binary_cross_entropy_with_logits(score, aim, reduction="none")
        return each.sum() / (self.total * (1 + self.negatives))

    def _draw_pairs(self, key: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return tails and heads of all pairs, their relations, and whether they are links of the graph."""
        head, tail, relation = self.links
        first, second = [tail], [head]
        for k in range(self.negatives):
            kept, drawn = sample_negatives(head, tail, self.number, self.ends, fold_in(key, k))
            # What replaces a tail is a tail: decoders may score a link and its reverse differently.
            keeps_head = kept == head
            first.append(torch.where(keeps_head, drawn, tail))
            second.append(torch.where(keeps_head, head, drawn))
        target = torch.zeros(len(head) * (1 + self.negatives), dtype=torch.bool)
        # The links of the graph come first, then the negatives.
        target[: len(head)] = True
        return torch.cat(first), torch.cat(second), relation.repeat(1 + self.negatives), target

    def _gather_rows(self, out: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row number of each node, and the rows: the own ones, then those of others."""
        own = self.shard.owned_nodes
        at = torch.full((self.shard.topology.num_nodes,), -1)
        at[own] = torch.arange(len(own))
        foreign = torch.zeros(len(at), dtype=torch.bool)
        for nodes in (first, second):
            foreign[nodes] = True
        foreign[own] = False
        # Also without foreign nodes, since all workers take part in the exchange.
        fetch_plan = self.shard.plan_fetch(foreign.nonzero()[:, 0])
        if self.shard.comm.size == 1:
            return at, out
        at[fetch_plan.nodes] = len(own) + torch.arange(len(fetch_plan.nodes))
        return at, torch.cat([out, fetch_plan.fetch_rows(out, Kind.ACTIVATIONS).wait()])
