"""Layer norm whose gradients do not depend on the number of threads, as those of torch's own do.

Letters: ``N`` rows, ``F`` columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import array, kernel, once, prange, twinned
from outgrow.ops.parts import PARTS


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
    @once
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x_NF, mean_N, scale_N, weight_F, bias_F = ctx.saved_tensors
        d_x = torch.ops.aten.native_layer_norm_backward(
            grad_NF, x_NF, weight_F.shape, mean_N, scale_N, weight_F, bias_F, [True, False, False]
        )[0]
        d_weight, d_bias = (x_NF.new_empty(x_NF.shape[1], dtype=torch.float64) for _ in range(2))
        norm_gradients(x_NF, mean_N.flatten(), scale_N.flatten(), grad_NF, d_weight, d_bias)
        return d_x, d_weight.to(weight_F.dtype), d_bias.to(bias_F.dtype), None


@twinned
def norm_gradients(
    x_NF: Tensor, mean_N: Tensor, scale_N: Tensor, grad_NF: Tensor, d_weight_F: Tensor, d_bias_F: Tensor
) -> None:
    """Gradients of weight and bias from that of the result, written to the last two, which are float64.

    ``scale_N`` is one over the deviation of each row.
    """
    sums = np.zeros((2, PARTS, x_NF.shape[1]))
    _sum_rows(array(x_NF), array(mean_N), array(scale_N), array(grad_NF), *sums)
    for total_F, sum_PF in zip((d_weight_F, d_bias_F), sums, strict=True):
        array(total_F)[:] = sum_PF.sum(0)


@kernel
def _sum_rows(
    x: NDArray[Any],
    mean: NDArray[Any],
    scale: NDArray[Any],
    grad: NDArray[Any],
    d_weight: NDArray[np.float64],
    d_bias: NDArray[np.float64],
) -> None:
    count = len(x)
    for part in prange(PARTS):
        for n in range(count * part // PARTS, count * (part + 1) // PARTS):
            for f in range(x.shape[1]):
                d_weight[part, f] += grad[n, f] * (x[n, f] - mean[n]) * scale[n]
                d_bias[part, f] += grad[n, f]
