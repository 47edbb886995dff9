"""How far apart two computations of the same may be, by how much what is computed amplifies rounding errors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

EPS = torch.finfo(torch.float64).eps
NOISE = 1e-11
"""Relative noise: large beside rounding errors, so that they do not matter, and small enough for a linear response."""
ROUNDINGS = 500
"""Relative errors of a step, in units of `EPS`: as many as additions follow one another in it, and more than it has."""


def shake(optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    """Let every step change every number of gradients and parameters by up to `NOISE` times itself."""
    generator = torch.Generator().manual_seed(seed)

    def noisy(x: Tensor) -> None:
        x.mul_(1 + NOISE * (2 * torch.rand(x.shape, generator=generator, dtype=x.dtype) - 1))

    def before(*_: Any) -> None:
        for parameter in parameters():
            if parameter.grad is not None:
                noisy(parameter.grad)

    @torch.no_grad()
    def after(*_: Any) -> None:
        for parameter in parameters():
            noisy(parameter)

    def parameters() -> list[Tensor]:
        return [parameter for group in optimizer.param_groups for parameter in group["params"]]

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def tolerance(difference: float) -> float:
    """What rounding may make of two runs, given the difference that `shake` makes of one."""
    return ROUNDINGS * EPS / NOISE * difference
