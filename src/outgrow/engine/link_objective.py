"""Training for links: those of the graph shall score higher than ones that are drawn."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from outgrow.core.ledger import Kind
from outgrow.engine.link_ranking import CHUNK_BYTES
from outgrow.engine.shard import GraphShard
from outgrow.graph.link_split import collect_in_links
from outgrow.nn.decoder import Decoder
from outgrow.ops.link_scores import NodePairs, sample_negatives
from outgrow.ops.rng import fold_in

_NEGATIVES = 0x4C494E4B
"""Part of the key, far from those of layers."""

_ROWS = 5
"""Times that rows are there: they, those that came, their gradient and its two parts."""
_PER_PAIR = 96
"""Bytes of a pair: both ends twice, their places, relation, order, score, aim and gradients."""


class LinkObjective:
    """Binary cross-entropy of the links of a graph and of as many times ``negatives`` that are drawn. Final.

    Each worker scores the links into the nodes that it owns, and what is drawn in their place; rows of other
    nodes are fetched. What is drawn depends on the seed, the epoch and the number of the edge alone (see
    `outgrow.ops.link_scores.sample_negatives`).

    Args:
        shard: What the worker holds of the graph, which is trained on; loops are no links.
        decoder: Scores links.
        ends: ``[T + 1]`` int64: nodes ``ends[t]`` to ``ends[t + 1] - 1`` are of type ``t``.
        negatives: Links drawn for each of the graph.
    """

    as_rowwise = None

    def __init__(self, shard: GraphShard, decoder: Decoder, ends: Tensor, *, negatives: int) -> None:
        self.shard = shard
        self.decoder = decoder
        self.ends = ends
        self.negatives = negatives
        links, number = collect_in_links(shard.topology, shard.owned_nodes)
        self.links = links.select_links(links.non_loop_mask)
        self.number = number[links.non_loop_mask]
        self.total = int(shard.comm.all_reduce(torch.tensor(len(self.links))))

    def extra_bytes(self, columns: int, number_bytes: int) -> int:
        """See `Objective.extra_bytes`: all rows that pairs are of, with their gradients, and the pairs."""
        pairs = len(self.links) * (1 + self.negatives)
        own = len(self.shard.owned_nodes)
        rows = own + min(self.shard.topology.num_nodes - own, 2 * pairs)
        return _ROWS * rows * columns * number_bytes + _PER_PAIR * pairs + 2 * CHUNK_BYTES

    def to(self, device: torch.device) -> LinkObjective:
        """See `Objective.to`: it is told by the output."""
        return self

    def loss(self, out: Tensor, key: int) -> Tensor:
        """See `Objective.loss`: the sum over all pairs, divided by their number over all workers."""
        first, second, relation, target = self._draw_pairs(fold_in(key, _NEGATIVES))
        at, rows = self._gather_rows(out, first, second)
        ends = at[first].to(out.device), at[second].to(out.device)
        pairs = NodePairs.from_endpoints(*ends, relation.to(out.device), len(rows))
        score = self.decoder(rows, pairs)
        aim = target.to(out.device)[pairs.order].to(score.dtype)
        each = functional.binary_cross_entropy_with_logits(score, aim, reduction="none")
        return each.sum() / (self.total * (1 + self.negatives))

    def _draw_pairs(self, key: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Both nodes of all pairs, their relations, and whether they are links."""
        head, tail, relation = self.links
        drawn = [sample_negatives(head, tail, self.number, self.ends, fold_in(key, k)) for k in range(self.negatives)]
        first, second = (torch.cat(parts) for parts in zip((tail, head), *drawn, strict=True))
        target = torch.zeros(len(first), dtype=torch.bool)
        target[: len(head)] = True
        return first, second, relation.repeat(1 + self.negatives), target

    def _gather_rows(self, out: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Where the row of each node is, and the rows: the own ones, then those of others."""
        own = self.shard.owned_nodes
        at = torch.full((self.shard.topology.num_nodes,), -1)
        at[own] = torch.arange(len(own))
        foreign = torch.zeros(len(at), dtype=torch.bool)
        for nodes in (first, second):
            foreign[nodes] = True
        foreign[own] = False
        subscription = self.shard.plan_fetch(foreign.nonzero()[:, 0])
        if self.shard.comm.size == 1:
            return at, out
        at[subscription.nodes] = len(own) + torch.arange(len(subscription.nodes))
        return at, torch.cat([out, subscription.fetch_rows(out, Kind.ACTIVATIONS).wait()])
