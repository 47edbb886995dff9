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
from outgrow.nn.type_tasks import TargetType, TypeTasks
from suites.hits import Hits
from support import normal

U8 = torch.uint8
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
    "types": lambda num_nodes: TypeTasks(
        [
            TargetType(name="classes", task=NodeClassification(class_weight=[0.5, 2, 1]), num_outputs=3),
            TargetType(
                name="several", task=MultiLabel(), loss_weight=0.5, num_outputs=1, label_shape=(1,), label_dtype=U8
            ),
            TargetType(
                name="numbers",
                task=NodeRegression(sample_weight=sample_weight(num_nodes)),
                loss_weight=3.0,
                num_outputs=2,
                label_shape=(2,),
                label_dtype=torch.float64,
            ),
        ]
    ),
}
"""By name, for a graph of some nodes."""
WEIGHTED = tuple(name for name in TASKS if name not in ("single", "multi", "focal"))
"""Those whose mean weight is not 1 on all workers."""


def sample_weight(num_nodes: int) -> Tensor:
    """``[V]`` float64 from 0 on."""
    return normal(num_nodes, seed=5).abs()


def joined_labels(num_nodes: int) -> Tensor:
    """Labels of three types, which are ranges of nodes, and of some nodes of none."""
    number = (torch.arange(num_nodes) * 3 // num_nodes).double()
    number[::10] = -1
    labels = torch.stack([number, torch.arange(num_nodes) * 7 % 3, normal(num_nodes, seed=6)], 1)
    labels[number == 1, 1] %= 2
    labels[(number == 2) & (normal(num_nodes, seed=8) > 0.5), 2] = torch.nan
    return labels


def make_task(name: str, num_nodes: int) -> tuple[NodeTask, Tensor]:
    """A task, and labels of the nodes."""
    task = TASKS[name](num_nodes)
    classes = torch.arange(num_nodes) * 7 % OUT
    if isinstance(task, NodeClassification):
        return task, classes
    if isinstance(task, MultiLabel):
        return task, (classes[:, None] >= torch.arange(OUT)).to(torch.uint8)
    if isinstance(task, TypeTasks):
        return task, joined_labels(num_nodes)
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


@contextmanager
def shares_of_each_batch() -> Iterator[Hits]:
    """The loss of a type is divided by the number of its nodes that a worker has in a step."""
    hits, right = Hits(), TypeTasks.loss

    def loss(self: TypeTasks, logits_VC: Tensor, labels_N: Tensor, total: float, *rest: Any, **options: Any) -> Tensor:
        counts = [len(self.rows_of_type(number, labels_N)) for number in range(len(self.targets))]
        targets = [replace(each, share=count / total) for each, count in zip(self.targets, counts, strict=True)]
        hits.note(any(mine.share != each.share for mine, each in zip(targets, self.targets, strict=True)))
        own = self.with_fields(targets=tuple(targets))
        return right(own, logits_VC, labels_N, total, *rest, **options)

    with patch.object(TypeTasks, "loss", loss):
        yield hits


@contextmanager
def logits_of_the_columns_before() -> Iterator[Hits]:
    """A type reads outputs that belong in part to the type before it."""
    hits, right = Hits(), TypeTasks.split_logits

    def split(self: TypeTasks, logits_NC: Tensor) -> tuple[Tensor, ...]:
        hits.note(True)
        return right(self, logits_NC.roll(1, 1))

    with patch.object(TypeTasks, "split_logits", split):
        yield hits


@contextmanager
def equal_loss_weights() -> Iterator[Hits]:
    """The loss weights of types are left out."""
    hits, right = Hits(), TypeTasks.resolve

    def resolve(self: TypeTasks, *given: Any) -> TypeTasks:
        made = right(self, *given)
        hits.note(any(each.loss_weight != 1 for each in made.targets))
        return made.with_fields(targets=tuple(replace(each, loss_weight=1.0) for each in made.targets))

    with patch.object(TypeTasks, "resolve", resolve):
        yield hits


OF_WEIGHTS = (weights_from_own_nodes, weights_of_nodes_ignored)
"""Ways to get the mean weight wrong."""
OF_TYPES = (shares_of_each_batch, logits_of_the_columns_before, equal_loss_weights)
"""Ways to get the losses of types wrong."""
MUTANTS: dict[str, Callable[[], AbstractContextManager[Hits]]] = {
    each.__name__: each for each in (*OF_WEIGHTS, *OF_TYPES)
}
