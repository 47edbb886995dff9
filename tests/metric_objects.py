"""Rows and tasks that metrics are tested on; and metrics of users, which cannot be combined, or are broken."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from outgrow.nn.tasks import MultiLabel, NodeClassification, NodeTask
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.training.metric_fit import make_node_metrics
from outgrow.training.metric_request import parse_metrics
from outgrow.training.metrics import MetricAccumulator, NodeMetric


class MeanOfMeans(Metric):
    """Mean probability of the most likely class; what it holds is a mean, of rows and over workers."""

    full_state_update = False
    higher_is_better = True
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("mean", torch.zeros(()), dist_reduce_fx="mean")

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.mean = preds.max(1).values.mean()

    def compute(self) -> Tensor:
        return self.mean


class Overwritten(Metric):
    """The same, but it says that what it holds may be summed."""

    full_state_update = False
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("mean", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.mean = preds.max(1).values.mean()

    def compute(self) -> Tensor:
        return self.mean


class ByPosition(Metric):
    """Depends on the order of rows, and has no state that torchmetrics knows."""

    full_state_update = False
    mean = 0.0

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.mean = float((preds[:, 0] * torch.arange(len(preds))).mean())

    def compute(self) -> Tensor:
        return torch.tensor(self.mean)


class Raising(MeanOfMeans):
    """Cannot be updated."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        raise ZeroDivisionError("not today")


class Bootstrapped(MeanOfMeans):
    """Draws from the generator of the process."""

    def compute(self) -> Tensor:
        return self.mean + torch.rand(())


class WithoutDirection(MeanOfMeans):
    """Does not say whether more is better."""

    higher_is_better = None


ROWS, CLASSES = 60, 4
SINGLE, MULTI = NodeClassification(), MultiLabel()


def rows_of(task: NodeTask, classes: int = CLASSES, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Logits that know something of the labels, some of them with ties."""
    random = np.random.default_rng(3)
    labels = torch.from_numpy(random.integers(0, classes, rows))
    logits = torch.from_numpy(random.normal(0, 1, (rows, classes)).round(1))
    if task is MULTI:
        labels = torch.from_numpy(random.integers(0, 2, (rows, classes)).astype(np.uint8))
        return logits + labels, labels
    logits[torch.arange(rows), labels] += 0.7
    return logits, labels


def made(names: object, task: NodeTask = SINGLE, classes: int = CLASSES) -> list[NodeMetric]:
    return make_node_metrics(parse_metrics(names), task, rows_of(task, classes)[1][:0], classes)


def value_of(names: object, task: NodeTask = SINGLE, classes: int = CLASSES) -> float:
    accumulator = MetricAccumulator(comm=SingleProcessComm(), task=task, metrics=made(names, task, classes))
    accumulator.update(torch.arange(ROWS), *rows_of(task, classes))
    [value] = accumulator.compute().values()
    return value


def probabilities(task: NodeTask, classes: int = CLASSES) -> tuple[np.ndarray, np.ndarray]:
    """Labels and probabilities."""
    logits, labels = rows_of(task, classes)
    chances = torch.sigmoid(logits) if task is MULTI else torch.softmax(logits, 1)
    return labels.numpy(), chances.numpy()
