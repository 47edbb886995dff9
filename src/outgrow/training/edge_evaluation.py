"""Evaluation of targets of edges: rows of their ends are collected, in a file if they are many; edges in chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from outgrow.nn.node_task import NodeTask
from outgrow.training.collected_rows import CollectedRows
from outgrow.training.collecting_evaluation import CollectingEvaluation, CollectingEvaluator
from outgrow.training.edge_scores import EdgeScorer
from outgrow.training.evaluation import Evaluator, Metrics
from outgrow.training.metric_request import LOSS
from outgrow.training.metrics import NodeMetric, TaskMetrics
from outgrow.training.monitor import Monitor


class EdgeEvaluation(CollectingEvaluation[EdgeScorer]):
    """Evaluation of edges with targets that are held out. Final.

    Args:
        val: Scores the edges to validate on.
        test: Scores those to test on.
        monitor: The metric that is monitored.
        metrics: Metrics beside the task's own.
        memory_limit: See `CollectingEvaluation`.
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
        super().__init__(val, test, monitor, memory_limit)
        self.metrics = metrics

    @property
    def task(self) -> NodeTask:
        """Loss and metric of rows."""
        return self.val.labels.task

    @property
    def metric(self) -> str:
        """Name of the task's metric."""
        return self.task.metric

    def _make_evaluator(self, scorer: EdgeScorer, rows: CollectedRows) -> Evaluator:
        metrics = TaskMetrics(scorer.shard.comm, self.task, self.metrics)
        return _EdgeEvaluator(scorer, metrics, self.monitor.name, rows)


class _EdgeEvaluator(CollectingEvaluator[EdgeScorer]):
    def __init__(self, scorer: EdgeScorer, metrics: TaskMetrics, monitor: str, collected: CollectedRows) -> None:
        super().__init__(scorer, collected)
        self.metrics = metrics
        self.monitor = monitor

    def compute(self) -> Metrics:
        task, comm, total = self.metrics.task, self.scorer.shard.comm, len(self.scorer)
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
