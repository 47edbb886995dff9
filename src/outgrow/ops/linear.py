"""`affine`, products in bfloat16, and a shared prefix of rows.

In bfloat16 (8 bits of mantissa) both factors are rounded, and so is the sum of their products over a chunk of
rows. The result has the type of the weight, and so have sums over chunks, biases and later steps; parameters
and rows keep their type.

The matrix libraries are several times slower for few or odd numbers of columns; such products are computed on
full cache lines here. Letters: ``N`` rows, ``D`` input width, ``O`` output width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from outgrow.ops.backend import once_differentiable
from outgrow.ops.kernels.numerics import is_half
from outgrow.ops.memory_pool import LARGE_ROWS, LINE, pad_to_cache_line, pooled_empty, pooled_empty_rows, with_padding

_BFLOAT16_CHUNK_ROWS = 1 << 15
_narrow = False


@contextmanager
def use_bfloat16_matmul(enabled: bool = True) -> Iterator[None]:
    """Compute products of dense rows with weights in bfloat16, in all threads, within the context."""
    global _narrow
    before, _narrow = _narrow, enabled
    try:
        yield
    finally:
        _narrow = before


def uses_bfloat16() -> bool:
    """Whether products are computed in bfloat16."""
    return _narrow


def bfloat16_matmul(x_ND: Tensor, weight_DO: Tensor) -> Tensor:
    """Return ``[N, O]``: ``x @ weight``, of the type of the weight."""
    y_NO = pooled_empty_rows(len(x_ND), (weight_DO.shape[1],), weight_DO)
    # In chunks, so that the rounded copy of the rows stays small.
    factor = weight_DO.bfloat16()
    for rows in _row_chunks(x_ND):
        y_NO[rows] = x_ND[rows].bfloat16() @ factor
    return y_NO


def add_bfloat16_matmul(y_NO: Tensor, x_ND: Tensor, weight_DO: Tensor) -> Tensor:
    """Add ``x @ weight`` to ``y`` in place."""
    factor = weight_DO.bfloat16()
    for rows in _row_chunks(x_ND):
        y_NO[rows] += x_ND[rows].bfloat16() @ factor
    return y_NO


def bfloat16_weight_gradient(x_ND: Tensor, grad_NO: Tensor) -> Tensor:
    """Return ``[D, O]``: ``x.T @ grad``, of the type of the gradient."""
    total = grad_NO.new_zeros(x_ND.shape[1], grad_NO.shape[1])
    for rows in _row_chunks(x_ND):
        total += x_ND[rows].bfloat16().T @ grad_NO[rows].bfloat16()
    return total


def _row_chunks(x_ND: Tensor) -> Iterator[slice]:
    return (slice(first, first + _BFLOAT16_CHUNK_ROWS) for first in range(0, len(x_ND), _BFLOAT16_CHUNK_ROWS))


_CHUNK_ROWS = 8192


def affine(*terms: tuple[Tensor, Tensor], bias_O: Tensor | None = None) -> Tensor:
    """Return the sum of ``x @ weight`` over the terms, plus the bias, as one tensor.

    Args:
        *terms: Pairs of ``x [N, D]`` and ``weight [D, O]``; ``D`` may differ. ``x`` may be a constant in half
            precision; it is widened chunk by chunk.
        bias_O: ``[O]``; None for none.

    Returns:
        ``[N, O]`` of the weights' type, differentiable in every ``x``, weight and the bias.
    """
    return _AffineFunction.apply(bias_O, *(tensor for term in terms for tensor in term))  # type: ignore[no-any-return, no-untyped-call]


class _AffineFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bias_O: Tensor | None, *terms: Tensor) -> Tensor:
        inputs = terms[::2]
        weights = terms[1::2]
        # Remembered, since the backward pass may run outside the context that switched bfloat16 on.
        ctx.has_bias = bias_O is not None
        ctx.narrow = uses_bfloat16()
        ctx.save_for_backward(*terms)
        product, _ = product_functions(ctx.narrow)
        add = sum_function(ctx.narrow)
        y_NO = product(inputs[0], weights[0])
        for x_ND, weight_DO in zip(inputs[1:], weights[1:], strict=True):
            y_NO = add(y_NO, x_ND, weight_DO)
        return y_NO if bias_O is None else y_NO.add_(bias_O)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor | None, ...]:
        terms, wanted = ctx.saved_tensors, ctx.needs_input_grad
        product, weight_gradient = product_functions(ctx.narrow)
        gradients: list[Tensor | None] = [grad_NO.sum(0) if ctx.has_bias and wanted[0] else None]
        for at in range(0, len(terms), 2):
            x_ND, weight_DO = terms[at], terms[at + 1]
            gradients.append(product(grad_NO, weight_DO.T) if wanted[at + 1] else None)
            gradients.append(weight_gradient(x_ND, grad_NO) if wanted[at + 2] else None)
        return tuple(gradients)


def product_functions(narrow: bool) -> tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]:
    """Return what computes ``x @ weight``, and what computes ``x.T @ grad``.

    Args:
        narrow: Whether in bfloat16 (see `uses_bfloat16`). Else ``x`` may be a constant in half precision.
    """
    return (bfloat16_matmul, bfloat16_weight_gradient) if narrow else (_padded_matmul, _weight_gradient)


def sum_function(narrow: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return what adds ``x @ weight`` to ``y`` in place, given ``(y, x, weight)``; see `product_functions`."""
    return add_bfloat16_matmul if narrow else _add_matmul


def _padded_matmul(x_ND: Tensor, weight_DO: Tensor) -> Tensor:
    """Return ``x @ weight`` in the layout of `pooled_empty_rows`."""
    rows, columns = len(x_ND), weight_DO.shape[1]
    if is_half(x_ND.dtype) and x_ND.dtype != weight_DO.dtype:
        return _add_matmul(pooled_empty_rows(rows, (columns,), weight_DO).zero_(), x_ND, weight_DO)
    if rows < LARGE_ROWS or x_ND.device.type != "cpu":
        return x_ND @ weight_DO
    # Pad to a full cache line for the product; narrow results are not kept padded.
    if columns < LINE:
        return torch.mm(x_ND, _pad_columns(weight_DO, LINE))[:, :columns].contiguous()
    out = pooled_empty_rows(rows, (columns,), weight_DO)
    stride = pad_to_cache_line(columns, rows)
    torch.mm(x_ND, _pad_columns(weight_DO, stride), out=with_padding(out))
    return out


def _add_matmul(y_NO: Tensor, x_ND: Tensor, weight_DO: Tensor) -> Tensor:
    """Add ``x @ weight`` to ``y`` in place."""
    if x_ND.dtype == weight_DO.dtype:
        wide = with_padding(y_NO)
        wide.addmm_(x_ND, _pad_columns(weight_DO, wide.shape[1]))
        return y_NO
    for first in range(0, len(x_ND), _CHUNK_ROWS):
        chunk = slice(first, first + _CHUNK_ROWS)
        y_NO[chunk].addmm_(x_ND[chunk].to(weight_DO.dtype), weight_DO)
    return y_NO


def _weight_gradient(x_ND: Tensor, grad_NO: Tensor) -> Tensor:
    """Return ``x.T @ grad``."""
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
        wide = pooled_empty((len(grad_NO), LINE), grad_NO)
        wide[:, columns:] = 0
        wide[:, :columns] = grad_NO
        return (wide.T @ x_ND)[:columns].T
    return (x_ND.T @ with_padding(grad_NO))[:, :columns]


def _pad_columns(weight_DO: Tensor, columns: int) -> Tensor:
    """Return the weight with columns of zeros behind it."""
    missing = columns - weight_DO.shape[1]
    return torch.nn.functional.pad(weight_DO, (0, missing)) if missing else weight_DO


def with_dst_prefix(x_NF: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return ``x`` and its first ``count`` rows; their gradients are added in one pass.

    Args:
        x_NF: ``[N, F]``.
        count: At most ``N``.
    """
    # The gradient of a plain slice would be a tensor of mostly zeros, added in a pass of its own.
    if not x_NF.requires_grad:
        return x_NF, x_NF[:count]
    return _DstPrefix.apply(x_NF, count)  # type: ignore[no-any-return, no-untyped-call]


class _DstPrefix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NF: Tensor, count: int) -> tuple[Tensor, Tensor]:
        # None stays None instead of becoming a tensor of zeros.
        ctx.set_materialize_grads(False)
        ctx.shape = x_NF.shape
        ctx.count = count
        return x_NF.view_as(x_NF), x_NF[:count]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NF: Tensor | None, first_MF: Tensor | None) -> tuple[Tensor | None, None]:
        if grad_NF is None or first_MF is None:
            return grad_NF if first_MF is None else _pad_with_zeros(first_MF, ctx.shape), None
        out = pooled_empty(tuple(ctx.shape), grad_NF)
        torch.add(grad_NF[: ctx.count], first_MF, out=out[: ctx.count])
        out[ctx.count :].copy_(grad_NF[ctx.count :])
        return out, None


def _pad_with_zeros(first_MF: Tensor, shape: torch.Size) -> Tensor:
    out = pooled_empty(tuple(shape), first_MF)
    out[: len(first_MF)] = first_MF
    out[len(first_MF) :] = 0
    return out
