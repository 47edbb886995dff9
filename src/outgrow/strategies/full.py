"""`full`: every node, every neighbour, every epoch. The reference of all full-graph strategies."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from outgrow.core.ledger import Ledger
from outgrow.engine.constant import first_aggregate
from outgrow.engine.inference import whole_blocks
from outgrow.ops import buffers
from outgrow.ops.keyed import derive
from outgrow.strategies.base import Execution, Problem, Step, Strategy


class Full(Strategy):
    """Full-graph training on one worker: nothing moves. One step per epoch."""

    name = "full"
    exact = True

    def prepare(self, problem: Problem, ledger: Ledger) -> Execution:
        """See `Strategy.prepare`."""
        return _FullExecution(problem, ledger)


class _FullExecution:
    def __init__(self, problem: Problem, ledger: Ledger) -> None:
        self.problem, self.ledger = problem, ledger
        self.blocks = whole_blocks(problem.model, problem.topology)
        self.labels = problem.labels[problem.train]
        self.known = first_aggregate(problem.model, self.blocks[0], problem.features)
        if self.known is not None:
            ledger.count("edges_aggregated", self.blocks[0].edges.num_edges)

    def steps(self, epoch: int, first: int = 0) -> Iterator[Step]:
        problem = self.problem
        if first > 0:
            return
        logits = problem.model(self.blocks, problem.features, derive(problem.seed, epoch, 0), self.known)
        loss = problem.task.loss(logits, self.labels, len(problem.train), problem.train)
        torch.autograd.backward(loss)
        for index, block in enumerate(self.blocks):
            if index > 0 or self.known is None:
                self.ledger.count("edges_aggregated", block.edges.num_edges)
            self.ledger.count("rows_computed", block.edges.num_dst)
        yield Step(loss=loss.item(), num_seeds=len(problem.train))

    def close(self) -> None:
        self.blocks, self.known = [], None
        buffers.clear()
