"""Tasks of edges: a column of the features of edges that is predicted, and its loss and metric."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from torch import Tensor

from outgrow.core.arguments import check_arguments
from outgrow.nn.node_task import NodeTask
from outgrow.nn.tasks import NodeClassification, NodeRegression

_OF_LOOP = ("link_steps", "exclude", "val_links", "test_links", "split_seed")


@dataclass(frozen=True, kw_only=True)
class EdgeTask(ABC):
    """Task of a model with a decoder of edges: a target of each edge. Layers and decoder do not see the target.

    Attributes:
        kind: Name of the task.
        target: The column of the features of edges that is predicted: its name, or its number where columns have none.
        link_steps: Optimizer steps of an epoch over the whole graph, each of which asks about a part of the edges.
        exclude: What layers do not see of the edges of a mini-batch: ``target``, all edges between their ends, or
            ``none``; None for ``none``.
        val_links: Share of the linked pairs of nodes whose edges are validated on.
        test_links: Share of the linked pairs whose edges are tested on.
        split_seed: Seed of the split of pairs.
    """

    kind: ClassVar[str]
    target: str | int
    link_steps: int = 1
    exclude: str | None = None
    val_links: float = 0.05
    test_links: float = 0.1
    split_seed: int = 0

    @abstractmethod
    def make_row_task(self) -> NodeTask:
        """Return loss and metric of rows of logits and targets.

        Raises:
            InputError: An option of the loss cannot be used.
        """

    def loop_options(self) -> dict[str, object]:
        """Return the options that are fields of `TrainConfig`."""
        return {name: getattr(self, name) for name in _OF_LOOP}

    @property
    def unnamed_options(self) -> list[str]:
        """Names of the options that no record holds: the task itself, which only Python makes again."""
        return ["task"]

    def describe(self) -> dict[str, object]:
        """Return what was asked for, as plain values."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**given, **self.make_row_task().describe(), "task": self.kind}


@check_arguments(unchecked=("class_weight",))
@dataclass(frozen=True, kw_only=True)
class EdgeClassification(EdgeTask):
    """A class of each edge: softmax cross-entropy; scored by accuracy. The target is a category, or a whole number.

    Edges of code -1, of an empty text or of NaN are of no known class: they carry messages alone.

    Attributes:
        class_weight: ``[C]`` weights, or ``"balanced"`` over the edges to train on: see `NodeClassification`.
        label_smoothing: Share of the target that is spread over all classes, in [0, 1).
        loss: Your function of logits ``[n, C]`` and classes ``[n]`` that returns the loss of each edge, ``[n]``.

    Raises:
        InputError: See `NodeClassification`.
    """

    kind: ClassVar[str] = "edge-classification"
    class_weight: Any = None
    label_smoothing: float = 0.0
    loss: Callable[..., Tensor] | None = None

    def __post_init__(self) -> None:
        self.make_row_task()

    def make_row_task(self) -> NodeTask:
        """Return `NodeClassification`, of edges."""
        return NodeClassification(class_weight=self.class_weight, label_smoothing=self.label_smoothing, loss=self.loss)


@check_arguments()
@dataclass(frozen=True, kw_only=True)
class EdgeRegression(EdgeTask):
    """A number of each edge; scored by the mean absolute error, of which less is better.

    Edges of unknown target are neither trained on nor scored: they carry messages alone.

    Attributes:
        unknown: The number that stands for an unknown target, as NaN does; None for NaN alone, which features of edges
            of tables and arrays cannot have.
        loss: ``"mse"``, ``"mae"``, ``"huber"``, or your function of outputs and targets, both ``[n, 1]``, that returns
            the loss of each edge, ``[n]``: see `NodeRegression`.

    Raises:
        InputError: See `NodeRegression`.
    """

    kind: ClassVar[str] = "edge-regression"
    unknown: float | None = None
    loss: Callable[..., Tensor] | str = "mse"

    def __post_init__(self) -> None:
        self.make_row_task()

    def make_row_task(self) -> NodeTask:
        """Return `NodeRegression`, of edges."""
        return NodeRegression(loss=self.loss)
