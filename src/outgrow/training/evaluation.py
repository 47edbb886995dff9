"""Evaluation of models: metrics of labelled nodes, and of ranked links."""

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
    """Metrics of a model.

    Attributes:
        score: Main metric, by which models are compared; NaN if there was nothing to score.
        loss: Loss, which breaks ties between equal scores (lower is better); NaN if not computed.
        figures: All metrics by name.
    """

    score: float
    loss: float = math.nan
    figures: Mapping[str, float] = field(default_factory=dict)


class Evaluator(Protocol):
    """Accumulator of the metrics of one model."""

    def update(self, nodes: Tensor, out: Tensor) -> None:
        """Add the output ``[k, C]`` of some of this worker's nodes, ``[k]`` int64, ascending."""

    def compute(self) -> Metrics:
        """Return the metrics over all workers, once all nodes to score were added. Collective."""


class Evaluation(Protocol):
    """Validation and test sets."""

    @property
    def metric(self) -> str:
        """Name of the main metric."""

    @property
    def larger_is_better(self) -> bool:
        """Whether a larger main metric is a better one."""

    @property
    def scored_nodes(self) -> tuple[Tensor, Tensor]:
        """The own nodes whose output the validation and the test scores need, each ascending."""

    @property
    def has_validation(self) -> bool:
        """Whether there is anything to validate on, over all workers."""

    def validation_evaluator(self) -> Evaluator:
        """Return an evaluator with loss, for use between epochs."""

    def final_evaluators(self) -> tuple[Evaluator, Evaluator]:
        """Return evaluators of the final model on the validation and test sets."""


class NodeEvaluation:
    """Evaluation on labelled nodes. Final.

    Args:
        problem: Problem of node classification.
        val: Ids of all validation nodes, ascending.
        test: Ids of all test nodes, ascending.
    """

    def __init__(self, problem: Problem, val: Tensor, test: Tensor) -> None:
        shard = problem.shard
        targets = problem.node_targets
        self.comm = shard.comm
        self.task = targets.task
        self.labels = targets.labels
        self.owned_nodes = shard.owned_nodes
        self.val = shard.local_index(val)
        self.test = shard.local_index(test)
        # Of all workers: a worker without validation nodes must still take part in the reductions.
        self.num_val = len(val)

    @property
    def metric(self) -> str:
        """Name of the task's metric."""
        return self.task.metric

    @property
    def larger_is_better(self) -> bool:
        """Whether a larger metric of the task is a better one."""
        return self.task.larger_is_better

    @property
    def scored_nodes(self) -> tuple[Tensor, Tensor]:
        """The own nodes of the validation and the test set."""
        return self.owned_nodes[self.val], self.owned_nodes[self.test]

    @property
    def has_validation(self) -> bool:
        """Whether any worker has validation nodes."""
        return self.num_val > 0

    def validation_evaluator(self) -> Evaluator:
        """Return an evaluator of the validation nodes, with loss."""
        return self._make_evaluator(self.val, self.num_val)

    def final_evaluators(self) -> tuple[Evaluator, Evaluator]:
        """Return evaluators of the validation and test nodes, without loss."""
        return self._make_evaluator(self.val, None), self._make_evaluator(self.test, None)

    def _make_evaluator(self, rows: Tensor, total: int | None) -> _NodeEvaluator:
        return _NodeEvaluator(self.comm, self.task, self.labels, self.owned_nodes[rows], rows, total)


class _NodeEvaluator:
    """Scores ascending own nodes; with their loss if ``total``, their number over all workers, is given."""

    def __init__(
        self, comm: Comm, task: NodeTask, labels: Tensor, nodes: Tensor, rows: Tensor, total: int | None
    ) -> None:
        self.comm = comm
        self.task = task
        self.labels = labels
        self.nodes = nodes
        self.rows = rows
        self.total = total
        self.counts: list[Tensor] = []
        self.losses: list[Tensor] = []

    def update(self, nodes: Tensor, out: Tensor) -> None:
        if len(nodes):
            near = row_range(self.nodes, int(nodes[0]), int(nodes[-1]) + 1)
            wanted = self.nodes[near]
            places = torch.searchsorted(nodes, wanted)
            found = nodes[places] == wanted
            logits = out[places[found]]
            labels = self.labels[self.rows[near][found]]
        else:
            logits, labels = out, self.labels[:0]
        self.counts.append(self.task.metric_counts(logits, labels))
        if self.total is not None:
            # In float64, so that the sum hardly depends on how nodes were cut into chunks.
            self.losses.append(self.task.loss(logits, labels, self.total).double())

    def compute(self) -> Metrics:
        score = self.task.metric_from_counts(self.comm.all_reduce(torch.stack(self.counts).sum(0)))
        loss = math.nan if self.total is None else self.comm.all_reduce(torch.stack(self.losses).sum()).item()
        return Metrics(score=score, loss=loss, figures={self.task.metric: score})


class LinkEvaluation:
    """Evaluation by ranking links. Final.

    Args:
        val: Validation links.
        test: Test links.
    """

    metric = "mrr"
    larger_is_better = True

    def __init__(self, val: LinkRanker, test: LinkRanker) -> None:
        self.val, self.test = val, test

    @property
    def scored_nodes(self) -> tuple[Tensor, Tensor]:
        """All own nodes, since links are ranked against them."""
        owned_nodes = self.val.shard.owned_nodes
        return owned_nodes, owned_nodes

    @property
    def has_validation(self) -> bool:
        """Whether there are validation links."""
        return len(self.val.links) > 0

    def validation_evaluator(self) -> Evaluator:
        """Return an evaluator of the validation links."""
        return _LinkEvaluator(self.val)

    def final_evaluators(self) -> tuple[Evaluator, Evaluator]:
        """Return evaluators of the validation and test links."""
        return _LinkEvaluator(self.val), _LinkEvaluator(self.test)


class _LinkEvaluator:
    """Ranks links once the rows of all own nodes were added."""

    def __init__(self, ranking: LinkRanker) -> None:
        self.ranking = ranking
        self.parts: dict[int, Tensor] = {}

    def update(self, nodes: Tensor, out: Tensor) -> None:
        self.parts[int(nodes[0]) if len(nodes) else -1] = out

    def compute(self) -> Metrics:
        # Chunks may be added in any order of nodes.
        out = torch.cat([self.parts[first] for first in sorted(self.parts)])
        figures = self.ranking.rank_links(out).compute_metrics()
        return Metrics(score=figures["mrr"], loss=0.0, figures=figures)
