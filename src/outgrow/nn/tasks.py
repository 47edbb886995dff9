"""Tasks: meaning, loss and quality of the logits of nodes.

Letters: ``V`` nodes, ``N`` labelled nodes, ``C`` classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional

from outgrow.ops.cross_entropy import cross_entropy


class NodeTask(ABC):
    """Task of a model of nodes: its loss and its metric.

    Attributes:
        metric: Name of its metric, by which models are compared unless another one is monitored.
        larger_is_better: Whether a larger metric is a better one.
        target_kind: Which metrics of torchmetrics its names are: those of ``"multiclass"``, ``"multilabel"`` or
            ``"regression"`` targets; empty if metrics have to be given as objects.
    """

    metric: str
    larger_is_better: bool = True
    target_kind: str = ""

    @abstractmethod
    def loss(self, logits_VC: Tensor, labels_N: Tensor, total: int, rows_N: Tensor | None = None) -> Tensor:
        """Return a scalar: the sum over labelled nodes, over their ``total`` number in the step on all workers.

        ``labels`` belong to the rows ``rows [N]`` int64 of ``logits``; without ``rows``, to all rows in
        order.
        """

    @abstractmethod
    def metric_counts(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return ``[T]`` int64 counts from which the metric is computed; counts of several workers add up."""

    @abstractmethod
    def metric_from_counts(self, counts_T: Tensor) -> float:
        """Return the metric in [0, 1] from `metric_counts`; NaN if no nodes were counted."""

    def score(self, logits_NC: Tensor, labels_N: Tensor) -> float:
        """Return the metric in [0, 1] on some nodes; NaN if there are none."""
        return self.metric_from_counts(self.metric_counts(logits_NC, labels_N))

    def metric_input(self, logits_NC: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return predictions and targets of labelled nodes, as metrics of torchmetrics take them; as they are."""
        return logits_NC, labels_N

    @abstractmethod
    def predict(self, logits_NC: Tensor) -> Tensor:
        """Return the predicted labels."""


class SingleLabel(NodeTask):
    """One class per node: softmax cross-entropy; scored by accuracy."""

    metric = "accuracy"
    target_kind = "multiclass"

    def loss(self, logits_VC: Tensor, labels_N: Tensor, total: int, rows_N: Tensor | None = None) -> Tensor:
        """Return the sum of the cross-entropies over ``total``; labels ``[N]`` integer."""
        return cross_entropy(logits_VC, labels_N.long(), rows_N) / total

    def metric_counts(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return the number of correctly predicted nodes, and of all nodes."""
        # Counts, not ratios: only counts of workers with different numbers of nodes can be summed.
        return torch.stack([(self.predict(logits_NC) == labels_N).sum(), torch.tensor(len(labels_N))])

    def metric_from_counts(self, counts_T: Tensor) -> float:
        """Return the share of correctly predicted nodes."""
        right, total = counts_T.tolist()
        return right / total if total else float("nan")

    def metric_input(self, logits_NC: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probabilities ``[N, C]`` float64 of the classes, and the labels ``[N]`` int64."""
        # In float64, so that confident predictions of float32 logits do not become equal ones.
        return logits_NC.double().softmax(1), labels_N.long()

    def predict(self, logits_NC: Tensor) -> Tensor:
        """Return ``[N]`` int64: the class of the largest logit."""
        return logits_NC.argmax(1)


class MultiLabel(NodeTask):
    """Any number of classes per node: mean binary cross-entropy over classes; scored by micro-averaged F1."""

    metric = "micro_f1"
    target_kind = "multilabel"

    def loss(self, logits_VC: Tensor, labels_N: Tensor, total: int, rows_N: Tensor | None = None) -> Tensor:
        """Return the sum of the nodes' mean cross-entropies over ``total``; labels ``[N, C]``, 0 or 1."""
        logits_NC = logits_VC if rows_N is None else logits_VC[rows_N]
        target = labels_N.to(logits_NC.dtype)
        each = functional.binary_cross_entropy_with_logits(logits_NC, target, reduction="none")
        # Column by column: a sum of all at once depends on the number of threads.
        return each.sum(0).mean() / total

    def metric_counts(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return the numbers of true positives, of wrong predictions, and of nodes."""
        guess = self.predict(logits_NC).bool()
        truth = labels_N.bool()
        return torch.stack([(guess & truth).sum(), (guess ^ truth).sum(), torch.tensor(len(labels_N))])

    def metric_from_counts(self, counts_T: Tensor) -> float:
        """Return the micro-averaged F1 at probability 0.5; 1 if nothing is true and nothing predicted."""
        hit, wrong, total = counts_T.tolist()
        if total == 0:
            return float("nan")
        return 2 * hit / (2 * hit + wrong) if hit + wrong else 1.0

    def metric_input(self, logits_NC: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probabilities ``[N, C]`` float64 of the labels, and the labels ``[N, C]`` int64."""
        return logits_NC.double().sigmoid(), labels_N.long()

    def predict(self, logits_NC: Tensor) -> Tensor:
        """Return ``[N, C]`` uint8: 1 if the probability is above 0.5."""
        # A sigmoid is above one half exactly if its argument is positive.
        return (logits_NC > 0).to(torch.uint8)
