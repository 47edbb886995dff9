"""Product of rows by segments, each with a weight of its own: one dense product per segment, no rows copied for later.

Letters: ``N`` rows, ``D`` columns, ``n`` and ``d`` those of a segment, ``O`` output width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outgrow.ops.backend import once_differentiable
from outgrow.ops.linear import product_functions, uses_bfloat16
from outgrow.ops.row_slots import Slot


def segment_matmul(
    x_ND: Tensor, segments: Sequence[Slot], weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None
) -> Tensor:
    """Return ``[N, O]``: the rows of each segment times its weight, plus its bias; zeros in rows of no segment.

    Args:
        x_ND: ``[N, D]``; a constant may be in half precision.
        segments: Rows and columns of each segment; rows of different segments differ.
        weights: ``[d, O]`` of each segment.
        biases: ``[O]`` of each segment; None for none.

    Returns:
        ``[N, O]`` of the type of the weights, differentiable in rows, weights and biases.
    """
    parameters = (*weights, *(biases or ()))
    return _SegmentMatmul.apply(x_ND, tuple(segments), *parameters)  # type: ignore[no-any-return, no-untyped-call]


class _SegmentMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, segments: tuple[Slot, ...], *parameters: Tensor) -> Tensor:
        ctx.segments = segments
        # Remembered, since the backward pass may run outside the context that switched bfloat16 on.
        ctx.narrow = uses_bfloat16()
        weights, biases = parameters[: len(segments)], parameters[len(segments) :]
        # The rows as they came: their parts are gathered again in the backward pass.
        ctx.save_for_backward(x_ND, *weights)
        ctx.has_biases = bool(biases)
        product, _ = product_functions(ctx.narrow)
        out = weights[0].new_zeros(len(x_ND), weights[0].shape[1])
        for index, (segment, weight) in enumerate(zip(segments, weights, strict=True)):
            part = product(_read_segment(x_ND, segment), weight)
            out[segment.rows] = part.add_(biases[index]) if biases else part
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, *weights = ctx.saved_tensors
        product, weight_gradient = product_functions(ctx.narrow)
        d_x = grad_NO.new_zeros(x_ND.shape) if ctx.needs_input_grad[0] else None
        d_weights, d_biases = list[Tensor](), list[Tensor]()
        for segment, weight in zip(ctx.segments, weights, strict=True):
            grad = grad_NO[segment.rows]
            d_weights.append(weight_gradient(_read_segment(x_ND, segment), grad))
            if d_x is not None:
                d_x[segment.rows, segment.first : segment.last] = product(grad, weight.T)
            if ctx.has_biases:
                d_biases.append(grad.sum(0))
        return d_x, None, *d_weights, *d_biases


def _read_segment(x_ND: Tensor, segment: Slot) -> Tensor:
    """Return ``[n, d]``: the rows of a segment; without a copy if they are a range."""
    part = x_ND[segment.rows]
    return part[:, segment.first : segment.last]
