"""What follows a convolution in one pass over its rows: norm, activation, residual, dropout, in this order.

Letters: ``N`` rows, ``F`` columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import array, prange, reducing_kernel, reducing_sequential
from outgrow.ops.buffers import empty
from outgrow.ops.keyed import dropout, is_kept, keep_scale, mix, threshold
from outgrow.ops.norm import layer_norm

Array = NDArray[Any]
Activation = Callable[[Tensor], Tensor]

_PARTS = 64
_NAMES: dict[Activation, str] = {torch.relu: "relu", torch.nn.functional.relu: "relu", torch.nn.functional.elu: "elu"}


class Norm(NamedTuple):
    """Layer norm (Ba, Kiros & Hinton, 2016): ``weight [F]``, ``bias [F]`` and what is added to the variance."""

    weight: Tensor
    bias: Tensor
    eps: float


class Drop(NamedTuple):
    """Keyed dropout: global ids of the rows ``[N]``, key and probability; see `outgrow.ops.keyed.dropout`."""

    nodes: Tensor
    key: int
    p: float


def finish(
    y_NF: Tensor,
    *,
    norm: Norm | None = None,
    activation: Activation | None = None,
    residual_NF: Tensor | None = None,
    drop: Drop | None = None,
) -> Tensor:
    """``dropout(activation(norm(y)) + residual)``; what is None is left out.

    One pass forward and one backward where it pays: on a CPU, with ReLU or without an activation. Else one pass
    for each of the four; ReLU and ELU write into lent memory (`outgrow.ops.buffers`).

    Args:
        y_NF: ``[N, F]`` floating.
        norm: Normalises each row.
        activation: Element-wise.
        residual_NF: ``[N, F]``.
        drop: Zeroes elements.

    Returns:
        ``[N, F]``, differentiable in ``y``, the norm's parameters and the residual.
    """
    if drop is not None and drop.p == 0:
        drop = None
    steps = _Steps(norm is not None, activation is not None, residual_NF is not None, drop is not None)
    if y_NF.device.type == "cpu" and in_one_pass(activation, sum(steps)):
        weight, bias, eps = norm or (None, None, 0.0)
        return _Finish.apply(y_NF, weight, bias, residual_NF, eps, drop, steps)  # type: ignore[no-any-return, no-untyped-call]
    if norm is not None:
        y_NF = layer_norm(y_NF, norm.weight, norm.bias, norm.eps)
    if activation is not None:
        y_NF = activate(y_NF, activation)
    if residual_NF is not None:
        y_NF = y_NF + residual_NF
    return y_NF if drop is None else dropout(y_NF, drop.nodes, drop.key, drop.p)


def in_one_pass(activation: Activation | None, steps: int) -> bool:
    """Whether `finish` on a CPU takes one pass for so many steps with this activation."""
    return steps > 1 and (activation is None or _NAMES.get(activation) == "relu")


def activate(y_NF: Tensor, activation: Activation) -> Tensor:
    """``activation(y)``; ReLU and ELU keep nothing but their result for the backward pass."""
    name = _NAMES.get(activation)
    return activation(y_NF) if name is None else _Activated.apply(y_NF, name)  # type: ignore[no-untyped-call]


class _Activated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y_NF: Tensor, name: str) -> Tensor:
        out = empty(tuple(y_NF.shape), y_NF)
        if name == "relu":
            torch.clamp_min(y_NF, 0, out=out)
        else:
            torch.ops.aten.elu.out(y_NF, out=out)
        ctx.name = name
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor, None]:
        (out_NF,) = ctx.saved_tensors
        d_y = empty(tuple(grad_NF.shape), grad_NF)
        if ctx.name == "relu":
            torch.ops.aten.threshold_backward.grad_input(grad_NF, out_NF, 0, grad_input=d_y)
        else:
            torch.ops.aten.elu_backward.grad_input(grad_NF, 1, 1, 1, True, out_NF, grad_input=d_y)
        return d_y, None


class _Steps(NamedTuple):
    """What is done."""

    norm: bool
    relu: bool
    residual: bool
    drop: bool


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y_NF: Tensor,
        weight_F: Tensor | None,
        bias_F: Tensor | None,
        residual_NF: Tensor | None,
        eps: float,
        drop: Drop | None,
        steps: _Steps,
    ) -> Tensor:
        out = empty(tuple(y_NF.shape), y_NF)
        ctx.drop, ctx.steps, ctx.eps = drop, steps, eps
        # without a norm or a residual the sign of the result says where ReLU let the gradient through
        ctx.from_result = not (steps.norm or steps.residual)
        needed = out if ctx.from_result else y_NF
        ctx.save_for_backward(needed if steps.relu or steps.norm else None, weight_F, bias_F)
        operands = _norm_of(weight_F, bias_F, eps, y_NF.dtype), _draws(drop, y_NF.dtype)
        _forward_of(steps)(array(y_NF), *operands, _optional(residual_NF), out.numpy())
        return out

    @staticmethod
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor | None, ...]:
        saved, weight_F, bias_F = ctx.saved_tensors
        steps: _Steps = ctx.steps
        d_y = empty(tuple(grad_NF.shape), grad_NF)
        d_residual = empty(tuple(grad_NF.shape), grad_NF) if steps.residual and steps.drop else grad_NF.new_empty(0, 0)
        sums = torch.zeros(_PARTS, 2, grad_NF.shape[1] if steps.norm else 0, dtype=torch.float64)
        operands = _norm_of(weight_F, bias_F, ctx.eps, grad_NF.dtype), _draws(ctx.drop, grad_NF.dtype)
        given = grad_NF if saved is None else saved
        _backward_of(steps)(array(given), *operands, array(grad_NF), d_y.numpy(), d_residual.numpy(), sums.numpy())
        d_weight = d_bias = None
        if steps.norm:
            d_weight, d_bias = sums.sum(0).to(weight_F.dtype)
        return (
            d_y,
            d_weight,
            d_bias,
            (d_residual if steps.drop else grad_NF) if steps.residual else None,
            None,
            None,
            None,
        )


def _norm_of(weight_F: Tensor | None, bias_F: Tensor | None, eps: float, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    nothing = torch.empty(0, dtype=dtype)
    weight, bias = (array(nothing if given is None else given) for given in (weight_F, bias_F))
    return weight, bias, weight.dtype.type(eps)


def _draws(drop: Drop | None, dtype: torch.dtype) -> tuple[Any, Any, Any, Any]:
    if drop is None:
        drop = Drop(torch.empty(0, dtype=torch.int64), 0, 0.0)
    return array(drop.nodes), np.uint64(drop.key), threshold(drop.p), keep_scale(drop.p, dtype)


def _optional(x: Tensor | None) -> Array | None:
    return None if x is None else array(x)


@cache
def _forward_of(steps: _Steps) -> Callable[..., None]:
    norms, rectifies, adds, drops = steps

    @reducing_kernel
    def forward(y: Array, norm: Any, draws: Any, residual: Any, out: Array) -> None:
        for part in prange(_PARTS):
            weight, bias, eps = norm
            nodes, key, limit, scale = draws
            columns, zero = y.shape[1], y.dtype.type(0)
            row = np.empty(columns, y.dtype)
            for n in range(len(y) * part // _PARTS, len(y) * (part + 1) // _PARTS):
                for f in range(columns):
                    row[f] = y[n, f]
                if norms:
                    mean, rate = _moments(row, eps)
                    for f in range(columns):
                        row[f] = (row[f] - mean) * rate * weight[f] + bias[f]
                if rectifies:
                    for f in range(columns):
                        row[f] = zero if row[f] < 0 else row[f]
                if adds:
                    for f in range(columns):
                        row[f] += residual[n, f]
                if drops:
                    row_key = mix(key, np.uint64(nodes[n]))
                    for f in range(columns):
                        row[f] = row[f] * scale if is_kept(row_key, f, limit) else zero
                for f in range(columns):
                    out[n, f] = row[f]

    return forward


@cache
def _backward_of(steps: _Steps) -> Callable[..., None]:
    norms, rectifies, adds, drops = steps

    @reducing_kernel
    def backward(
        given: Array, norm: Any, draws: Any, grad: Array, d_y: Array, d_residual: Array, sums: NDArray[np.float64]
    ) -> None:
        for part in prange(_PARTS):
            weight, bias, eps = norm
            nodes, key, limit, scale = draws
            columns, zero = grad.shape[1], grad.dtype.type(0)
            row, normal = np.empty(columns, grad.dtype), np.empty(columns, grad.dtype)
            for n in range(len(grad) * part // _PARTS, len(grad) * (part + 1) // _PARTS):
                for f in range(columns):
                    row[f] = grad[n, f]
                if drops:
                    row_key = mix(key, np.uint64(nodes[n]))
                    for f in range(columns):
                        row[f] = row[f] * scale if is_kept(row_key, f, limit) else zero
                    if adds:
                        for f in range(columns):
                            d_residual[n, f] = row[f]
                rate = zero
                if norms:
                    mean, rate = _moments(given[n], eps)
                    for f in range(columns):
                        normal[f] = (given[n, f] - mean) * rate
                if norms and rectifies:
                    for f in range(columns):
                        row[f] = zero if normal[f] * weight[f] + bias[f] <= 0 else row[f]
                elif rectifies:
                    for f in range(columns):
                        row[f] = zero if given[n, f] <= 0 else row[f]
                if norms:
                    for f in range(columns):
                        sums[part, 0, f] += row[f] * normal[f]
                        sums[part, 1, f] += row[f]
                    _through_norm(row, normal, weight, rate)
                for f in range(columns):
                    d_y[n, f] = row[f]

    return backward


@reducing_sequential
def _moments(row: Array, eps: Any) -> tuple[Any, Any]:
    """Mean, and one over the root of the variance."""
    total = row.dtype.type(0)
    for f in range(len(row)):
        total += row[f]
    mean = total / row.dtype.type(len(row))
    total = row.dtype.type(0)
    for f in range(len(row)):
        total += (row[f] - mean) * (row[f] - mean)
    return mean, row.dtype.type(1) / np.sqrt(total / row.dtype.type(len(row)) + eps)


@reducing_sequential
def _through_norm(row: Array, normal: Array, weight: Array, rate: Any) -> None:
    """Turn the gradient of a normalised, scaled row into that of the row, in place."""
    total, along = row.dtype.type(0), row.dtype.type(0)
    for f in range(len(row)):
        row[f] *= weight[f]
        total += row[f]
        along += row[f] * normal[f]
    count = row.dtype.type(len(row))
    for f in range(len(row)):
        row[f] = (row[f] - total / count - normal[f] * (along / count)) * rate
