"""Gradients of the parameters of layer norm. Letters: ``N`` rows, ``F`` columns."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from outgrow.ops.gpu.launch import launch_kernel, num_blocks, tile_shape, triton_kernel

_ROWS, _PARTS = 256, 1024
"""Fewest rows of a part and most parts; independent of the device, so that results are as well."""


def layer_norm_gradients(
    x_NF: Tensor, mean_N: Tensor, scale_N: Tensor, grad_NF: Tensor, d_weight_F: Tensor, d_bias_F: Tensor
) -> None:
    """Compute the gradients of weight and bias from that of the result.

    ``d_weight = sum over rows n of grad[n] * (x[n] - mean[n]) * scale[n]``, ``d_bias = sum of grad[n]``.

    Args:
        x_NF: ``[N, F]`` floating.
        mean_N: ``[N]``.
        scale_N: ``[N]``, one over the standard deviation.
        grad_NF: ``[N, F]``.
        d_weight_F: ``[F]`` float64, written.
        d_bias_F: ``[F]`` float64, written.
    """
    num_rows, columns = x_NF.shape
    rows, width = tile_shape(columns)
    # Each program sums a part in float64 to a row of its own; a second sum over the parts keeps the order
    # fixed.
    rows_of_part = rows * num_blocks(max(_ROWS, num_blocks(num_rows, _PARTS)), rows)
    parts = torch.empty(2, num_blocks(num_rows, rows_of_part), columns, dtype=torch.float64, device=x_NF.device)
    grid = parts.shape[1], num_blocks(columns, width)
    given = x_NF, mean_N, scale_N, grad_NF, *parts, num_rows, rows_of_part
    launch_kernel(_norm_gradient_kernel, grid, *given, SHAPE=(columns,), TILE=(rows, width))
    torch.sum(parts[0], 0, out=d_weight_F)
    torch.sum(parts[1], 0, out=d_bias_F)


@triton_kernel
def _norm_gradient_kernel(
    x: tl.tensor,
    mean: tl.tensor,
    scale: tl.tensor,
    grad: tl.tensor,
    d_weight: tl.tensor,
    d_bias: tl.tensor,
    num_rows: tl.tensor,
    rows_of_part: tl.tensor,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    F: tl.constexpr = SHAPE[0]
    ROWS: tl.constexpr = TILE[0]
    COLUMNS: tl.constexpr = TILE[1]
    part = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = f < F
    weight = tl.zeros([ROWS, COLUMNS], tl.float64)
    bias = tl.zeros([ROWS, COLUMNS], tl.float64)
    first = part * rows_of_part
    last = tl.minimum(first + rows_of_part, num_rows)
    for start in range(first, last, ROWS):
        n = start + tl.arange(0, ROWS)
        given = (n < last)[:, None] & inside[None, :]
        at = n[:, None] * F + f[None, :]
        g = tl.load(grad + at, given, 0)
        centred = tl.load(x + at, given, 0) - tl.load(mean + n, n < last, 0)[:, None]
        weight += (g * centred * tl.load(scale + n, n < last, 0)[:, None]).to(tl.float64)
        bias += g.to(tl.float64)
    tl.store(d_weight + part * F + f, tl.sum(weight, 0), inside)
    tl.store(d_bias + part * F + f, tl.sum(bias, 0), inside)
