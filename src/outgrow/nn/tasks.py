"""Tasks: meaning, loss and quality of the logits of nodes.

Letters: ``V`` nodes, ``N`` labelled nodes, ``C`` classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError
from outgrow.core.validation import out_of_range_error
from outgrow.nn.losses import (
    BALANCED,
    balanced_class_weight,
    balanced_pos_weight,
    multi_label_losses,
    require_weight_count,
    validate_weights,
)
from outgrow.nn.node_task import NodeTask as NodeTask
from outgrow.nn.regression import NodeRegression as NodeRegression
from outgrow.ops.cross_entropy import cross_entropy


@check_arguments(unchecked=("class_weight", "sample_weight"))
class NodeClassification(NodeTask):
    """One class per node: softmax cross-entropy; scored by accuracy.

    As `torch.nn.CrossEntropyLoss`: with weights ``w[c]`` of the classes, smoothing ``e`` and ``p`` the softmax of the
    logits, the loss of a node of class ``y`` is ``-(1 - e) w[y] log p[y] - (e / C) sum_c w[c] log p[c]``, and its
    weight in the mean is ``w[y]``: see `NodeTask`.

    Args:
        class_weight: ``[C]`` weights, at least 0; ``"balanced"`` for ``N / (P * count[c])`` over the nodes to train on,
            with ``P`` classes among them, so that classes weigh the same and the mean weight is 1; None for 1.
        label_smoothing: ``e``, in [0, 1).
        loss: Your function of logits ``[n, C]`` and classes ``[n]`` int64 that returns the loss of each node, ``[n]``;
            None for cross-entropy. It must compute each row of that row alone, which is checked before training.
        sample_weight: ``[V]`` weights of the nodes, at least 0; None for 1.

    Raises:
        InputError: Weights that are negative, not finite or all zero; smoothing out of range; a loss beside either.
    """

    kind = "classification"
    metric = "accuracy"
    target_kind = "multiclass"

    def __init__(
        self,
        *,
        class_weight: Any = None,
        label_smoothing: float = 0.0,
        loss: Callable[..., Tensor] | None = None,
        sample_weight: Any = None,
    ) -> None:
        super().__init__(loss, sample_weight)
        self.class_weight = validate_weights("class_weight", class_weight)
        self.label_smoothing = label_smoothing
        if not 0 <= label_smoothing < 1:
            raise out_of_range_error("label_smoothing", "at least 0, below 1", label_smoothing)
        if loss is not None and (self.class_weight is not None or label_smoothing):
            raise _two_losses_error("class_weight and label_smoothing")

    def loss(
        self,
        logits_VC: Tensor,
        labels_N: Tensor,
        total: float,
        rows_N: Tensor | None = None,
        weights_N: Tensor | None = None,
    ) -> Tensor:
        """Return the sum of the losses over ``total`` times the mean weight; labels ``[N]`` integer."""
        if self._is_plain and weights_N is None:
            # One pass each way, without a copy of the rows.
            return cross_entropy(logits_VC, labels_N.long(), rows_N) / total
        return super().loss(logits_VC, labels_N, total, rows_N, weights_N)

    @property
    def _is_plain(self) -> bool:
        return self.loss_function is None and self.class_weight is None and not self.label_smoothing

    @property
    def loss_copies(self) -> int:
        """How many copies of the logits a loss holds: none without weights."""
        return 0 if self._is_plain and self.sample_weight is None else super().loss_copies

    def own_losses(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return ``[N]`` cross-entropies, times the weight of the class."""
        weight = None if self.class_weight is None else logits_NC.new_tensor(self.class_weight)
        return functional.cross_entropy(
            logits_NC, labels_N.long(), weight, reduction="none", label_smoothing=self.label_smoothing
        )

    def make_targets(self, labels_N: Tensor, dtype: torch.dtype) -> Tensor:
        """Return ``[N]`` int64 classes."""
        return labels_N.long()

    def count_outputs(self, labels: Tensor, num_classes: int) -> int:
        """Return the number of classes."""
        return num_classes

    def validate_labels(self, labels: Tensor, graph_name: str) -> None:
        """Check that labels are ``[V]`` integer."""
        if labels.is_floating_point() or labels.dim() != 1:
            raise _other_task_error(self.kind, labels, graph_name, "one class for each node: integers [V]")

    def row_weights(self, labels_N: Tensor) -> Tensor | None:
        """Return the weight of the class of each node."""
        if not isinstance(self.class_weight, tuple):
            return None
        return torch.tensor(self.class_weight, dtype=torch.float64)[labels_N.long()]

    def fill_weights(self, labels_N: Tensor, num_classes: int) -> Self:
        """Return the task with its balanced weights as numbers."""
        require_weight_count("class_weight", self.class_weight, num_classes)
        if self.class_weight != BALANCED:
            return self
        return self.with_fields(class_weight=balanced_class_weight(labels_N, num_classes))

    @property
    def is_weighted(self) -> bool:
        """Whether nodes may have different weights."""
        return self.class_weight is not None or super().is_weighted

    def options(self) -> dict[str, object]:
        """Return what was asked for, as plain values."""
        return {**super().options(), "class_weight": self.class_weight, "label_smoothing": self.label_smoothing}

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


@check_arguments(unchecked=("pos_weight", "sample_weight"))
class MultiLabel(NodeTask):
    """Any number of classes per node: mean binary cross-entropy over classes; scored by micro-averaged F1.

    As `torch.nn.BCEWithLogitsLoss`: with weights ``w[c]`` of ones, the loss of a node with the labels ``y[c]`` is the
    mean over classes of ``-w[c] y[c] log sigmoid(x[c]) - (1 - y[c]) log(1 - sigmoid(x[c]))``.

    Args:
        pos_weight: ``[C]`` weights of the ones of each class, at least 0; ``"balanced"`` for the number of zeros over
            that of ones among the nodes to train on; None for 1.
        loss: Your function of logits ``[n, C]`` and zeros and ones ``[n, C]`` in the type of the logits that returns
            the loss of each node, ``[n]``; None for binary cross-entropy. It must compute each row of that row alone,
            which is checked before training.
        sample_weight: ``[V]`` weights of the nodes, at least 0; None for 1.

    Raises:
        InputError: Weights that are negative, not finite or all zero; or a loss beside them.
    """

    kind = "multilabel"
    metric = "micro_f1"
    target_kind = "multilabel"

    def __init__(
        self, *, pos_weight: Any = None, loss: Callable[..., Tensor] | None = None, sample_weight: Any = None
    ) -> None:
        super().__init__(loss, sample_weight)
        self.pos_weight = validate_weights("pos_weight", pos_weight)
        if loss is not None and self.pos_weight is not None:
            raise _two_losses_error("pos_weight")

    def loss(
        self,
        logits_VC: Tensor,
        labels_N: Tensor,
        total: float,
        rows_N: Tensor | None = None,
        weights_N: Tensor | None = None,
    ) -> Tensor:
        """Return the sum of the nodes' losses over ``total`` times the mean weight; labels ``[N, C]``, 0 or 1."""
        if self.loss_function is not None or weights_N is not None:
            return super().loss(logits_VC, labels_N, total, rows_N, weights_N)
        logits_NC = logits_VC if rows_N is None else logits_VC[rows_N]
        # Column by column: a sum of all at once depends on the number of threads.
        return multi_label_losses(logits_NC, labels_N, self._weights()).sum(0).mean() / total

    def own_losses(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return ``[N]``, the mean of the cross-entropies of each node."""
        return multi_label_losses(logits_NC, labels_N, self._weights()).mean(1)

    def _weights(self) -> tuple[float, ...] | None:
        assert not isinstance(self.pos_weight, str)
        return self.pos_weight

    def make_targets(self, labels_N: Tensor, dtype: torch.dtype) -> Tensor:
        """Return ``[N, C]`` zeros and ones of the type of the logits."""
        return labels_N.to(dtype)

    def count_outputs(self, labels: Tensor, num_classes: int) -> int:
        """Return the number of classes."""
        return num_classes

    def validate_labels(self, labels: Tensor, graph_name: str) -> None:
        """Check that labels are ``[V, C]`` zeros and ones."""
        if labels.is_floating_point() or labels.dim() != 2:
            raise _other_task_error(self.kind, labels, graph_name, "zeros and ones [V, C]")

    def fill_weights(self, labels_N: Tensor, num_classes: int) -> Self:
        """Return the task with its balanced weights as numbers."""
        require_weight_count("pos_weight", self.pos_weight, num_classes)
        return self if self.pos_weight != BALANCED else self.with_fields(pos_weight=balanced_pos_weight(labels_N))

    @property
    def is_weighted(self) -> bool:
        """Whether nodes or classes may have different weights."""
        return self.pos_weight is not None or super().is_weighted

    def options(self) -> dict[str, object]:
        """Return what was asked for, as plain values."""
        return {**super().options(), "pos_weight": self.pos_weight}

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


@check_arguments()
@dataclass(frozen=True, kw_only=True)
class LinkPrediction:
    """Whether two nodes are linked, for a model with a decoder; scored by filtered MRR.

    Attributes:
        link_steps: Optimizer steps of an epoch, each of which asks about a part of the linked pairs of nodes.
        hide: Share of the pairs whose edges a step hides from the layers.
        link_loss: Name of the loss: see `outgrow.training.config.TrainConfig`, also for what follows.
        margin: Margin of the losses that have one.
        adversarial_temperature: Temperature of the loss ``self-adversarial``.
        negatives: Negatives of a link, or on either side of all links of a step.
        negative_sampling: How they are drawn.
        filter_negatives: Whether candidates that are known links are no negatives.
        regularizer: Penalty on the rows of links; None for none.
        regularizer_weight: Its factor.
        exclude: What layers do not see of the links of a mini-batch: ``target`` or ``none``; None for ``target``.
        val_links: Share of the linked pairs of nodes to validate on.
        test_links: Share of the linked pairs to test on.
        split_seed: Seed of the split of links.
        link_relations: Names of the relations whose links are predicted; empty for all. Edges of others carry messages
            alone.
        rank_self: Whether the queried node itself is ranked too; None for links that a graph comes with.
        ranking_candidates: ``given`` (those that held-out links come with, otherwise all nodes), ``all`` nodes of the
            answer's type, or a number of them to draw for each query.
    """

    link_steps: int = 1
    hide: float = 0.0
    link_loss: str = "bce"
    margin: float | None = None
    adversarial_temperature: float | None = None
    negatives: int = 1
    negative_sampling: str = "uniform"
    filter_negatives: bool = True
    regularizer: str | None = None
    regularizer_weight: float | None = None
    exclude: str | None = None
    val_links: float = 0.05
    test_links: float = 0.1
    split_seed: int = 0
    link_relations: Sequence[str] | str = ()
    rank_self: bool | None = None
    ranking_candidates: str | int = "given"


def _two_losses_error(option: str) -> InputError:
    return InputError(
        "a loss is given twice",
        needed=f"{option}, or a loss of your own",
        got="both",
        repair=f"weigh the rows in your loss, or leave it out; {option} belong to the loss of the task",
    )


def _other_task_error(kind: str, labels: Tensor, graph_name: str, needed: str) -> InputError:
    form = f"{str(labels.dtype).removeprefix('torch.')} of shape {list(labels.shape)}"
    fits = "regression" if labels.is_floating_point() else "classification" if labels.dim() == 1 else "multilabel"
    names = {"regression": "og.NodeRegression()", "classification": "og.NodeClassification()"}
    return InputError(
        f"the labels of {graph_name!r} do not fit the task {kind}",
        needed=needed,
        got=f"{form}: numbers, with fractions or NaN" if fits == "regression" else form,
        repair=f"give --task {fits} (task={names.get(fits, 'og.MultiLabel()')})",
    )


NODE_TASKS: dict[str, type[NodeTask]] = {each.kind: each for each in (NodeClassification, MultiLabel, NodeRegression)}
"""Tasks of nodes, by their names on the command line."""
