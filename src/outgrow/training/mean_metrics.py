"""Metrics that torchmetrics does not have, or not as one number to which a class without nodes adds nothing.

This module imports torchmetrics, which takes a second: it is itself imported only where a metric is asked for.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import (
    MulticlassAUROC,
    MulticlassAveragePrecision,
    MultilabelAUROC,
    MultilabelAveragePrecision,
)
from torchmetrics.regression import PearsonCorrCoef
from torchmetrics.utilities.data import dim_zero_cat


class LogLoss(Metric):
    """Mean negative logarithm of the probability of what is true; of all labels, if a node may have several.

    Predictions are ``[n, C]`` probabilities; targets ``[n]`` int64, or ``[n, C]`` zeros and ones. Probabilities count
    as the smallest float64 above zero at least.
    """

    is_differentiable = True
    higher_is_better = False
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add predictions and what is true."""
        is_single = target.ndim == 1
        truth = preds.gather(1, target[:, None]) if is_single else torch.where(target.bool(), preds, 1 - preds)
        self.total -= truth.double().clamp(min=torch.finfo(torch.float64).tiny).log().sum()
        self.count += truth.numel()

    def compute(self) -> Tensor:
        """Return the mean."""
        return self.total / self.count


class MeanPearson(PearsonCorrCoef):
    """Correlation of predicted and true numbers, averaged over outputs."""

    def compute(self) -> Tensor:
        """Return the mean over outputs."""
        return super().compute().mean()


# torchmetrics counts a class that no node has as 0 in an AUROC, so that a perfect model would not have 1.
def _mean_of_defined(scores: Tensor, target: Tensor) -> Tensor:
    """Return the mean over classes that some nodes have, and some have not; NaN if there is none.

    Args:
        scores: ``[C]``, the score of each class.
        target: ``[n]`` classes, or ``[n, C]`` zeros and ones.
    """
    counts = torch.bincount(target, minlength=len(scores)) if target.ndim == 1 else target.sum(0)
    return scores[(counts > 0) & (counts < len(target))].mean()


class MeanAUROC(MulticlassAUROC):
    """Area under the ROC curve of each class against the others, averaged over classes."""

    def compute(self) -> Tensor:  # type: ignore[override]
        """Return the mean over classes that have one."""
        return _mean_of_defined(super().compute(), dim_zero_cat(self.target))


class MeanAveragePrecision(MulticlassAveragePrecision):
    """Average precision of each class against the others, averaged over classes."""

    def compute(self) -> Tensor:  # type: ignore[override]
        """Return the mean over classes that have one."""
        return _mean_of_defined(super().compute(), dim_zero_cat(self.target))


class MeanLabelAUROC(MultilabelAUROC):
    """Area under the ROC curve of each label, averaged over labels."""

    def compute(self) -> Tensor:  # type: ignore[override]
        """Return the mean over labels that have one."""
        return _mean_of_defined(super().compute(), dim_zero_cat(self.target))


class MeanLabelAveragePrecision(MultilabelAveragePrecision):
    """Average precision of each label, averaged over labels."""

    def compute(self) -> Tensor:  # type: ignore[override]
        """Return the mean over labels that have one."""
        return _mean_of_defined(super().compute(), dim_zero_cat(self.target))
