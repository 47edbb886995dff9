"""How good a model is: scores of nodes by their labels, of links by their ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from outgrow.engine.link_ranking import Ranking
from outgrow.engine.objective import between
from outgrow.nn.tasks import Task
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.base import Problem


@dataclass(frozen=True, kw_only=True)
class Marks:
    """How good a model is.

    Attributes:
        score: The one figure that models are compared by, in [0, 1]; NaN if there was nothing to score.
        loss: Which of two models with the same score is better: the lower one; NaN if it was not asked for.
        figures: All that is known, by name.
    """

    score: float
    loss: float = math.nan
    figures: Mapping[str, float] = field(default_factory=dict)


class Scoring(Protocol):
    """A model being scored."""

    def add(self, first: int, out: Tensor) -> None:
        """The output ``[k, C]`` of own nodes ``first`` to ``first + k - 1``."""

    def marks(self) -> Marks:
        """How good it was, once all own nodes were added. All workers together."""


class Evaluation(Protocol):
    """What models are scored on."""

    @property
    def metric(self) -> str:
        """Name of the score."""

    def validation(self) -> Scoring | None:
        """For models between epochs, with their loss; None if there is nothing to validate on."""

    def final(self) -> tuple[Scoring, Scoring]:
        """For the model that training ends with: validation and test."""


class NodeEvaluation:
    """Nodes to score a model on. Final.

    Args:
        problem: What is trained, for labelled nodes.
        val: Ids of all nodes to validate on, ascending.
        test: Ids of all nodes to test on, ascending.
    """

    def __init__(self, problem: Problem, val: Tensor, test: Tensor) -> None:
        share, targets = problem.share, problem.labelled
        self.comm, self.task, self.labels = share.comm, targets.task, targets.labels
        self.val, self.test, self.num_val = share.places(val), share.places(test), len(val)

    @property
    def metric(self) -> str:
        """See `Evaluation.metric`."""
        return self.task.metric

    def validation(self) -> Scoring | None:
        """See `Evaluation.validation`."""
        return self._scoring(self.val, self.num_val) if self.num_val else None

    def final(self) -> tuple[Scoring, Scoring]:
        """See `Evaluation.final`."""
        return self._scoring(self.val, None), self._scoring(self.test, None)

    def _scoring(self, rows: Tensor, total: int | None) -> _NodeScoring:
        return _NodeScoring(self.comm, self.task, self.labels, rows, total)


class _NodeScoring:
    """Scores some ascending rows of the own nodes; with their loss if ``total`` says how many all workers have."""

    def __init__(self, comm: Comm, task: Task, labels: Tensor, rows: Tensor, total: int | None) -> None:
        self.comm, self.task, self.labels, self.rows, self.total = comm, task, labels, rows, total
        self.tallies: list[Tensor] = []
        self.losses: list[Tensor] = []

    def add(self, first: int, out: Tensor) -> None:
        found = self.rows[between(self.rows, first, first + len(out))]
        logits, labels = out[found - first], self.labels[found]
        self.tallies.append(self.task.tally(logits, labels))
        if self.total is not None:
            self.losses.append(self.task.loss(logits, labels, self.total).double())

    def marks(self) -> Marks:
        score = self.task.score_of(self.comm.sum_(torch.stack(self.tallies).sum(0)))
        loss = math.nan if self.total is None else self.comm.sum_(torch.stack(self.losses).sum()).item()
        return Marks(score=score, loss=loss, figures={self.task.metric: score})


class LinkEvaluation:
    """Links to rank. Final.

    Args:
        val: Those to validate on.
        test: Those to test on.
    """

    metric = "mrr"

    def __init__(self, val: Ranking, test: Ranking) -> None:
        self.val, self.test = val, test

    def validation(self) -> Scoring | None:
        """See `Evaluation.validation`."""
        return _LinkScoring(self.val) if len(self.val.links) else None

    def final(self) -> tuple[Scoring, Scoring]:
        """See `Evaluation.final`."""
        return _LinkScoring(self.val), _LinkScoring(self.test)


class _LinkScoring:
    """Ranks links once the rows of all own nodes are there."""

    def __init__(self, ranking: Ranking) -> None:
        self.ranking = ranking
        self.parts: dict[int, Tensor] = {}

    def add(self, first: int, out: Tensor) -> None:
        self.parts[first] = out

    def marks(self) -> Marks:
        out = torch.cat([self.parts[first] for first in sorted(self.parts)])
        figures = self.ranking.ranks(out).figures()
        return Marks(score=figures["mrr"], loss=0.0, figures=figures)
