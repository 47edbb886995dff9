"""Tasks and losses that the exactness suite trains with, and the labels that they take."""

from __future__ import annotations

from collections.abc import Callable

import torch
from layer_table import OUT
from torch import Tensor
from torch.nn import functional

from outgrow.nn.tasks import MultiLabel, NodeClassification, NodeRegression, NodeTask
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
