"""Evaluation of targets of edges: rows of their ends are collected, in a file if they are many; edges in chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from outgrow.nn.node_task import NodeTask
from outgrow.training.collected_rows import CollectedRows, collect_parts
from outgrow.training.edge_scores import EdgeScorer
from outgrow.training.evaluation import Evaluator, Metrics
from outgrow.training.metric_request import LOSS
from outgrow.training.metrics import NodeMetric, TaskMetrics
from outgrow.training.monitor import Monitor


class EdgeEvaluation:
    """Evaluation of edges with targets that are held out. Final.

    Args:
        val: Scores the edges to validate on.
        test: Scores those to test on.
        metrics: Metrics beside the task's own.
        monitor: The metric that is monitored.
        memory_limit: Limit on the bytes in the worker's DEVICE tier, of which rows take a part; None for what there is.
    """

    def __init__(
        self,
        val: EdgeScorer,
        test: EdgeScorer,
        monitor: Monitor,
        *,
        metrics: Sequence[NodeMetric] = (),
        memory_limit: int | None = None,
    ) -> None:
        self.val, self.test = val, test
        self.metrics = metrics
        self.monitor = monitor
        self.memory_limit = memory_limit
        self._scored_nodes: tuple[Tensor, Tensor] | None = None

    @property
    def task(self) -> NodeTask:
        """Loss and metric of rows."""
        return self.val.labels.task

    @property
    def metric(self) -> str:
        """Name of the task's metric."""
        return self.task.metric

    @property
    def scored_nodes(self) -> tuple[Tensor, Tensor]:
        """The own nodes that are ends of edges to score."""
        if self._scored_nodes is None:
            self._scored_nodes = self.val.find_scored_nodes(), self.test.find_scored_nodes()
        return self._scored_nodes

    @property
    def has_validation(self) -> bool:
        """Whether there are edges to validate on."""
        return len(self.val.edges) > 0

    def validation_evaluator(self) -> Evaluator:
        """Return an evaluator of the edges to validate on, with their loss."""
        return self._make_evaluator(self.val, self._collect(self.scored_nodes[0], 1))

    def final_evaluators(self, *, together: bool) -> tuple[Evaluator, Evaluator]:
        """Return evaluators of the edges to validate and to test on, with their losses."""
        val, test = collect_parts(self.scored_nodes, self._collect, together=together)
        return self._make_evaluator(self.val, val), self._make_evaluator(self.test, test)

    def _make_evaluator(self, scorer: EdgeScorer, rows: CollectedRows) -> _EdgeEvaluator:
        metrics = TaskMetrics(scorer.shard.comm, self.task, self.metrics)
        return _EdgeEvaluator(scorer, metrics, self.monitor.name, rows)

    def _collect(self, nodes: Tensor, readers: int) -> CollectedRows:
        return CollectedRows.of_worker(nodes, self.val.shard.comm, self.memory_limit, readers)


class _EdgeEvaluator:
    """Scores edges once the rows of all their ends were added."""

    def __init__(self, scorer: EdgeScorer, metrics: TaskMetrics, monitor: str, collected: CollectedRows) -> None:
        self.scorer = scorer
        self.metrics = metrics
        self.monitor = monitor
        self.collected = collected

    @property
    def reads_output(self) -> bool:
        """Whether there is an edge to score, for which rows are kept."""
        return len(self.scorer.edges) > 0

    def update(self, nodes: Tensor, out: Tensor) -> None:
        if self.reads_output:
            self.collected.add(nodes, out)

    def compute(self) -> Metrics:
        task, comm, total = self.metrics.task, self.scorer.shard.comm, len(self.scorer.edges)
        values = self.scorer.labels.values
        counts, loss = list[Tensor](), torch.zeros((), dtype=torch.float64)
        if total:
            for number, out in self.scorer.iterate_outputs(self.collected.rows):
                logits, labels = out.cpu(), values[number]
                counts.append(task.metric_counts(logits, labels))
                self.metrics.update(number, logits, labels)
                loss += task.loss(logits, labels, total)
        self.collected.release()
        if not total:
            names = [*task.figure_directions, *([LOSS] if self.monitor == LOSS else ())]
            return Metrics(score=math.nan, figures={**dict.fromkeys(names, math.nan), **self.metrics.compute()})
        whole = comm.all_reduce(torch.stack(counts).sum(0))
        loss_of_all = comm.all_reduce(loss).item()
        figures = {**task.figures_from_counts(whole), **self.metrics.compute()}
        if self.monitor == LOSS:
            figures[LOSS] = loss_of_all
        return Metrics(score=figures[self.monitor], loss=loss_of_all, figures=figures, notes=self.metrics.warnings)
