"""`NodeRegression`: numbers to predict for each node.

Letters: ``N`` labelled nodes, ``K`` targets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from outgrow.core.arguments import check_arguments
from outgrow.core.validation import validate_choice
from outgrow.nn.losses import ENTRY_LOSSES, regression_losses
from outgrow.nn.node_task import NodeTask


@check_arguments(unchecked=("sample_weight",))
class NodeRegression(NodeTask):
    """Numbers to predict for each node; scored by the mean absolute error, of which less is better.

    Targets are ``graph.labels``, ``[V]`` or ``[V, K]``; NaN is unknown and is neither trained on nor scored. Of integer
    labels -1 is unknown. The loss of a node is the sum over its known targets over ``K``, and its weight in the mean is
    their share, so that with all nodes in a step the loss is the mean over all known targets: see `NodeTask`.

    Args:
        loss: ``"mse"``, the squared error; ``"mae"``, the absolute one; ``"huber"``, that of Huber (1964) with delta 1,
            as `torch.nn.HuberLoss`; or your function of outputs ``[n, K]`` and targets ``[n, K]``, also with ``K`` 1,
            that returns the loss of each node, ``[n]``. It must compute each row of that row alone, which is checked
            before training; it is given NaN where a node has some known targets, and others unknown.
        sample_weight: ``[V]`` weights of the nodes, at least 0; None for 1.

    Raises:
        InputError: There is no such loss.
    """

    kind = "regression"
    metric = "mae"
    larger_is_better = False
    target_kind = "regression"

    def __init__(self, *, loss: Callable[..., Tensor] | str = "mse", sample_weight: Any = None) -> None:
        super().__init__(loss, sample_weight)
        if isinstance(loss, str):
            validate_choice("loss", loss, dict.fromkeys(ENTRY_LOSSES))

    def own_losses(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return ``[N]``, the sum of the losses of the known targets over ``K``."""
        assert isinstance(self.loss_function, str)
        return regression_losses(self.loss_function, logits_NC, self.make_targets(labels_N, logits_NC.dtype))

    def make_targets(self, labels_N: Tensor, dtype: torch.dtype) -> Tensor:
        """Return ``[N, K]`` targets of the type of the outputs, NaN where they are unknown."""
        columns = labels_N[:, None] if labels_N.dim() == 1 else labels_N
        if columns.is_floating_point():
            return columns.to(dtype)
        return columns.to(dtype).masked_fill(columns == -1, torch.nan)

    def count_outputs(self, labels: Tensor, num_classes: int) -> int:
        """Return ``K``."""
        return 1 if labels.dim() == 1 else labels.shape[1]

    def validate_labels(self, labels: Tensor, graph_name: str) -> None:
        """Accept all numbers."""

    def row_weights(self, labels_N: Tensor) -> Tensor | None:
        """Return the share of the targets of each node that are known."""
        if callable(self.loss_function):
            return None
        return (~self.make_targets(labels_N, torch.float64).isnan()).double().mean(1)

    def select_known(self, labels: Tensor, nodes: Tensor) -> Tensor:
        """Return those of some nodes that have a known target."""
        return nodes[~self.make_targets(labels[nodes], torch.float32).isnan().all(1)]

    @property
    def is_weighted(self) -> bool:
        """Whether nodes may have different weights."""
        return True

    def metric_counts(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return float64: the sum of absolute errors, and the number of known targets."""
        targets = self.make_targets(labels_N, torch.float64)
        error, known = (logits_NC.double() - targets).abs(), ~targets.isnan()
        return torch.stack([torch.where(known, error, 0.0).sum(0).sum(), known.sum().double()])

    def metric_from_counts(self, counts_T: Tensor) -> float:
        """Return the mean absolute error."""
        error, total = counts_T.tolist()
        return error / total if total else float("nan")

    def metric_input(self, logits_NC: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and targets, float64, of nodes all of whose targets are known: ``[n]``, or ``[n, K]``."""
        targets = self.make_targets(labels_N, torch.float64)
        known = ~targets.isnan().any(1)
        outputs, targets = logits_NC[known].double(), targets[known]
        return (outputs[:, 0], targets[:, 0]) if targets.shape[1] == 1 else (outputs, targets)

    def predict(self, logits_NC: Tensor) -> Tensor:
        """Return the outputs: ``[N]``, or ``[N, K]`` with several targets."""
        return logits_NC[:, 0] if logits_NC.shape[1] == 1 else logits_NC
