"""Updates of rows by their gradients in one pass over memory: the steps of Adam and of Adagrad."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import as_numpy, parallel_kernel, prange

Array = NDArray[Any]
ADAGRAD_EPS = 1e-10
"""As in `torch.optim.Adagrad`."""


class AdamStep(NamedTuple):
    """Numbers of a step of Adam (Kingma & Ba, ICLR 2015).

    Attributes:
        lr: Learning rate.
        betas: Decay of both moments.
        eps: Added to the root of the second moment.
        number: Number of the step, from 1.
    """

    lr: float
    betas: tuple[float, float]
    eps: float
    number: int


def step_adam(values: Tensor, grad: Tensor, first: Tensor, second: Tensor, step: AdamStep) -> None:
    """Update ``values [n, F]`` and both moments in place, as `torch.optim.Adam` does."""
    beta1, beta2 = step.betas
    size = step.lr / (1 - beta1**step.number)
    root = (1 - beta2**step.number) ** 0.5
    if values.device.type != "cpu":
        first.lerp_(grad, 1 - beta1)
        second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        values.addcdiv_(first, second.sqrt().div_(root).add_(step.eps), value=-size)
        return
    x, g, m, v = (as_numpy(each) for each in (values, grad, first, second))
    _adam_kernel(x, g, m, v, beta1, beta2, size, root, step.eps)


def step_adagrad(values: Tensor, grad: Tensor, total: Tensor, lr: float) -> None:
    """Update ``values [n, F]`` and the sum of squares in place, as `torch.optim.Adagrad` does."""
    if values.device.type != "cpu":
        total.addcmul_(grad, grad)
        values.addcdiv_(grad, total.sqrt().add_(ADAGRAD_EPS), value=-lr)
        return
    _adagrad_kernel(as_numpy(values), as_numpy(grad), as_numpy(total), lr, ADAGRAD_EPS)


@parallel_kernel
def _adam_kernel(
    values: Array,
    grad: Array,
    first: Array,
    second: Array,
    beta1: float,
    beta2: float,
    size: float,
    root: float,
    eps: float,
) -> None:
    kind = values.dtype.type
    keep1, keep2 = kind(beta1), kind(beta2)
    add1, add2 = kind(1 - beta1), kind(1 - beta2)
    step, scale, least = kind(size), kind(1 / root), kind(eps)
    for n in prange(values.shape[0]):
        for f in range(values.shape[1]):
            g = grad[n, f]
            mean = keep1 * first[n, f] + add1 * g
            square = keep2 * second[n, f] + add2 * g * g
            first[n, f] = mean
            second[n, f] = square
            values[n, f] -= step * mean / (np.sqrt(square) * scale + least)


@parallel_kernel
def _adagrad_kernel(values: Array, grad: Array, total: Array, lr: float, eps: float) -> None:
    kind = values.dtype.type
    rate, least = kind(lr), kind(eps)
    for n in prange(values.shape[0]):
        for f in range(values.shape[1]):
            g = grad[n, f]
            square = total[n, f] + g * g
            total[n, f] = square
            values[n, f] -= rate * g / (np.sqrt(square) + least)
