"""`TypeTasks`: a task for each of several node types, whose losses add up.

Letters: ``V`` nodes, ``N`` labelled nodes, ``C`` logits of a node, of all types together, ``L`` columns of labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.nn.node_task import LOSS, NodeTask

_METRIC_BETWEEN = "/"


@dataclass(frozen=True, kw_only=True, eq=False)
class TargetType:
    """A node type whose labels are predicted.

    Attributes:
        name: Name of the type.
        task: Its task.
        loss_weight: Weight of the mean loss of its nodes.
        num_outputs: Logits of a node of the type.
        label_shape: Shape of the labels of a node: ``()`` or ``(columns,)``.
        label_dtype: Their type.
        is_given: Whether the task was given as an object.
        share: Share of the nodes of the type among the nodes that the loss is of; 0 before `TypeTasks.resolve`.
    """

    name: str
    task: NodeTask
    loss_weight: float = 1.0
    num_outputs: int
    label_shape: tuple[int, ...] = ()
    label_dtype: torch.dtype = torch.int64
    is_given: bool = False
    share: float = 0.0

    @property
    def metric(self) -> str:
        """Name of the metric of its task, with that of the type: ``paper/accuracy``."""
        return self.qualify(self.task.metric)

    def qualify(self, metric: str) -> str:
        """Return the name of a metric with that of the type."""
        return f"{self.name}{_METRIC_BETWEEN}{metric}"


class TypeTasks(NodeTask):
    """A task for each of several node types, whose labels may differ in classes and in kind.

    A model has ``C`` outputs for every node: those of the first type, then those of the next; a node reads those of its
    own type. With ``n`` nodes in a step over all workers, the share ``p_t`` of type ``t`` among all nodes to train on,
    and its loss weight ``u_t``, the loss of the step is ``sum_t u_t loss_t(n p_t)``, where ``loss_t(k)`` is the sum of
    the losses of the step's nodes of the type over ``k`` (see `NodeTask`). With all nodes in a step that is ``sum_t
    u_t`` times the mean over the nodes of the type; in mini-batches its expectation is, whatever nodes of each type a
    batch has. The divisors are the same on all workers, so the losses of workers, chunks and time steps add up.

    Labels are rows ``[1 + L]``: the number of the type, -1 for none, and its labels, padded.

    Args:
        targets: The types, at least two, in the order of their outputs.
    """

    kind = "types"

    def __init__(self, targets: Sequence[TargetType]) -> None:
        super().__init__()
        self.targets = tuple(targets)
        self.metric, self.larger_is_better = _name_mean(self.targets)

    def split_logits(self, logits_NC: Tensor) -> tuple[Tensor, ...]:
        """Return the logits of each type, ``[N, C_t]``: views of their columns."""
        return torch.split(logits_NC, [each.num_outputs for each in self.targets], 1)

    def labels_of_type(self, number: int, labels_NL: Tensor) -> Tensor:
        """Return the labels of rows of one type in its own form, ``[N]`` or ``[N, columns]``."""
        target = self.targets[number]
        columns_NK = labels_NL[:, 1 : 1 + math.prod(target.label_shape)]
        return columns_NK.to(target.label_dtype).view(len(labels_NL), *target.label_shape)

    def rows_of_type(self, number: int, labels_NL: Tensor) -> Tensor:
        """Return the positions of the rows of one type, ascending int64."""
        return (labels_NL[:, 0] == number).nonzero()[:, 0]

    def loss(
        self,
        logits_VC: Tensor,
        labels_N: Tensor,
        total: float,
        rows_N: Tensor | None = None,
        weights_N: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of the nodes of all types; ``labels_N [N, 1 + L]``."""
        logits_NC = logits_VC if rows_N is None else logits_VC[rows_N]
        losses = []
        # Split, not sliced: the gradients of all types are then joined once.
        for number, logits in enumerate(self.split_logits(logits_NC)):
            target, mine = self.targets[number], self.rows_of_type(number, labels_N)
            if not len(mine):
                # Without nodes there may be no share either.
                losses.append(logits[:0].sum())
                continue
            labels = self.labels_of_type(number, labels_N[mine])
            has_weights = target.task.sample_weight is not None
            weights = weights_N[mine] if has_weights and weights_N is not None else None
            each = target.task.loss(logits, labels, total * target.share, mine, weights)
            losses.append(target.loss_weight * each)
        return torch.stack(losses).sum()

    def own_losses(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return ``[N]``, the loss of each node by the task of its type, times loss weight over share."""
        losses_N = logits_NC.new_zeros(len(logits_NC))
        for number, logits in enumerate(self.split_logits(logits_NC)):
            target, mine = self.targets[number], self.rows_of_type(number, labels_N)
            if len(mine):
                own = target.task.row_losses(logits[mine], self.labels_of_type(number, labels_N[mine]))
                scale = target.loss_weight / (target.share * target.task.mean_weight)
                losses_N = losses_N.index_copy(0, mine, own * scale)
        return losses_N

    def make_targets(self, labels_N: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the labels as they are: what they mean depends on the type of the node."""
        return labels_N

    def count_outputs(self, labels: Tensor, num_classes: int) -> int:
        """Return ``C``, the outputs of all types together."""
        return sum(each.num_outputs for each in self.targets)

    def validate_labels(self, labels: Tensor, graph_name: str) -> None:
        """Check that the labels of each type fit its task.

        Raises:
            InputError: They are labels of another task.
        """
        for number, target in enumerate(self.targets):
            none = self.labels_of_type(number, labels[:0])
            target.task.validate_labels(none, f"{graph_name}, type {target.name}")

    def validate(self, labels: Tensor, train: Tensor, num_classes: int, graph_name: str, dtype: torch.dtype) -> None:
        """Check that each type can be trained.

        Raises:
            InputError: A type has no nodes to train on, or its task cannot be trained on its labels.
        """
        for number, target in enumerate(self.targets):
            nodes = self._nodes_of_type(number, labels, train)
            where = f"{graph_name}, type {target.name}"
            if not len(nodes):
                raise InputError(
                    f"no node of type {target.name!r} of {graph_name!r} is there to train on",
                    needed="nodes to train on of each type that is predicted",
                    got=f"{len(train):,} nodes to train on, of other types",
                    repair=f"leave {target.name} out of --target (targets), or give it nodes to train on",
                )
            target.task.validate(self.labels_of_type(number, labels), nodes, target.num_outputs, where, dtype)

    def select_known(self, labels: Tensor, nodes: Tensor) -> Tensor:
        """Return those of some nodes whose type is predicted and whose label is known, in their order."""
        kept = torch.zeros(len(nodes), dtype=torch.bool)
        for number, target in enumerate(self.targets):
            at = self.rows_of_type(number, labels[nodes])
            known = target.task.select_known(self.labels_of_type(number, labels), nodes[at])
            kept[at] = torch.isin(nodes[at], known)
        return nodes[kept]

    def resolve(self, labels: Tensor, train: Tensor, num_classes: int) -> Self:
        """Return the tasks with their weights as numbers, and with the share of each type among ``train``.

        Raises:
            InputError: The weights of all nodes of a type are zero.
        """
        made = []
        for number, target in enumerate(self.targets):
            nodes = self._nodes_of_type(number, labels, train)
            task = target.task.resolve(self.labels_of_type(number, labels), nodes, target.num_outputs)
            made.append(replace(target, task=task, share=len(nodes) / max(1, len(train))))
        return self.with_fields(targets=tuple(made))

    def with_shares_of(self, labels: Tensor, nodes: Tensor) -> Self:
        """Return the tasks with the share of each type among other nodes, those that are evaluated."""
        counts = [len(self._nodes_of_type(number, labels, nodes)) for number in range(len(self.targets))]
        shares = [count / max(1, len(nodes)) for count in counts]
        return self.with_fields(
            targets=tuple(replace(each, share=share) for each, share in zip(self.targets, shares, strict=True))
        )

    def _nodes_of_type(self, number: int, labels: Tensor, nodes: Tensor) -> Tensor:
        return nodes[self.rows_of_type(number, labels[nodes])]

    def sample_weights(self) -> Tensor | None:
        """Return ``[V]`` sample weights of the nodes of all types; None for equal ones."""
        given = [weights for each in self.targets if (weights := each.task.sample_weights()) is not None]
        # Each has weights of 1 for nodes of other types.
        return torch.stack([each.double() for each in given]).prod(0) if given else None

    @property
    def is_weighted(self) -> bool:
        """Whether nodes may have different weights: those of different types have."""
        return True

    @property
    def loss_copies(self) -> int:
        """How many copies of the logits to train on a loss holds: the rows, those of types, the gradients of both."""
        return 5

    @property
    def unnamed_options(self) -> list[str]:
        """What was given as objects, so that no record can hold it: tasks of types."""
        return [f"task of {each.name}" for each in self.targets if each.is_given]

    def options(self) -> dict[str, object]:
        """Return what was asked for as fields of `TrainConfig`."""
        return {"targets": self.loss_weights}

    @property
    def loss_weights(self) -> Mapping[str, float]:
        """Loss weight of each type."""
        return {each.name: each.loss_weight for each in self.targets}

    def describe(self) -> dict[str, object]:
        """Return the task and the loss weight of each type, as plain values."""
        described = {each.name: {**each.task.describe(), "loss_weight": each.loss_weight} for each in self.targets}
        return {"task": self.kind, "targets": described}

    def metric_counts(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return float64: what each type counts, one after the other."""
        counts = []
        for number, logits in enumerate(self.split_logits(logits_NC)):
            mine = self.rows_of_type(number, labels_N)
            own = self.targets[number].task.metric_counts(logits[mine], self.labels_of_type(number, labels_N[mine]))
            counts.append(own.double())
        return torch.cat(counts)

    def metric_from_counts(self, counts_T: Tensor) -> float:
        """Return the mean of the metrics of the types that were counted; NaN where their directions differ."""
        if self.metric == LOSS:
            return math.nan
        known = [value for value in self._metrics_of_types(counts_T).values() if not math.isnan(value)]
        return sum(known) / len(known) if known else math.nan

    def figures_from_counts(self, counts_T: Tensor) -> dict[str, float]:
        """Return the metric of each type by its name, and their mean where they have one direction."""
        mean = {} if self.metric == LOSS else {self.metric: self.metric_from_counts(counts_T)}
        return {**mean, **self._metrics_of_types(counts_T)}

    @property
    def figure_directions(self) -> dict[str, bool]:
        """Whether larger is better, of each of `figures_from_counts`."""
        return {self.metric: self.larger_is_better} | {each.metric: each.task.larger_is_better for each in self.targets}

    def _metrics_of_types(self, counts_T: Tensor) -> dict[str, float]:
        # What a type counts of nothing tells how many numbers it counts.
        no_rows = torch.zeros(0, 1 + max(math.prod(each.label_shape) for each in self.targets))
        nothing = [
            each.task.metric_counts(counts_T.new_zeros(0, each.num_outputs), self.labels_of_type(number, no_rows))
            for number, each in enumerate(self.targets)
        ]
        parts = torch.split(counts_T, [len(each) for each in nothing])
        return {each.metric: each.task.metric_from_counts(part) for each, part in zip(self.targets, parts, strict=True)}

    def predict(self, logits_NC: Tensor) -> Tensor:
        """Return the logits: what they mean depends on the type of the node."""
        return logits_NC


def _name_mean(targets: Sequence[TargetType]) -> tuple[str, bool]:
    """Return the name of what is monitored by default, and whether larger is better."""
    directions = {each.task.larger_is_better for each in targets}
    if len(directions) > 1:
        # A mean of an accuracy and an error says nothing; the losses are meant to be added.
        return LOSS, False
    names = {each.task.metric for each in targets}
    return f"mean_{names.pop() if len(names) == 1 else 'metric'}", directions.pop()
