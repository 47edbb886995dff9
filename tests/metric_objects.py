"""Metrics that users could write, some of which cannot be combined by their states, and some that are broken."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


class MeanOfMeans(Metric):
    """Mean probability of the most likely class; what it holds is a mean, of rows and over workers."""

    full_state_update = False
    higher_is_better = True
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("mean", torch.zeros(()), dist_reduce_fx="mean")

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.mean = preds.max(1).values.mean()

    def compute(self) -> Tensor:
        return self.mean


class Overwritten(Metric):
    """The same, but it says that what it holds may be summed."""

    full_state_update = False
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("mean", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.mean = preds.max(1).values.mean()

    def compute(self) -> Tensor:
        return self.mean


class ByPosition(Metric):
    """Depends on the order of rows, and has no state that torchmetrics knows."""

    full_state_update = False
    mean = 0.0

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.mean = float((preds[:, 0] * torch.arange(len(preds))).mean())

    def compute(self) -> Tensor:
        return torch.tensor(self.mean)


class Raising(MeanOfMeans):
    """Cannot be updated."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        raise ZeroDivisionError("not today")


class Bootstrapped(MeanOfMeans):
    """Draws from the generator of the process."""

    def compute(self) -> Tensor:
        return self.mean + torch.rand(())


class WithoutDirection(MeanOfMeans):
    """Does not say whether more is better."""

    higher_is_better = None
