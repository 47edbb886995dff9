"""How good a model is: scores of nodes by their labels, of links by their ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from outgrow.engine.link_ranking import LinkRanker
from outgrow.engine.objective import row_range
from outgrow.nn.tasks import NodeTask
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.base import Problem


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """How good a model is.

    Attributes:
        score: The one figure that models are compared by, in [0, 1]; NaN if there was nothing to score.
        loss: Which of two models with the same score is better: the lower one; NaN if it was not asked for.
        figures: All that is known, by name.
    """

    score: float
    loss: float = math.nan
    figures: Mapping[str, float] = field(default_factory=dict)


class Evaluator(Protocol):
    """A model being scored."""

    def update(self, first: int, out: Tensor) -> None:
        """The output ``[k, C]`` of own nodes ``first`` to ``first + k - 1``."""

    def compute(self) -> Metrics:
        """How good it was, once all own nodes were added. All workers together."""


class Evaluation(Protocol):
    """What models are scored on."""

    @property
    def metric(self) -> str:
        """Name of the score."""

    def validation_evaluator(self) -> Evaluator | None:
        """For models between epochs, with their loss; None if there is nothing to validate on."""

    def final_evaluators(self) -> tuple[Evaluator, Evaluator]:
        """For the model that training ends with: validation and test."""


class NodeEvaluation:
    """Nodes to score a model on. Final.

    Args:
        problem: What is trained, for labelled nodes.
        val: Ids of all nodes to validate on, ascending.
        test: Ids of all nodes to test on, ascending.
    """

    def __init__(self, problem: Problem, val: Tensor, test: Tensor) -> None:
        share, targets = problem.shard, problem.node_targets
        self.comm, self.task, self.labels = share.comm, targets.task, targets.labels
        self.val, self.test, self.num_val = share.local_index(val), share.local_index(test), len(val)

    @property
    def metric(self) -> str:
        """See `Evaluation.metric`."""
        return self.task.metric

    def validation_evaluator(self) -> Evaluator | None:
        """See `Evaluation.validation_evaluator`."""
        return self._make_evaluator(self.val, self.num_val) if self.num_val else None

    def final_evaluators(self) -> tuple[Evaluator, Evaluator]:
        """See `Evaluation.final_evaluators`."""
        return self._make_evaluator(self.val, None), self._make_evaluator(self.test, None)

    def _make_evaluator(self, rows: Tensor, total: int | None) -> _NodeEvaluator:
        return _NodeEvaluator(self.comm, self.task, self.labels, rows, total)


class _NodeEvaluator:
    """Scores some ascending rows of the own nodes; with their loss if ``total`` says how many all workers have."""

    def __init__(self, comm: Comm, task: NodeTask, labels: Tensor, rows: Tensor, total: int | None) -> None:
        self.comm, self.task, self.labels, self.rows, self.total = comm, task, labels, rows, total
        self.counts: list[Tensor] = []
        self.losses: list[Tensor] = []

    def update(self, first: int, out: Tensor) -> None:
        found = self.rows[row_range(self.rows, first, first + len(out))]
        logits, labels = out[found - first], self.labels[found]
        self.counts.append(self.task.metric_counts(logits, labels))
        if self.total is not None:
            self.losses.append(self.task.loss(logits, labels, self.total).double())

    def compute(self) -> Metrics:
        score = self.task.metric_from_counts(self.comm.all_reduce(torch.stack(self.counts).sum(0)))
        loss = math.nan if self.total is None else self.comm.all_reduce(torch.stack(self.losses).sum()).item()
        return Metrics(score=score, loss=loss, figures={self.task.metric: score})


class LinkEvaluation:
    """Links to rank. Final.

    Args:
        val: Those to validate on.
        test: Those to test on.
    """

    metric = "mrr"

    def __init__(self, val: LinkRanker, test: LinkRanker) -> None:
        self.val, self.test = val, test

    def validation_evaluator(self) -> Evaluator | None:
        """See `Evaluation.validation_evaluator`."""
        return _LinkEvaluator(self.val) if len(self.val.links) else None

    def final_evaluators(self) -> tuple[Evaluator, Evaluator]:
        """See `Evaluation.final_evaluators`."""
        return _LinkEvaluator(self.val), _LinkEvaluator(self.test)


class _LinkEvaluator:
    """Ranks links once the rows of all own nodes are there."""

    def __init__(self, ranking: LinkRanker) -> None:
        self.ranking = ranking
        self.parts: dict[int, Tensor] = {}

    def update(self, first: int, out: Tensor) -> None:
        self.parts[first] = out

    def compute(self) -> Metrics:
        out = torch.cat([self.parts[first] for first in sorted(self.parts)])
        figures = self.ranking.rank_links(out).compute_metrics()
        return Metrics(score=figures["mrr"], loss=0.0, figures=figures)
