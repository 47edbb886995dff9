"""A strategy that is lost within an epoch."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace

import torch

from outgrow.engine.batches import FULL_GRAPH, BatchConfig
from outgrow.engine.shard import GraphShard
from outgrow.graph.graph import Graph
from outgrow.nn.model import Model
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.base import Execution, Problem, Step, Strategy


class Lost(Exception):
    """The host is gone."""


class Failing(Strategy):
    """Another strategy, that is lost before a step, or whose loss is no number then."""

    name, exact = "failing", True

    def __init__(self, strategy: Strategy, epoch: int, step: int, loss: float | None = None) -> None:
        self.strategy, self.at, self.loss = strategy, (epoch, step), loss

    def shard_graph(self, graph: Graph, comm: Comm, model: Model, batches: BatchConfig = FULL_GRAPH) -> GraphShard:
        return self.strategy.shard_graph(graph, comm, model, batches)

    def is_exact(self, batches: BatchConfig) -> bool:
        return self.strategy.is_exact(batches)

    def prepare(self, problem: Problem) -> Execution:
        self.execution = self.strategy.prepare(problem)
        self.in_memory = self.execution.in_memory
        return self

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        with closing(self.execution.steps(epoch, first)) as steps:
            for number, step in enumerate(steps, start=first):
                wrong = (epoch, number) == self.at
                if wrong and self.loss is None:
                    raise Lost
                yield replace(step, loss=self.loss) if wrong and self.loss is not None else step

    def inference(self) -> Iterator[tuple[int, torch.Tensor]]:
        return self.execution.inference()

    def close(self) -> None:
        self.execution.close()
