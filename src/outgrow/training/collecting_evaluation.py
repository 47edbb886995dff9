"""Evaluation of held-out links or edges: rows of their ends are collected, then all are scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from outgrow.engine.shard import GraphShard
from outgrow.training.collected_rows import CollectedRows
from outgrow.training.evaluation import Evaluator, Metrics
from outgrow.training.monitor import Monitor


class PairScorer(Protocol):
    """Scores links or edges, of which it has a number, once the rows of their ends are there.

    Attributes:
        shard: What the worker holds of the graph.
    """

    shard: GraphShard

    def find_scored_nodes(self) -> Tensor:
        """Return ``[n]`` int64, ascending: the own nodes whose rows it reads."""

    def __len__(self) -> int: ...


Scorer = TypeVar("Scorer", bound=PairScorer)


class CollectingEvaluation(ABC, Generic[Scorer]):
    """Evaluation of held-out links or edges.

    Args:
        val: Scores those to validate on.
        test: Scores those to test on.
        monitor: The metric that is monitored.
        memory_limit: Limit on the bytes in the worker's DEVICE tier, of which rows take a part; None for what there is.
    """

    def __init__(self, val: Scorer, test: Scorer, monitor: Monitor, memory_limit: int | None) -> None:
        self.val, self.test = val, test
        self.monitor = monitor
        self.memory_limit = memory_limit
        self._scored_nodes: tuple[Tensor, Tensor] | None = None

    @property
    def scored_nodes(self) -> tuple[Tensor, Tensor]:
        """The own nodes whose rows are read."""
        if self._scored_nodes is None:
            self._scored_nodes = self.val.find_scored_nodes(), self.test.find_scored_nodes()
        return self._scored_nodes

    @property
    def has_validation(self) -> bool:
        """Whether there is anything to validate on."""
        return len(self.val) > 0

    def validation_evaluator(self) -> Evaluator:
        """Return an evaluator of the validation part."""
        return self._make_evaluator(self.val, self._collect(self.scored_nodes[0], 1))

    def final_evaluators(self, *, together: bool) -> tuple[Evaluator, Evaluator]:
        """Return evaluators of both parts, which collect the same rows if they are given the same output."""
        if together:
            val = test = self._collect(torch.unique(torch.cat(self.scored_nodes)), 2)
        else:
            val, test = (self._collect(nodes, 1) for nodes in self.scored_nodes)
        return self._make_evaluator(self.val, val), self._make_evaluator(self.test, test)

    @abstractmethod
    def _make_evaluator(self, scorer: Scorer, rows: CollectedRows) -> Evaluator: ...

    def _collect(self, nodes: Tensor, readers: int) -> CollectedRows:
        return CollectedRows.of_worker(nodes, self.val.shard.comm, self.memory_limit, readers)


class CollectingEvaluator(ABC, Generic[Scorer]):
    """Evaluator of one part, once the rows of all nodes that it reads were added.

    Args:
        scorer: Scores the part.
        collected: The rows, which `compute` releases.
    """

    def __init__(self, scorer: Scorer, collected: CollectedRows) -> None:
        self.scorer = scorer
        self.collected = collected

    @property
    def reads_output(self) -> bool:
        """Whether there is anything to score, for which rows are kept."""
        return len(self.scorer) > 0

    def update(self, nodes: Tensor, out: Tensor) -> None:
        """Add the output of some nodes."""
        if self.reads_output:
            self.collected.add(nodes, out)

    @abstractmethod
    def compute(self) -> Metrics:
        """Return the metrics over all workers."""
