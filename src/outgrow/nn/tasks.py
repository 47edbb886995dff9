"""Tasks: what the logits of a node mean, how far off they are, how good they are.

Letters: ``V`` nodes, ``N`` those of them with labels, ``C`` classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional

from outgrow.ops.cross_entropy import cross_entropy


class NodeTask(ABC):
    """What a model is trained for."""

    metric: str

    @abstractmethod
    def loss(self, logits_VC: Tensor, labels_N: Tensor, total: int, rows_N: Tensor | None = None) -> Tensor:
        """Scalar: the sum over labelled nodes divided by ``total``, their number in the step on all workers.

        ``labels`` are those of the nodes ``rows [N]`` int64 of ``logits``; without ``rows``, of all nodes in order.
        """

    @abstractmethod
    def metric_counts(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """``[T]`` int64: what is counted on these nodes to score them; counts of several workers add up."""

    @abstractmethod
    def metric_from_counts(self, counts_T: Tensor) -> float:
        """Quality in [0, 1] from a `metric_counts`; NaN if no nodes were counted."""

    def score(self, logits_NC: Tensor, labels_N: Tensor) -> float:
        """Quality in [0, 1] on these nodes; NaN if there are none."""
        return self.metric_from_counts(self.metric_counts(logits_NC, labels_N))

    @abstractmethod
    def predict(self, logits_NC: Tensor) -> Tensor:
        """The predicted labels."""


class SingleLabel(NodeTask):
    """One class per node: softmax cross-entropy; scored by accuracy."""

    metric = "accuracy"

    def loss(self, logits_VC: Tensor, labels_N: Tensor, total: int, rows_N: Tensor | None = None) -> Tensor:
        """Sum of the cross-entropies, divided by ``total``; labels ``[N]`` integer."""
        return cross_entropy(logits_VC, labels_N.long(), rows_N) / total

    def metric_counts(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Nodes whose largest logit is that of their label, and nodes."""
        return torch.stack([(self.predict(logits_NC) == labels_N).sum(), torch.tensor(len(labels_N))])

    def metric_from_counts(self, counts_T: Tensor) -> float:
        """Share of the nodes whose largest logit is that of their label."""
        right, total = counts_T.tolist()
        return right / total if total else float("nan")

    def predict(self, logits_NC: Tensor) -> Tensor:
        """``[N]`` int64: class of the largest logit."""
        return logits_NC.argmax(1)


class MultiLabel(NodeTask):
    """Any number of classes per node: binary cross-entropy, averaged over classes; scored by micro-averaged F1."""

    metric = "micro_f1"

    def loss(self, logits_VC: Tensor, labels_N: Tensor, total: int, rows_N: Tensor | None = None) -> Tensor:
        """Sum of the nodes' mean binary cross-entropies over ``total``; labels ``[N, C]`` zeros and ones."""
        logits_NC = logits_VC if rows_N is None else logits_VC[rows_N]
        target = labels_N.to(logits_NC.dtype)
        each = functional.binary_cross_entropy_with_logits(logits_NC, target, reduction="none")
        return each.sum(0).mean() / total  # column by column: a sum of all at once depends on the number of threads

    def metric_counts(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """True positives, wrong predictions, and nodes."""
        guess, truth = self.predict(logits_NC).bool(), labels_N.bool()
        return torch.stack([(guess & truth).sum(), (guess ^ truth).sum(), torch.tensor(len(labels_N))])

    def metric_from_counts(self, counts_T: Tensor) -> float:
        """Micro-averaged F1 at probability one half; 1 if nothing is true and nothing predicted."""
        hit, wrong, total = counts_T.tolist()
        if total == 0:
            return float("nan")
        return 2 * hit / (2 * hit + wrong) if hit + wrong else 1.0

    def predict(self, logits_NC: Tensor) -> Tensor:
        """``[N, C]`` uint8: one where the probability is above one half."""
        return (logits_NC > 0).to(torch.uint8)
