"""Sums of products of dense rows with weights: every projection, forward and backward.

Products with few or odd numbers of columns are several times slower than their neighbours in the libraries that compute
them; they are computed on full cache lines here, or in bfloat16 where that is asked for.
Letters: ``N`` rows, ``D`` input width, ``O`` output width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outgrow.ops.backend import once
from outgrow.ops.buffers import LARGE_ROWS, LINE, empty, empty_rows, full_lines, with_padding
from outgrow.ops.half import is_half
from outgrow.ops.narrow_products import add_narrow_product, narrow, narrow_product, narrow_weight_gradient

_CHUNK_ROWS = 8192


def affine(*terms: tuple[Tensor, Tensor], bias_O: Tensor | None = None) -> Tensor:
    """``sum of x @ weight over the terms + bias``, in one result.

    Args:
        *terms: Pairs of ``x [N, D]`` and ``weight [D, O]``; ``D`` may differ. ``x`` may be a constant in half
            precision; it is widened chunk by chunk.
        bias_O: ``[O]``; None for none.

    Returns:
        ``[N, O]`` of the weights' type, differentiable in every ``x``, weight and the bias.
    """
    return _Affine.apply(bias_O, *(tensor for term in terms for tensor in term))  # type: ignore[no-any-return, no-untyped-call]


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bias_O: Tensor | None, *terms: Tensor) -> Tensor:
        inputs, weights = terms[::2], terms[1::2]
        ctx.has_bias, ctx.narrow = bias_O is not None, narrow()
        ctx.save_for_backward(*terms)
        product, add = (narrow_product, add_narrow_product) if ctx.narrow else (_product, _add_product)
        y_NO = product(inputs[0], weights[0])
        for x_ND, weight_DO in zip(inputs[1:], weights[1:], strict=True):
            y_NO = add(y_NO, x_ND, weight_DO)
        return y_NO if bias_O is None else y_NO.add_(bias_O)

    @staticmethod
    @once
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor | None, ...]:
        terms, wanted = ctx.saved_tensors, ctx.needs_input_grad
        product, weight_gradient = (
            (narrow_product, narrow_weight_gradient) if ctx.narrow else (_product, _weight_gradient)
        )
        gradients: list[Tensor | None] = [grad_NO.sum(0) if ctx.has_bias and wanted[0] else None]
        for at in range(0, len(terms), 2):
            x_ND, weight_DO = terms[at], terms[at + 1]
            gradients.append(product(grad_NO, weight_DO.T) if wanted[at + 1] else None)
            gradients.append(weight_gradient(x_ND, grad_NO) if wanted[at + 2] else None)
        return tuple(gradients)


def _product(x_ND: Tensor, weight_DO: Tensor) -> Tensor:
    """``x @ weight``; padded with unused columns as `empty_rows` pads."""
    rows, columns = len(x_ND), weight_DO.shape[1]
    if is_half(x_ND.dtype) and x_ND.dtype != weight_DO.dtype:
        return _add_product(empty_rows(rows, (columns,), weight_DO).zero_(), x_ND, weight_DO)
    if rows < LARGE_ROWS or x_ND.device.type != "cpu":
        return x_ND @ weight_DO
    if columns < LINE:
        return torch.mm(x_ND, _widened(weight_DO, LINE))[:, :columns].contiguous()
    out = empty_rows(rows, (columns,), weight_DO)
    stride = full_lines(columns, rows)
    torch.mm(x_ND, _widened(weight_DO, stride), out=with_padding(out))
    return out


def _add_product(y_NO: Tensor, x_ND: Tensor, weight_DO: Tensor) -> Tensor:
    """``y + x @ weight``, written to ``y``."""
    if x_ND.dtype == weight_DO.dtype:
        wide = with_padding(y_NO)
        wide.addmm_(x_ND, _widened(weight_DO, wide.shape[1]))
        return y_NO
    for first in range(0, len(x_ND), _CHUNK_ROWS):
        chunk = slice(first, first + _CHUNK_ROWS)
        y_NO[chunk].addmm_(x_ND[chunk].to(weight_DO.dtype), weight_DO)
    return y_NO


def _weight_gradient(x_ND: Tensor, grad_NO: Tensor) -> Tensor:
    """``x.T @ grad``."""
    if x_ND.dtype != grad_NO.dtype:
        total = torch.zeros(x_ND.shape[1], grad_NO.shape[1], dtype=grad_NO.dtype, device=grad_NO.device)
        for first in range(0, len(x_ND), _CHUNK_ROWS):
            chunk = slice(first, first + _CHUNK_ROWS)
            total.addmm_(x_ND[chunk].to(grad_NO.dtype).T, grad_NO[chunk])
        return total
    columns = grad_NO.shape[1]
    if len(x_ND) < LARGE_ROWS or x_ND.device.type != "cpu":
        return x_ND.T @ grad_NO
    if columns < LINE:
        wide = empty((len(grad_NO), LINE), grad_NO)
        wide[:, columns:] = 0
        wide[:, :columns] = grad_NO
        return (wide.T @ x_ND)[:columns].T
    return (x_ND.T @ with_padding(grad_NO))[:, :columns]


def _widened(weight_DO: Tensor, columns: int) -> Tensor:
    """The weight with columns of zeros after it."""
    missing = columns - weight_DO.shape[1]
    return torch.nn.functional.pad(weight_DO, (0, missing)) if missing else weight_DO
