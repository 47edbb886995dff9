"""Evaluation of models: the interface, and metrics of labelled nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from outgrow.engine.objective import row_range
from outgrow.inference.link_ranks import LinkRanks
from outgrow.nn.tasks import NodeTask
from outgrow.strategies.base import Problem
from outgrow.training.metric_request import LOSS
from outgrow.training.metrics import NodeMetric, TaskMetrics
from outgrow.training.monitor import Monitor, choose_node_monitor


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Metrics of a model.

    Attributes:
        score: Monitored metric, by which models are compared; NaN if there was nothing to score.
        loss: Loss, which breaks ties between equal scores (lower is better); NaN if not computed.
        figures: All metrics by name.
        notes: What metrics have warned of, on rank 0.
        ranks: Ranks of links, if the model predicts links.
    """

    score: float
    loss: float = math.nan
    figures: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    ranks: LinkRanks | None = None


class Evaluator(Protocol):
    """Accumulator of the metrics of one model."""

    @property
    def reads_output(self) -> bool:
        """Whether it reads what is added, on any worker."""

    def update(self, nodes: Tensor, out: Tensor) -> None:
        """Add the output ``[k, C]`` of some of this worker's nodes, ``[k]`` int64, ascending."""

    def compute(self) -> Metrics:
        """Return the metrics over all workers, once all nodes to score were added. Collective."""


class Evaluation(Protocol):
    """Validation and test sets."""

    @property
    def metric(self) -> str:
        """Name of the task's own metric."""

    @property
    def monitor(self) -> Monitor:
        """The metric that is monitored."""

    @property
    def scored_nodes(self) -> tuple[Tensor, Tensor]:
        """The own nodes whose output the validation and the test scores need, each ascending."""

    @property
    def has_validation(self) -> bool:
        """Whether there is anything to validate on, over all workers."""

    def validation_evaluator(self) -> Evaluator:
        """Return an evaluator with loss, for use between epochs."""

    def final_evaluators(self, *, together: bool) -> tuple[Evaluator, Evaluator]:
        """Return evaluators of the final model on the validation and test sets.

        Args:
            together: Whether both are given the same output.
        """


class NodeEvaluation:
    """Evaluation on labelled nodes. Final.

    Args:
        problem: Problem of node classification.
        val: Ids of all validation nodes, ascending.
        test: Ids of all test nodes, ascending.
        metrics: Metrics beside the task's own.
        monitor: The metric that is monitored; None for the task's own.
        tasks: The task for the loss of the validation and of the test nodes; None for that of the problem.
    """

    def __init__(
        self,
        problem: Problem,
        val: Tensor,
        test: Tensor,
        *,
        metrics: Sequence[NodeMetric] = (),
        monitor: Monitor | None = None,
        tasks: tuple[NodeTask, NodeTask] | None = None,
    ) -> None:
        shard = problem.shard
        targets = problem.node_targets
        self.comm = shard.comm
        self.task = targets.task
        self.tasks = tasks or (self.task, self.task)
        self.labels = targets.labels
        self.owned_nodes = shard.owned_nodes
        self.val = shard.local_index(val)
        self.test = shard.local_index(test)
        # Of all workers: a worker without validation nodes must still take part in the reductions.
        self.num_val, self.num_test = len(val), len(test)
        self.metrics = metrics
        self.monitor = monitor or choose_node_monitor(None, None, self.task)

    @property
    def metric(self) -> str:
        """Name of the task's metric."""
        return self.task.metric

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
        return self._make_evaluator(self.val, self.num_val, self.tasks[0])

    def final_evaluators(self, *, together: bool) -> tuple[Evaluator, Evaluator]:
        """Return evaluators of the validation and test nodes, without loss unless that is monitored."""
        val, test = (self.num_val, self.num_test) if self.monitor.name == LOSS else (None, None)
        return (
            self._make_evaluator(self.val, val, self.tasks[0]),
            self._make_evaluator(self.test, test, self.tasks[1]),
        )

    def _make_evaluator(self, rows: Tensor, total: int | None, task: NodeTask) -> _NodeEvaluator:
        metrics = TaskMetrics(self.comm, task, self.metrics)
        return _NodeEvaluator(metrics, self.monitor.name, self.labels, self.owned_nodes[rows], rows, total)


class _NodeEvaluator:
    """Scores ascending own nodes; with their loss if ``total``, their number over all workers, is given."""

    def __init__(
        self, metrics: TaskMetrics, monitor: str, labels: Tensor, nodes: Tensor, rows: Tensor, total: int | None
    ) -> None:
        self.comm = metrics.comm
        self.task = metrics.task
        self.metrics = metrics
        self.monitor = monitor
        self.labels = labels
        self.nodes = nodes
        self.rows = rows
        self.total = total
        self.counts: list[Tensor] = []
        self.losses: list[Tensor] = []

    @property
    def reads_output(self) -> bool:
        """Metrics of no nodes are made of output too."""
        return True

    def update(self, nodes: Tensor, out: Tensor) -> None:
        if len(nodes):
            near = row_range(self.nodes, int(nodes[0]), int(nodes[-1]) + 1)
            wanted = self.nodes[near]
            places = torch.searchsorted(nodes, wanted)
            found = nodes[places] == wanted
            wanted = wanted[found]
            logits = out[places[found]]
            labels = self.labels[self.rows[near][found]]
        else:
            wanted, logits, labels = nodes, out, self.labels[:0]
        self.counts.append(self.task.metric_counts(logits, labels))
        self.metrics.update(wanted, logits, labels)
        if self.total is not None:
            # In float64, so that the sum hardly depends on how nodes were cut into chunks.
            self.losses.append(self.task.loss(logits, labels, self.total).double())

    def compute(self) -> Metrics:
        counts = self.comm.all_reduce(torch.stack(self.counts).sum(0))
        loss = math.nan if self.total is None else self.comm.all_reduce(torch.stack(self.losses).sum()).item()
        figures = {**self.task.figures_from_counts(counts), **self.metrics.compute()}
        if self.monitor == LOSS:
            # Without nodes there is no loss; their sum would be the best one.
            figures[LOSS] = loss if self.total else math.nan
        return Metrics(score=figures[self.monitor], loss=loss, figures=figures, notes=self.metrics.warnings)
