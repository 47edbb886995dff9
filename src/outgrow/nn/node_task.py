"""`NodeTask`: what a task of nodes defines, and how the losses of nodes become the loss of a step.

Letters: ``V`` nodes, ``N`` labelled nodes, ``C`` logits of a node.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.nn.loss_checks import CHECKED_ROWS, check_row_loss, name_loss
from outgrow.nn.losses import RowLoss, call_row_loss, sum_rows

LOSS = "loss"
"""Name of the loss among metrics."""


class NodeTask(ABC):
    """Task of a model of nodes: its loss and its metric.

    A step trains on ``n`` nodes over all workers. With the loss ``l_i`` of a node, the sample weight ``s_i`` (1 if
    there are none) and the weight ``w_i`` that the task gives to a node, the loss of the step is
    ``sum_i s_i l_i / (n m)``, where ``m`` is the mean of ``s_i w_i`` over all nodes to train on. With all of them in
    a step that is ``sum_i s_i l_i / sum_i s_i w_i``; in mini-batches its expectation is.

    Args:
        loss: Loss of the user's, or the name of one; None for that of the task.
        sample_weight: ``[V]`` weights of the nodes; None for equal ones.

    Attributes:
        kind: Name of the task on the command line.
        metric: Name of its metric.
        larger_is_better: Whether a larger metric is a better one.
        target_kind: Which metrics of torchmetrics its names are: those of ``"multiclass"``, ``"multilabel"`` or
            ``"regression"`` targets; empty if metrics have to be given as objects.
        mean_weight: ``m``.
    """

    kind: ClassVar[str]
    metric: str
    larger_is_better: bool = True
    target_kind: ClassVar[str] = ""

    def __init__(self, loss: RowLoss | str | None = None, sample_weight: Any = None) -> None:
        self.loss_function = loss
        self.sample_weight = sample_weight
        self.mean_weight = 1.0

    def loss(
        self,
        logits_VC: Tensor,
        labels_N: Tensor,
        total: float,
        rows_N: Tensor | None = None,
        weights_N: Tensor | None = None,
    ) -> Tensor:
        """Return a scalar: the sum over labelled nodes, over their ``total`` number in the step on all workers.

        Args:
            logits_VC: ``[V, C]``.
            labels_N: ``[N]`` or ``[N, C]``, of the rows ``rows_N`` of the logits.
            total: Number of nodes in the step, over all workers; or, of one of several types, the number to expect.
            rows_N: ``[N]`` int64; None for all rows in order.
            weights_N: ``[N]`` sample weights; None for 1.
        """
        logits_NC = logits_VC if rows_N is None else logits_VC[rows_N]
        # A function of the user's is never called on nothing; the gradient is zero.
        if not len(labels_N):
            return logits_NC.sum()
        return sum_rows(self.row_losses(logits_NC, labels_N), weights_N) / (total * self.mean_weight)

    def row_losses(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return ``[N]``, the loss of each node, times the weight that the task gives it."""
        if callable(self.loss_function):
            return call_row_loss(self.loss_function, logits_NC, self.make_targets(labels_N, logits_NC.dtype))
        return self.own_losses(logits_NC, labels_N)

    @abstractmethod
    def own_losses(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return ``[N]``, the losses of the nodes by the loss of this task."""

    @abstractmethod
    def make_targets(self, labels_N: Tensor, dtype: torch.dtype) -> Tensor:
        """Return labels as a loss of the user's is given them: ``[N, ...]``."""

    @abstractmethod
    def count_outputs(self, labels: Tensor, num_classes: int) -> int:
        """Return the number of logits of a node."""

    @abstractmethod
    def validate_labels(self, labels: Tensor, graph_name: str) -> None:
        """Check the type of the labels ``[V]`` or ``[V, C]`` of a graph.

        Raises:
            InputError: They are labels of another task.
        """

    def row_weights(self, labels_N: Tensor) -> Tensor | None:
        """Return ``[N]`` float64, the weights ``w_i`` of nodes; None for 1."""
        return None

    def select_known(self, labels: Tensor, nodes: Tensor) -> Tensor:
        """Return those of some nodes that have a label; ``labels [V, ...]``, ``nodes [n]`` int64."""
        return nodes

    def fill_weights(self, labels_N: Tensor, num_classes: int) -> Self:
        """Return the task with numbers for its balanced weights, from the labels of all nodes to train on."""
        return self

    def resolve(self, labels: Tensor, train: Tensor, num_classes: int) -> Self:
        """Return the task with its weights as numbers.

        Args:
            labels: ``[V]`` or ``[V, C]``, of all nodes.
            train: ``[n]`` int64, all nodes to train on, over all workers.
            num_classes: Number of logits.

        Raises:
            InputError: The weights of all nodes to train on are zero.
        """
        if not self.is_weighted:
            return self
        labels_N = labels[train]
        made = self.fill_weights(labels_N, num_classes)
        rows = made.row_weights(labels_N)
        weights = self.sample_weights()
        if weights is not None:
            rows = weights[train].double() if rows is None else rows * weights[train].double()
        if rows is None or not len(train):
            return made
        # The same bits on all workers, whatever their numbers of threads.
        mean = float(sum_rows(rows) / len(rows))
        if not mean > 0:
            raise InputError(
                "all nodes to train on have weight 0",
                needed="at least one node to train on whose weight is above 0",
                got=f"{len(train):,} nodes to train on, all of weight 0",
                repair="correct the weights",
            )
        return made.with_fields(mean_weight=mean)

    def with_shares_of(self, labels: Tensor, nodes: Tensor) -> Self:
        """Return the task for the loss of other nodes than those to train on, such as those to validate on."""
        return self

    @property
    def unnamed_options(self) -> list[str]:
        """Names of the options that are objects, so that no record can hold them."""
        given = {"loss": callable(self.loss_function), "sample_weight": self.sample_weight is not None}
        return [name for name, is_object in given.items() if is_object]

    @property
    def loss_copies(self) -> int:
        """How many copies of the logits to train on a loss holds: the rows, what it keeps of them, their gradients."""
        return 3

    @property
    def is_weighted(self) -> bool:
        """Whether nodes may have different weights."""
        return self.sample_weight is not None

    def sample_weights(self) -> Tensor | None:
        """Return ``[V]`` sample weights as a tensor."""
        return None if self.sample_weight is None else torch.as_tensor(self.sample_weight)

    def with_fields(self, **values: object) -> Self:
        """Return a copy with other values."""
        made = copy.copy(self)
        vars(made).update(values)
        return made

    def validate(self, labels: Tensor, train: Tensor, num_classes: int, graph_name: str, dtype: torch.dtype) -> None:
        """Check that the task can be trained on labels, before training.

        Args:
            labels: ``[V]`` or ``[V, C]``, of all nodes.
            train: ``[n]`` int64, all nodes to train on.
            num_classes: Number of logits.
            graph_name: Name of the graph, for errors.
            dtype: Type of the logits.

        Raises:
            InputError: It cannot.
        """
        self.validate_labels(labels, graph_name)
        self._validate_sample_weight(len(labels))
        known = self.select_known(labels, train)
        if not len(known):
            raise InputError(
                f"no node of {graph_name!r} to train on has a known target",
                needed="at least one node to train on whose target is no NaN",
                got=f"{len(train):,} nodes to train on, all of unknown target",
                repair="correct the targets or the split",
            )
        self.resolve(labels, known, num_classes)
        if callable(self.loss_function):
            # Those to train on, so that the loss sees what it will be given.
            rows = known[torch.arange(CHECKED_ROWS) * len(known) // CHECKED_ROWS]
            check_row_loss(self.loss_function, self.make_targets(labels[rows], dtype), num_classes, dtype)

    def _validate_sample_weight(self, num_nodes: int) -> None:
        weights = self.sample_weights()
        if weights is None:
            return
        good = weights.isfinite() & (weights >= 0)
        if weights.shape == (num_nodes,) and good.all():
            return
        got = f"shape {list(weights.shape)}"
        if weights.shape == (num_nodes,):
            got = (
                f"{int((~good).sum()):,} others, the first is {weights[~good][0]:g} at node {int(good.int().argmin())}"
            )
        raise InputError(
            "sample_weight cannot be used",
            needed=f"a finite number of at least 0 for each of {num_nodes:,} nodes",
            got=got,
            repair="give an array [V]; 0 leaves a node out",
        )

    def options(self) -> dict[str, object]:
        """Return what was asked for, as plain values that JSON can hold: fields of `TrainConfig`."""
        given = {"loss": self.loss_function if isinstance(self.loss_function, str) else None}
        return {"task": self.kind, **given}

    def describe(self) -> dict[str, object]:
        """Return `options`, the name of a loss of the user's, and whether nodes have weights."""
        named = name_loss(self.loss_function) if callable(self.loss_function) else self.loss_function
        return {**self.options(), "loss": named, "sample_weight": self.sample_weight is not None}

    @abstractmethod
    def metric_counts(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return ``[T]`` numbers from which the metric is computed; those of several workers add up."""

    @abstractmethod
    def metric_from_counts(self, counts_T: Tensor) -> float:
        """Return the metric from `metric_counts`; NaN if no nodes were counted."""

    def figures_from_counts(self, counts_T: Tensor) -> dict[str, float]:
        """Return all figures of the task by name, from `metric_counts`; the metric first."""
        return {self.metric: self.metric_from_counts(counts_T)}

    @property
    def figure_directions(self) -> dict[str, bool]:
        """Whether larger is better, of each of `figures_from_counts`."""
        return {self.metric: self.larger_is_better}

    def score(self, logits_NC: Tensor, labels_N: Tensor) -> float:
        """Return the metric on some nodes; NaN if there are none."""
        return self.metric_from_counts(self.metric_counts(logits_NC, labels_N))

    def metric_input(self, logits_NC: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return predictions and targets of labelled nodes, as metrics of torchmetrics take them; as they are."""
        return logits_NC, labels_N

    @abstractmethod
    def predict(self, logits_NC: Tensor) -> Tensor:
        """Return the predicted labels."""
