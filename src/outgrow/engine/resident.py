"""An epoch on all nodes at once, whose rows fit into memory: forward, backward and the sum of the gradients."""

from __future__ import annotations

import torch

from outgrow.engine.constant import first_aggregate
from outgrow.engine.full_pass import full_pass
from outgrow.engine.goal import Goal
from outgrow.engine.inputs import Input
from outgrow.engine.share import Share
from outgrow.nn.model import Model
from outgrow.ops import memory_pool
from outgrow.ops.rng import derive


class ResidentPass:
    """Full-graph epochs on what a worker holds of a graph, with the rows of all layers in memory.

    An aggregate of the first layer that is constant is computed here, once.

    Counted in the ledger: ``edges_aggregated`` and ``rows_computed``, of all layers.

    Args:
        model: The model; its gradients are left in its parameters.
        share: What the worker holds of the graph.
        given: Features of its nodes.
        goal: What is trained for.
        seed: Seed of every random draw.
        overlap: Whether to aggregate own rows while others are under way.
    """

    def __init__(
        self, model: Model, share: Share, given: Input, goal: Goal, seed: int, *, overlap: bool = True
    ) -> None:
        self.model, self.share, self.given, self.goal = model, share, given, goal.to(share.comm.device)
        self.seed, self.overlap = seed, overlap
        self.comm, self.ledger = share.comm, share.comm.ledger
        self.edges = [share.view(layer).block.edges for layer in model.stages()]
        self.known = first_aggregate(model, share.view(model.stages()[0]).block, given.source)
        if self.known is not None:
            self.ledger.count("edges_aggregated", self.edges[0].num_edges)

    def epoch(self, epoch: int) -> float:
        """The loss over all workers; every parameter's ``.grad`` then holds the global gradient. All workers together.

        Args:
            epoch: Number of the epoch, which with the seed decides the draws.
        """
        key, timeline = derive(self.seed, epoch, 0), self.comm.timeline
        with timeline.span("forward"):
            logits = full_pass(self.model, self.share, self.given, key, known=self.known, overlap=self.overlap)
            loss = self.goal.loss(logits, key)
        with timeline.span("backward"):
            torch.autograd.backward(loss)
        self.comm.sum_gradients(self.model)
        for index, edges in enumerate(self.edges):
            if index > 0 or self.known is None:
                self.ledger.count("edges_aggregated", edges.num_edges)
            self.ledger.count("rows_computed", edges.num_dst)
        return self.comm.sum_(loss.detach().double().cpu()).item()

    def close(self) -> None:
        """Release what it holds, and the memory that layers lent."""
        self.edges, self.known = [], None
        memory_pool.clear()
