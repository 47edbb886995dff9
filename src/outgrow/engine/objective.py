"""Training objectives: a loss of nodes, or of links, for each step of an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from outgrow.engine.hidden_edges import HiddenEdges
from outgrow.engine.link_objective import LinkObjective
from outgrow.engine.link_options import LinkOptions
from outgrow.engine.shard import GraphShard
from outgrow.nn.model import Model
from outgrow.nn.tasks import NodeTask


class RowwiseObjective(Protocol):
    """A loss that is a sum over rows, so that it may be computed piece by piece."""

    @property
    def is_empty(self) -> bool:
        """Whether the objective has no rows."""

    def to(self, device: torch.device) -> RowwiseObjective:
        """Return the objective for output on a device."""

    def for_row_range(self, first: int, last: int) -> RowwiseObjective:
        """Return the objective of own rows ``first`` to ``last - 1`` alone, counted from ``first``."""

    def loss(self, out: Tensor) -> Tensor:
        """Return the worker's share of the loss, differentiable; ``out [n, C]``."""


class StepObjective(Protocol):
    """A loss of the output of the last layer in one step."""

    @property
    def as_rowwise(self) -> RowwiseObjective | None:
        """The objective as a sum over rows; None if it is not such a sum."""

    @property
    def num_targets(self) -> int:
        """Number of nodes or links that the loss is the mean of, over all workers; 0 if there is nothing to train."""

    @property
    def hidden(self) -> HiddenEdges | None:
        """The edges that layers do not see in this step; None for none."""

    def loss(self, out: Tensor, key: int) -> Tensor:
        """Return the worker's share of the loss, differentiable. All workers together, unless `as_rowwise`.

        Args:
            out: ``[n, C]`` of the own nodes.
            key: Random key of (seed, epoch, step).
        """


class Objective(Protocol):
    """A loss of the output of the last layer."""

    @property
    def as_rowwise(self) -> RowwiseObjective | None:
        """The objective as a sum over rows; None if it is not such a sum."""

    def extra_bytes(self, columns: int, number_bytes: int) -> int:
        """Return the bytes needed in addition to the layers, for output of these columns and numbers."""

    def bytes_of_read_rows(self, columns: int, number_bytes: int) -> int:
        """Return `extra_bytes` where only output that a step reads is kept."""

    def to(self, device: torch.device) -> Objective:
        """Return the objective for output on a device."""

    def for_step(self, seed: int, epoch: int, number: int) -> StepObjective:
        """Return the objective of step ``number`` of an epoch. All workers together.

        Args:
            seed: Seed of every random draw.
            epoch: Number of the epoch.
            number: Number of the step, from 0.
        """


def row_range(rows_N: Tensor, first: int, last: int) -> slice:
    """Return the slice of ascending rows that are from ``first`` to ``last - 1``."""
    return slice(*torch.searchsorted(rows_N, rows_N.new_tensor([first, last])).tolist())


def index_output_rows(values_NF: Tensor, rows_n: Tensor) -> Tensor:
    """Return ``[n, F]``: some rows, ascending and distinct; all of them without a copy."""
    return values_NF if len(rows_n) == len(values_NF) else values_NF.index_select(0, rows_n.to(values_NF.device))


class NodeObjective(NamedTuple):
    """The objective for labelled nodes.

    Attributes:
        task: The task, which defines the loss.
        labels: ``[m]`` or ``[m, C]``, of the worker's nodes to train on.
        rows: ``[m]`` int64, ascending, rows of these nodes among the own ones.
        total: Number of nodes to train on, over all workers.
        weights: ``[m]`` sample weights of these nodes; None for equal ones.
    """

    task: NodeTask
    labels: Tensor
    rows: Tensor
    total: int
    weights: Tensor | None = None

    @property
    def as_rowwise(self) -> NodeObjective:
        """The objective itself, which is a sum over rows."""
        return self

    @property
    def num_targets(self) -> int:
        """Number of nodes to train on, over all workers."""
        return self.total

    @property
    def hidden(self) -> None:
        """No edges are hidden."""
        return None

    def for_step(self, seed: int, epoch: int, number: int) -> NodeObjective:
        """Return the objective itself: an epoch has one step."""
        return self

    @property
    def is_empty(self) -> bool:
        """Whether the objective has no rows."""
        return not len(self.rows)

    def extra_bytes(self, columns: int, number_bytes: int) -> int:
        """Return the bytes of the copies that the loss makes; the estimates of layers include labels."""
        return self.task.loss_copies * len(self.rows) * columns * number_bytes

    def bytes_of_read_rows(self, columns: int, number_bytes: int) -> int:
        """Return `extra_bytes`: the loss reads the output of a chunk as it is computed."""
        return self.extra_bytes(columns, number_bytes)

    def to(self, device: torch.device) -> NodeObjective:
        """Return the objective for output on a device."""
        weights = None if self.weights is None else self.weights.to(device)
        return self._replace(labels=self.labels.to(device), rows=self.rows.to(device), weights=weights)

    def for_row_range(self, first: int, last: int) -> NodeObjective:
        """Return the objective of a range of own rows alone."""
        # Rows ascend, so those of a chunk are a slice and labels need no copy.
        here = row_range(self.rows, first, last)
        weights = None if self.weights is None else self.weights[here]
        return self._replace(labels=self.labels[here], rows=self.rows[here] - first, weights=weights)

    def loss(self, out: Tensor, key: int = 0) -> Tensor:
        """Return the sum over the worker's nodes to train on, divided by ``total``: see `NodeTask`."""
        # Divided by the total over all workers, so that shares of the loss add up.
        return self.task.loss(out, self.labels, self.total, self.rows, self.weights)


class GradientObjective(NamedTuple):
    """A rowwise objective with a known gradient, which replaces an objective that is no sum over rows.

    Attributes:
        grad: ``[m, C]``, gradient of the output of some own nodes; that of the others is zero.
        rows: ``[m]`` int64, ascending, rows of these nodes among the own ones.
    """

    grad: Tensor
    rows: Tensor

    @property
    def is_empty(self) -> bool:
        """Whether the objective has no rows."""
        return not len(self.grad)

    def to(self, device: torch.device) -> GradientObjective:
        """Return the objective for output on a device."""
        return GradientObjective(self.grad.to(device), self.rows)

    def for_row_range(self, first: int, last: int) -> GradientObjective:
        """Return the objective of a range of own rows alone."""
        here = row_range(self.rows, first, last)
        return GradientObjective(self.grad[here], self.rows[here] - first)

    def loss(self, out: Tensor) -> Tensor:
        """Return a value without meaning, whose gradient is ``grad``."""
        # Linear in the output, so that autograd returns the stored gradient.
        return (index_output_rows(out, self.rows) * self.grad).sum()


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeTargets:
    """Labelled nodes to train on.

    Attributes:
        labels: ``[n]`` or ``[n, C]``, of the own nodes, as the task reads them.
        train_rows: ``[m]`` int64, rows of the own nodes to train on.
        nodes: ``[num_train]`` int64, ids of the nodes to train on, over all workers.
        task: The task, which defines the loss.
        weights: ``[n]`` sample weights of the own nodes; None for equal ones.
    """

    labels: Tensor
    train_rows: Tensor
    nodes: Tensor
    task: NodeTask
    weights: Tensor | None = None

    @property
    def num_targets(self) -> int:
        """Number of nodes to train on, over all workers."""
        return len(self.nodes)

    def make_objective(self, shard: GraphShard, model: Model) -> Objective:
        """Return the objective for logits of all own nodes."""
        return NodeObjective(
            task=self.task,
            labels=self.labels[self.train_rows],
            rows=self.train_rows,
            total=self.num_targets,
            weights=None if self.weights is None else self.weights[self.train_rows],
        )

    def join_weights(self) -> Tensor:
        """Return the labels or, if nodes have weights, ``[n, C + 1]`` float64: the weights after the labels."""
        if self.weights is None:
            return self.labels
        # One tensor, so that both cross between workers at once; float64 holds every class.
        columns = self.labels[:, None] if self.labels.dim() == 1 else self.labels
        return torch.cat([columns.double(), self.weights.double()[:, None]], 1)

    def split_weights(self, joined: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the labels and the sample weights of rows of `join_weights`."""
        if self.weights is None:
            return joined, None
        labels = joined[:, 0] if self.labels.dim() == 1 else joined[:, :-1]
        return labels.to(self.labels.dtype), joined[:, -1]


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkTargets:
    """Links to train on: the edges of the graph, those of some relations, or those with a target.

    Attributes:
        options: How they are trained on.
        num_targets: Number of these edges, over all workers.
    """

    options: LinkOptions
    num_targets: int

    def make_objective(self, shard: GraphShard, model: Model) -> Objective:
        """Return the objective for the output of all own nodes. All workers together."""
        assert model.decoder is not None
        return LinkObjective(shard, model.decoder, self.options)
