"""The product of a sum of constants, one of them scaled by a trained number: no gradient is as wide as the constants.

Letters: ``N`` rows, ``D`` input width, ``O`` output width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outgrow.ops.backend import once_differentiable
from outgrow.ops.linear import product_functions, uses_bfloat16


def matmul_of_sum(total_ND: Tensor, x_ND: Tensor, scale: Tensor, weight_DO: Tensor) -> Tensor:
    """Return ``(total + scale * x) @ weight``, differentiable in the scale and the weight alone.

    With ``g`` the gradient of the result, that of the weight is ``total.T @ g + scale * (x.T @ g)``, and that of the
    scale the sum of ``(x.T @ g) * weight``.

    Args:
        total_ND: ``[N, D]`` of the weight's type; needs no gradient.
        x_ND: ``[N, D]``, which may be in half precision; needs no gradient.
        scale: One number.
        weight_DO: ``[D, O]``.

    Raises:
        ValueError: A constant needs a gradient, which would be lost.
    """
    if total_ND.requires_grad or x_ND.requires_grad:
        raise ValueError("rows that need a gradient are no constants")
    return _MatmulOfSum.apply(total_ND, x_ND, scale, weight_DO)  # type: ignore[no-any-return, no-untyped-call]


def add_scaled(total_ND: Tensor, x_ND: Tensor, scale: Tensor) -> Tensor:
    """Return ``total + scale * x`` of the type of the total."""
    # One factor per column: torch's sum of a matrix to one gradient depends on the number of threads.
    return torch.addcmul(total_ND, scale.expand(total_ND.shape[1]), x_ND.to(total_ND.dtype))


class _MatmulOfSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total_ND: Tensor, x_ND: Tensor, scale: Tensor, weight_DO: Tensor) -> Tensor:
        # Remembered, since the backward pass may run outside the context that switched bfloat16 on.
        ctx.narrow = uses_bfloat16()
        ctx.save_for_backward(total_ND, x_ND, scale, weight_DO)
        product, _ = product_functions(ctx.narrow)
        # The sum is made again from its terms, which others keep anyway, rather than kept as well.
        return product(add_scaled(total_ND, x_ND, scale), weight_DO)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[None, None, Tensor, Tensor]:
        total_ND, x_ND, scale, weight_DO = ctx.saved_tensors
        _, weight_gradient = product_functions(ctx.narrow)
        of_x_DO = weight_gradient(x_ND, grad_NO)
        # By columns first, as in `add_scaled`.
        grad_scale = (of_x_DO * weight_DO).sum(0).sum()
        return None, None, grad_scale, weight_gradient(total_ND, grad_NO) + scale * of_x_DO
