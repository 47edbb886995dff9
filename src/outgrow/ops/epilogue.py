"""Fused epilogue of a layer: bias, layer norm, activation, residual, dropout.

Letters: ``N`` rows, ``F`` columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import as_numpy, gpu_dispatch, once_differentiable, parallel_kernel, prange
from outgrow.ops.epilogue_kernels import (
    BIAS,
    ELU,
    NORM_BIAS,
    NORM_WEIGHT,
    RELU,
    EpilogueOperands,
    EpilogueSteps,
    epilogue_rows,
    epilogue_rows_backward,
)
from outgrow.ops.kernels.work_split import PARTS
from outgrow.ops.memory_pool import as_input_rows, as_output_rows, pooled_empty_rows
from outgrow.ops.rng import dropout, dropout_scale, dropout_threshold


def layer_norm(x_NF: Tensor, weight_F: Tensor, bias_F: Tensor, eps: float) -> Tensor:
    """Compute ``(x - mean) / sqrt(variance + eps) * weight + bias`` of each row (Ba, Kiros & Hinton, 2016).

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
    @once_differentiable
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x_NF, mean_N, scale_N, weight_F, bias_F = ctx.saved_tensors
        # Torch sums the parameters' gradients in an order that depends on its number of threads: take only
        # the rows' gradient from it, and sum the others in a fixed order.
        d_x = torch.ops.aten.native_layer_norm_backward(
            grad_NF, x_NF, weight_F.shape, mean_N, scale_N, weight_F, bias_F, [True, False, False]
        )[0]
        d_weight, d_bias = (x_NF.new_empty(x_NF.shape[1], dtype=torch.float64) for _ in range(2))
        layer_norm_gradients(x_NF, mean_N.flatten(), scale_N.flatten(), grad_NF, d_weight, d_bias)
        return d_x, d_weight.to(weight_F.dtype), d_bias.to(bias_F.dtype), None


@gpu_dispatch
def layer_norm_gradients(
    x_NF: Tensor, mean_N: Tensor, scale_N: Tensor, grad_NF: Tensor, d_weight_F: Tensor, d_bias_F: Tensor
) -> None:
    """Compute the gradients of weight and bias from that of the result, into the last two, which are float64.

    ``scale_N`` is one over the standard deviation of each row.
    """
    sums = np.zeros((2, PARTS, x_NF.shape[1]))
    _sum_norm_gradients(as_numpy(x_NF), as_numpy(mean_N), as_numpy(scale_N), as_numpy(grad_NF), *sums)
    for total_F, sum_PF in zip((d_weight_F, d_bias_F), sums, strict=True):
        as_numpy(total_F)[:] = sum_PF.sum(0)


@parallel_kernel
def _sum_norm_gradients(
    x: NDArray[Any],
    mean: NDArray[Any],
    scale: NDArray[Any],
    grad: NDArray[Any],
    d_weight: NDArray[np.float64],
    d_bias: NDArray[np.float64],
) -> None:
    count = len(x)
    # A fixed number of parts, added in order by the caller: the number of threads changes no digit.
    for part in prange(PARTS):
        for n in range(count * part // PARTS, count * (part + 1) // PARTS):
            for f in range(x.shape[1]):
                d_weight[part, f] += grad[n, f] * (x[n, f] - mean[n]) * scale[n]
                d_bias[part, f] += grad[n, f]


Activation = Callable[[Tensor], Tensor]

_KNOWN: dict[Activation | None, int] = {
    None: 0,
    torch.relu: RELU,
    torch.nn.functional.relu: RELU,
    torch.nn.functional.elu: ELU,
}


class LayerNormSpec(NamedTuple):
    """Layer norm: ``weight [F]``, ``bias [F]`` and the number that is added to the variance."""

    weight: Tensor
    bias: Tensor
    eps: float


class DropoutSpec(NamedTuple):
    """Keyed dropout: global ids of the rows ``[N]``, key and probability; see `outgrow.ops.rng.dropout`."""

    nodes: Tensor
    key: int
    p: float


def epilogue(
    y_NF: Tensor,
    *,
    bias_F: Tensor | None = None,
    norm: LayerNormSpec | None = None,
    activation: Activation | None = None,
    residual_NF: Tensor | None = None,
    drop: DropoutSpec | None = None,
) -> Tensor:
    """Compute ``dropout(activation(norm(y + bias)) + residual)``, without the steps that are None.

    Takes one pass forward and one backward on a CPU if the activation is None, ReLU or ELU; else one pass per
    step.

    Args:
        y_NF: ``[N, F]`` floating.
        bias_F: ``[F]``.
        norm: Normalises each row.
        activation: Element-wise.
        residual_NF: ``[N, F]``.
        drop: Zeroes elements.

    Returns:
        ``[N, F]``, differentiable in ``y``, the bias, the norm's parameters and the residual.

    Raises:
        ValueError: Shapes do not match.
    """
    _validate_shapes(y_NF, bias_F, norm, residual_NF, drop)
    if drop is not None and drop.p == 0:
        drop = None
    if y_NF.device.type == "cpu" and is_fused_activation(activation):
        steps = EpilogueSteps(
            bias_F is not None, norm is not None, _KNOWN[activation], residual_NF is not None, drop is not None
        )
        if steps.num_active == 0:
            return y_NF
        weight, shift, eps = norm or (None, None, 0.0)
        how = _EpilogueConfig(steps, eps, drop)
        return _FusedEpilogue.apply(y_NF, bias_F, weight, shift, residual_NF, how)  # type: ignore[no-any-return, no-untyped-call]
    if bias_F is not None:
        y_NF = y_NF + bias_F
    if norm is not None:
        y_NF = layer_norm(y_NF, norm.weight, norm.bias, norm.eps)
    if activation is not None:
        y_NF = activation(y_NF)
    if residual_NF is not None:
        y_NF = y_NF + residual_NF
    return y_NF if drop is None else dropout(y_NF, drop.nodes, drop.key, drop.p)


def _validate_shapes(
    y_NF: Tensor,
    bias_F: Tensor | None,
    norm: LayerNormSpec | None,
    residual_NF: Tensor | None,
    drop: DropoutSpec | None,
) -> None:
    rows, columns = y_NF.shape
    given = {
        "bias": (bias_F, (columns,)),
        "weight of the norm": (norm and norm.weight, (columns,)),
        "bias of the norm": (norm and norm.bias, (columns,)),
        "residual": (residual_NF, (rows, columns)),
        "ids of the rows": (drop and drop.nodes, (rows,)),
    }
    for name, (tensor, shape) in given.items():
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"the {name} must have shape {list(shape)}, got {list(tensor.shape)}")


def is_fused_activation(activation: Activation | None) -> bool:
    """Whether `epilogue` takes a single pass on a CPU with this activation."""
    return activation in _KNOWN


class _EpilogueConfig(NamedTuple):
    """Arguments of an epilogue without gradients."""

    steps: EpilogueSteps
    eps: float
    drop: DropoutSpec | None


class _FusedEpilogue(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y_NF: Tensor,
        bias_F: Tensor | None,
        weight_F: Tensor | None,
        shift_F: Tensor | None,
        residual_NF: Tensor | None,
        how: _EpilogueConfig,
    ) -> Tensor:
        out = pooled_empty_rows(len(y_NF), (y_NF.shape[1],), y_NF)
        ctx.how = how
        steps = how.steps
        # Keep whichever tensor is enough for the derivatives. The result is alive anyway, as input of the
        # next layer.
        needed = out if steps.reads_result else y_NF if steps.norm or steps.activation else None
        ctx.save_for_backward(needed, bias_F, weight_F, shift_F)
        operands = _kernel_operands((bias_F, weight_F, shift_F), how, y_NF.dtype)
        y = as_input_rows(y_NF)
        residual = y if residual_NF is None else as_input_rows(residual_NF)
        epilogue_rows(y, steps, operands, residual, y_NF.shape[1], as_output_rows(out))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor | None, ...]:
        saved, *parameters = ctx.saved_tensors
        steps: EpilogueSteps = ctx.how.steps
        # The result is a plain sum of its terms, so their gradients need no kernel.
        if not (steps.norm or steps.activation or steps.drop):
            d_bias = grad_NF.sum(0) if steps.bias else None
            return grad_NF, d_bias, None, None, grad_NF if steps.residual else None, None
        rows, columns = grad_NF.shape
        d_y = pooled_empty_rows(rows, (columns,), grad_NF)
        # Dropout is the last step, so with it the residual's gradient differs from the result's.
        own_residual = steps.residual and steps.drop
        d_residual = pooled_empty_rows(rows, (columns,), grad_NF) if own_residual else grad_NF.new_empty(0, 0)
        sums = torch.zeros(PARTS, 3, columns if steps.norm or steps.bias else 0, dtype=torch.float64)
        operands = _kernel_operands(tuple(parameters), ctx.how, grad_NF.dtype)
        grad = as_input_rows(grad_NF)
        given = grad if saved is None else as_input_rows(saved)
        outputs = as_output_rows(d_y), as_output_rows(d_residual), sums.numpy()
        epilogue_rows_backward(given, steps.reads_result, steps, operands, grad, columns, *outputs)
        total = sums.sum(0).to(grad_NF.dtype)
        return (
            d_y,
            total[BIAS] if steps.bias else None,
            total[NORM_WEIGHT] if steps.norm else None,
            total[NORM_BIAS] if steps.norm else None,
            (d_residual if steps.drop else grad_NF) if steps.residual else None,
            None,
        )


def _kernel_operands(
    parameters: tuple[Tensor | None, ...], how: _EpilogueConfig, dtype: torch.dtype
) -> EpilogueOperands:
    # Empty arrays rather than None: with one type for all combinations of steps the kernel is compiled once.
    nothing = torch.empty(0, dtype=dtype)
    bias, weight, shift = (as_numpy(nothing if given is None else given) for given in parameters)
    nodes, key, p = how.drop or DropoutSpec(torch.empty(0, dtype=torch.int64), 0, 0.0)
    limit, scale = dropout_threshold(p), dropout_scale(p, dtype)
    return EpilogueOperands(
        bias, weight, shift, bias.dtype.type(how.eps), as_numpy(nodes), np.uint64(key), limit, scale
    )
