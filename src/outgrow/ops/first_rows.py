"""Rows, and the first of them apart: what sources and destinations of a block read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outgrow.ops.backend import once
from outgrow.ops.buffers import empty


def with_first_rows(x_NF: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """``x`` and its first ``count`` rows, whose gradients are added in one pass: that of a slice is mostly zeros.

    Args:
        x_NF: ``[N, F]``.
        count: At most ``N``.
    """
    if not x_NF.requires_grad:
        return x_NF, x_NF[:count]
    return _FirstRows.apply(x_NF, count)  # type: ignore[no-any-return, no-untyped-call]


class _FirstRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NF: Tensor, count: int) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.count = x_NF.shape, count
        return x_NF.view_as(x_NF), x_NF[:count]

    @staticmethod
    @once
    def backward(ctx: Any, grad_NF: Tensor | None, first_MF: Tensor | None) -> tuple[Tensor | None, None]:
        if grad_NF is None or first_MF is None:
            return grad_NF if first_MF is None else _padded(first_MF, ctx.shape), None
        out = empty(tuple(ctx.shape), grad_NF)
        torch.add(grad_NF[: ctx.count], first_MF, out=out[: ctx.count])
        out[ctx.count :].copy_(grad_NF[ctx.count :])
        return out, None


def _padded(first_MF: Tensor, shape: torch.Size) -> Tensor:
    out = empty(tuple(shape), first_MF)
    out[: len(first_MF)], out[len(first_MF) :] = first_MF, 0
    return out
