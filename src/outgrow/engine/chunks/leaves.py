"""Where a wave's gradients begin and end."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from outgrow.engine.chunks.buffer import Gradients
from outgrow.nn.layer import Features, Rows

Add = Callable[[Gradients], None]
"""Adds the gradient of a wave's source rows to those at their places."""


def nothing(gradients: Gradients) -> None:
    """Source rows that have no gradient."""


def leaf(rows: Features | None, *, trains: bool) -> Features:
    """Rows at which a gradient ends."""
    assert rows is not None
    return rows.detach().requires_grad_(trains) if isinstance(rows, Tensor) else rows


def grad_of(rows: Tensor) -> Tensor:
    """The gradient that ended at rows; zeros if none did."""
    return torch.zeros_like(rows) if rows.grad is None else rows.grad


def backward(rows: Rows, grad: Rows, *others: tuple[Features, Tensor]) -> None:
    """Backward from rows of sources and from other results, where they depend on anything."""
    outs, grads = list[Tensor](), list[Tensor | None]()
    for out, given in (*zip(rows, grad, strict=True), *others):
        if isinstance(out, Tensor) and out.requires_grad:
            outs.append(out)
            grads.append(given)
    if outs:
        torch.autograd.backward(outs, grads)
