"""What a model's output is trained for, as one worker sees it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from outgrow.engine.goal import Goal, NodeGoal
from outgrow.engine.link_goal import LinkGoal
from outgrow.engine.share import Share
from outgrow.nn.heads import Task
from outgrow.nn.model import Model


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
