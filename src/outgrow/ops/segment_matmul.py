"""Product of rows by segments, each with a weight of its own: one dense product per segment, no rows copied for later.

Letters: ``N`` rows, ``D`` columns, ``n`` and ``d`` those of a segment, ``O`` output width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outgrow.ops.backend import once_differentiable
from outgrow.ops.linear import product_functions, sum_function, uses_bfloat16
from outgrow.ops.memory_pool import LINE, pooled_empty_rows
from outgrow.ops.row_slots import Slot, make_table


def segment_matmul(
    x_ND: Tensor,
    segments: Sequence[Slot],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor] | None = None,
    added_NO: Tensor | None = None,
) -> Tensor:
    """Return ``[N, O]``: the rows of each segment times its weight, plus its bias; zeros in rows of no segment.

    Args:
        x_ND: ``[N, D]``; a constant may be in half precision.
        segments: Rows and columns of each segment; rows of different segments differ.
        weights: ``[d, O]`` of each segment.
        biases: ``[O]`` of each segment; None for none.
        added_NO: What is added, rows of no segment included; None for nothing.

    Returns:
        ``[N, O]`` of the type of the weights, differentiable in rows, weights, biases and what is added.
    """
    parameters = (*weights, *(biases or ()))
    return _SegmentMatmul.apply(x_ND, tuple(segments), added_NO, *parameters)  # type: ignore[no-any-return, no-untyped-call]


class _SegmentMatmul(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, segments: tuple[Slot, ...], added_NO: Tensor | None, *parameters: Tensor
    ) -> Tensor:
        ctx.segments = segments
        # Remembered, since the backward pass may run outside the context that switched bfloat16 on.
        ctx.narrow = uses_bfloat16()
        weights, biases = parameters[: len(segments)], parameters[len(segments) :]
        # The rows as they came: their parts are gathered again in the backward pass.
        ctx.save_for_backward(x_ND, *weights)
        ctx.has_biases = bool(biases)
        shape = (len(x_ND), weights[0].shape[1])
        whole = [Slot(segment.rows, 0, shape[1]) for segment in segments]
        # Products are added to the copy, so that they take no memory of their own.
        out = make_table(whole, shape, weights[0]) if added_NO is None else _copy_rows(added_NO)
        for index, (segment, weight) in enumerate(zip(segments, weights, strict=True)):
            write = _write_product if added_NO is None else _add_product
            write(out, whole[index], _read_segment(x_ND, segment), weight, ctx.narrow)
            if biases:
                _add_bias(out, segment.rows, biases[index])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, *weights = ctx.saved_tensors
        _, weight_gradient = product_functions(ctx.narrow)
        d_x = make_table(ctx.segments, tuple(x_ND.shape), grad_NO) if ctx.needs_input_grad[0] else None
        d_weights, d_biases = list[Tensor](), list[Tensor]()
        for segment, weight in zip(ctx.segments, weights, strict=True):
            grad = grad_NO[segment.rows]
            d_weights.append(weight_gradient(_read_segment(x_ND, segment), grad))
            if d_x is not None:
                _write_product(d_x, segment, grad, weight.T, ctx.narrow)
            if ctx.has_biases:
                d_biases.append(grad.sum(0))
        return d_x, None, grad_NO if ctx.needs_input_grad[2] else None, *d_weights, *d_biases


def _copy_rows(added_NO: Tensor) -> Tensor:
    return pooled_empty_rows(len(added_NO), (added_NO.shape[1],), added_NO).copy_(added_NO)


def _add_product(out_NO: Tensor, where: Slot, rows_nd: Tensor, weight_dO: Tensor, narrow: bool) -> None:
    """Add ``rows @ weight`` to rows of a table."""
    if isinstance(where.rows, slice):
        sum_function(narrow)(out_NO[where.rows], rows_nd, weight_dO)
    else:
        out_NO[where.rows] += product_functions(narrow)[0](rows_nd, weight_dO)


def _write_product(out_NO: Tensor, where: Slot, rows_nd: Tensor, weight_dO: Tensor, narrow: bool) -> None:
    """Write ``rows @ weight`` to a part of a table; without a copy if its rows are a range of whole cache lines."""
    place = out_NO[:, where.first : where.last]
    direct = isinstance(where.rows, slice) and place.shape[1] % LINE == 0 and rows_nd.dtype == weight_dO.dtype
    if direct and not narrow:
        torch.mm(rows_nd, weight_dO, out=place[where.rows])
    else:
        place[where.rows] = product_functions(narrow)[0](rows_nd, weight_dO)


def _add_bias(out_NO: Tensor, rows: Tensor | slice, bias_O: Tensor) -> None:
    if isinstance(rows, slice):
        out_NO[rows].add_(bias_O)
    else:
        out_NO[rows] += bias_O


def _read_segment(x_ND: Tensor, segment: Slot) -> Tensor:
    """Return ``[n, d]``: the rows of a segment; without a copy if they are a range."""
    part = x_ND[segment.rows]
    return part[:, segment.first : segment.last]
