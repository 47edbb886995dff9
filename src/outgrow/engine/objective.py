"""Training objectives for nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from outgrow.engine.link_objective import LinkGoal
from outgrow.engine.shard import Share
from outgrow.nn.model import Model
from outgrow.nn.tasks import Task


class RowGoal(Protocol):
    """A loss that is a sum over rows, so that it may be computed piece by piece."""

    @property
    def empty(self) -> bool:
        """Whether no row is in it."""

    def to(self, device: torch.device) -> RowGoal:
        """The same for output on a device."""

    def between(self, first: int, last: int) -> RowGoal:
        """The same of own rows ``first`` to ``last - 1`` alone, counted from ``first``."""

    def loss(self, out: Tensor) -> Tensor:
        """The worker's share of the loss, differentiable; ``out [n, C]``."""


class Goal(Protocol):
    """A loss of the output of the last layer."""

    @property
    def by_rows(self) -> RowGoal | None:
        """The same as a sum over rows; None if it is none."""

    def bytes_beside(self, columns: int, number_bytes: int) -> int:
        """Memory that it needs beside the layers, for output of so many columns and numbers of so many bytes."""

    def to(self, device: torch.device) -> Goal:
        """The same for output on a device."""

    def loss(self, out: Tensor, key: int) -> Tensor:
        """The worker's share of the loss, differentiable. All workers together, unless it is `by_rows`.

        Args:
            out: ``[n, C]`` of the own nodes.
            key: Key of (seed, epoch, step).
        """


def between(rows_N: Tensor, first: int, last: int) -> slice:
    """Where, in ascending rows, those from ``first`` to ``last - 1`` are."""
    return slice(*torch.searchsorted(rows_N, torch.tensor([first, last])).tolist())


class NodeGoal(NamedTuple):
    """What logits of nodes shall come to say.

    Attributes:
        task: What they mean.
        labels: ``[m]`` integer, or ``[m, C]`` zeros and ones, of the worker's nodes to train on.
        rows: ``[m]`` int64, ascending, rows of these among the own nodes.
        total: Number of nodes to train on, over all workers.
    """

    task: Task
    labels: Tensor
    rows: Tensor
    total: int

    @property
    def by_rows(self) -> NodeGoal:
        """See `Goal.by_rows`: itself."""
        return self

    @property
    def empty(self) -> bool:
        """See `RowGoal.empty`."""
        return not len(self.rows)

    def bytes_beside(self, columns: int, number_bytes: int) -> int:
        """See `Goal.bytes_beside`: the estimates of layers have room for labels."""
        return 0

    def to(self, device: torch.device) -> NodeGoal:
        """See `Goal.to`."""
        return self._replace(labels=self.labels.to(device), rows=self.rows.to(device))

    def between(self, first: int, last: int) -> NodeGoal:
        """See `RowGoal.between`."""
        here = between(self.rows, first, last)
        return self._replace(labels=self.labels[here], rows=self.rows[here] - first)

    def loss(self, out: Tensor, key: int = 0) -> Tensor:
        """See `Goal.loss`: a sum over the nodes to train on, divided by ``total``."""
        return self.task.loss(out, self.labels, self.total, self.rows)


class Pull(NamedTuple):
    """A loss whose gradient is known: what is left of a goal that is no sum over rows, once it was computed.

    Attributes:
        grad: ``[n, C]`` gradient of the output of the own nodes.
    """

    grad: Tensor

    @property
    def empty(self) -> bool:
        """See `RowGoal.empty`."""
        return not len(self.grad)

    def to(self, device: torch.device) -> Pull:
        """See `RowGoal.to`."""
        return Pull(self.grad.to(device))

    def between(self, first: int, last: int) -> Pull:
        """See `RowGoal.between`."""
        return Pull(self.grad[first:last])

    def loss(self, out: Tensor) -> Tensor:
        """See `RowGoal.loss`; its value says nothing."""
        return (out * self.grad).sum()


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeTargets:
    """Labelled nodes to train on.

    Attributes:
        labels: ``[n]`` integer, or ``[n, C]`` zeros and ones, of the own nodes.
        train: ``[m]`` int64, rows of the own nodes to train on.
        nodes: ``[num_train]`` int64, ids of the nodes to train on, over all workers.
        task: What the logits mean.
    """

    labels: Tensor
    train: Tensor
    nodes: Tensor
    task: Task

    @property
    def number(self) -> int:
        """Number of nodes to train on, over all workers."""
        return len(self.nodes)

    def goal(self, share: Share, model: Model) -> Goal:
        """What logits of all own nodes are trained for."""
        return NodeGoal(task=self.task, labels=self.labels[self.train], rows=self.train, total=self.number)


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkTargets:
    """Links to train on: the edges of the graph.

    Attributes:
        ends: ``[T + 1]`` int64: nodes ``ends[t]`` to ``ends[t + 1] - 1`` are of type ``t``.
        negatives: Links drawn for each of the graph.
        number: Number of edges, over all workers.
    """

    ends: Tensor
    negatives: int
    number: int

    def goal(self, share: Share, model: Model) -> Goal:
        """What the output of all own nodes is trained for. All workers together."""
        assert model.decoder is not None
        return LinkGoal(share, model.decoder, self.ends, negatives=self.negatives)
