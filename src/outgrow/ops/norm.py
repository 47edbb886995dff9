"""Layer norm whose gradients do not depend on the number of threads, as those of torch's own do.

Letters: ``N`` rows, ``F`` columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import array, kernel, prange

_SLICE = 64
"""Columns that a thread sums at a time: whole cache lines of the rows, few enough for its own cache."""


def layer_norm(x_NF: Tensor, weight_F: Tensor, bias_F: Tensor, eps: float) -> Tensor:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` of each row (Ba, Kiros & Hinton, 2016).

    Args:
        x_NF: ``[N, F]`` floating.
        weight_F: ``[F]``.
        bias_F: ``[F]``.
        eps: Added to the variance of a row.

    Returns:
        ``[N, F]``, differentiable in all three tensors.
    """
    return _LayerNorm.apply(x_NF, weight_F, bias_F, eps)  # type: ignore[no-any-return, no-untyped-call]


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NF: Tensor, weight_F: Tensor, bias_F: Tensor, eps: float) -> Tensor:
        y_NF, mean_N, scale_N = torch.native_layer_norm(x_NF, weight_F.shape, weight_F, bias_F, eps)
        ctx.save_for_backward(x_NF, mean_N, scale_N, weight_F, bias_F)
        return y_NF

    @staticmethod
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x_NF, mean_N, scale_N, weight_F, bias_F = ctx.saved_tensors
        d_x = torch.ops.aten.native_layer_norm_backward(
            grad_NF, x_NF, weight_F.shape, mean_N, scale_N, weight_F, bias_F, [True, False, False]
        )[0]
        d_weight, d_bias = (torch.zeros(x_NF.shape[1], dtype=torch.float64) for _ in range(2))
        _sum_rows(
            array(x_NF),
            array(mean_N.flatten()),
            array(scale_N.flatten()),
            array(grad_NF),
            d_weight.numpy(),
            d_bias.numpy(),
        )
        return d_x, d_weight.to(weight_F.dtype), d_bias.to(bias_F.dtype), None


@kernel
def _sum_rows(
    x: NDArray[Any],
    mean: NDArray[Any],
    scale: NDArray[Any],
    grad: NDArray[Any],
    d_weight: NDArray[np.float64],
    d_bias: NDArray[np.float64],
) -> None:
    for part in prange((x.shape[1] + _SLICE - 1) // _SLICE):
        first = part * _SLICE
        last = min(first + _SLICE, x.shape[1])
        weight, bias = d_weight[first:last], d_bias[first:last]
        for n in range(x.shape[0]):
            row, g = x[n, first:last], grad[n, first:last]
            for f in range(last - first):
                weight[f] += g[f] * (row[f] - mean[n]) * scale[n]
                bias[f] += g[f]
