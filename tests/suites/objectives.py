"""Tasks and losses that the exactness suite trains with, and the labels that they take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from layer_table import OUT
from torch import Tensor
from torch.nn import functional

from outgrow.engine.problem import Problem
from outgrow.engine.shard import GraphShard
from outgrow.nn.tasks import MultiLabel, NodeClassification, NodeRegression, NodeTask
from suites.hits import Hits
from support import normal

CLASS_WEIGHT = [0.5 + 0.7 * number for number in range(OUT)]


def focal_loss(logits: Tensor, classes: Tensor) -> Tensor:
    """The loss of Lin et al. (ICCV 2017), with gamma 2."""
    loss = functional.cross_entropy(logits, classes, reduction="none")
    return (1 - (-loss).exp()) ** 2 * loss


TASKS: dict[str, Callable[[int], NodeTask]] = {
    "single": lambda num_nodes: NodeClassification(),
    "multi": lambda num_nodes: MultiLabel(),
    "class-weights": lambda num_nodes: NodeClassification(class_weight=CLASS_WEIGHT, label_smoothing=0.1),
    "balanced": lambda num_nodes: NodeClassification(class_weight="balanced"),
    "focal": lambda num_nodes: NodeClassification(loss=focal_loss),
    "sample-weights": lambda num_nodes: NodeClassification(sample_weight=sample_weight(num_nodes)),
    "multi-weights": lambda num_nodes: MultiLabel(pos_weight="balanced", sample_weight=sample_weight(num_nodes)),
    "regression": lambda num_nodes: NodeRegression(),
    "huber-weights": lambda num_nodes: NodeRegression(loss="huber", sample_weight=sample_weight(num_nodes)),
}
"""By name, for a graph of some nodes."""
WEIGHTED = tuple(name for name in TASKS if name not in ("single", "multi", "focal"))
"""Those whose mean weight is not 1 on all workers."""


def sample_weight(num_nodes: int) -> Tensor:
    """``[V]`` float64 from 0 on."""
    return normal(num_nodes, seed=5).abs()


def make_task(name: str, num_nodes: int) -> tuple[NodeTask, Tensor]:
    """A task, and labels of the nodes."""
    task = TASKS[name](num_nodes)
    classes = torch.arange(num_nodes) * 7 % OUT
    if isinstance(task, NodeClassification):
        return task, classes
    if isinstance(task, MultiLabel):
        return task, (classes[:, None] >= torch.arange(OUT)).to(torch.uint8)
    targets = normal(num_nodes, OUT, seed=6)
    # Some targets are unknown, and all of some nodes.
    targets[normal(num_nodes, OUT, seed=8) > 1] = torch.nan
    targets[::6] = torch.nan
    return task, targets


@contextmanager
def weights_from_own_nodes() -> Iterator[Hits]:
    """A worker takes balanced weights and the mean weight from its own nodes to train on."""
    hits, right = Hits(), Problem.from_node_labels

    def make(shard: GraphShard, *, labels: Tensor, train: Tensor, task: NodeTask, **rest: Any) -> Problem:
        problem = right(shard, labels=labels, train=train, task=task, **rest)
        targets = problem.node_targets
        own = task.resolve(labels, shard.filter_owned(targets.nodes), OUT)
        hits.note(own.describe() != targets.task.describe() or own.mean_weight != targets.task.mean_weight)
        return replace(problem, targets=replace(targets, task=own))

    with patch.object(Problem, "from_node_labels", staticmethod(make)):
        yield hits


@contextmanager
def weights_of_nodes_ignored() -> Iterator[Hits]:
    """The mean weight is left out: the loss of a step is divided by the number of its nodes."""
    hits, right = Hits(), NodeTask.resolve

    def resolve(self: NodeTask, labels: Tensor, train: Tensor, num_classes: int) -> NodeTask:
        made = right(self, labels, train, num_classes)
        hits.note(made.mean_weight != 1)
        return made.with_fields(mean_weight=1.0)

    with patch.object(NodeTask, "resolve", resolve):
        yield hits


MUTANTS: dict[str, Callable[[], AbstractContextManager[Hits]]] = {
    each.__name__: each for each in (weights_from_own_nodes, weights_of_nodes_ignored)
}
"""Ways to get the mean weight wrong."""
