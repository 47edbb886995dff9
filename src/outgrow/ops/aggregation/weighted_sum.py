"""Weighted sum over in-edges, forward and backward, without a row per edge.

Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``C`` channels of the source, ``K`` weights of an
edge, ``F`` columns. Either ``C = K`` (heads), or ``C = 1`` and one source row serves all ``K`` (bases).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.ops.aggregation.base import Aggregation
from outgrow.ops.aggregation.spmm import sddmm_dot, spmm, spmm_backward_fused, spmm_sum_heads
from outgrow.ops.backend import once_differentiable
from outgrow.ops.csc import cached_transpose
from outgrow.ops.kernels.numerics import accumulate_dtype, is_half
from outgrow.ops.memory_pool import pad_to_cache_line, pooled_empty, pooled_empty_rows, with_padding


class WeightedSum(Aggregation):
    """``out[v, k] = sum over in-edges e of weight[e, k] * src[source of e, k or 0]``."""

    sliceable = True
    additive = True

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate; see `Aggregation`. ``C`` must be 1 or ``K``; without weights ``K = C``.

        Constant sources may be stored in half precision; then weights and result are float32.
        """
        assert weight_EK is None or src_VsCF.shape[1] in (1, weight_EK.shape[1])
        return _WeightedSum.apply(src_VsCF, weight_EK, block.edges)  # type: ignore[no-any-return, no-untyped-call]

    @staticmethod
    def source_gradient(
        edges: Edges, weight_EK: Tensor | None, grad_VdKF: Tensor, channels: int, *, into: Tensor | None = None
    ) -> Tensor:
        """Return ``[Vs, C, F]``: the gradient of the sources. Reads no source row.

        Args:
            edges: In-edges of the block.
            weight_EK: ``[E, K]`` or None, as in the forward pass.
            grad_VdKF: ``[Vd, K, F]`` gradient of the result.
            channels: ``C``.
            into: ``[Vs, C, F]`` to add the gradient to, laid out as by `pooled_empty_rows`; None for a new
                tensor.
        """
        back = cached_transpose(edges)
        columns = grad_VdKF.shape[2]
        # One source row served all weights of an edge, so its gradient is a sum over them.
        if weight_EK is not None and channels < weight_EK.shape[1]:
            out = pooled_empty_rows(edges.num_src, (channels, columns), grad_VdKF)
            spmm_sum_heads(back.indptr, back.indices, back.edge, weight_EK, grad_VdKF, out)
            return out if into is None else into.add_(out)
        out = pooled_empty_rows(edges.num_src, (channels, columns), grad_VdKF) if into is None else into
        given = back.indptr, back.indices, back.edge, weight_EK, _pad_rows(grad_VdKF)
        spmm(*given, out, add=into is not None)
        return out


def sum_weighted_rows(src_VsCF: Tensor, weight_EK: Tensor, edges: Edges) -> Tensor:
    """Return ``[Vd, K, F]``: the sum of `WeightedSum` over these edges."""
    return _WeightedSum.apply(src_VsCF, weight_EK, edges)  # type: ignore[no-any-return, no-untyped-call]


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, src_VsCF: Tensor, weight_EK: Tensor | None, edges: Edges) -> Tensor:
        if is_half(src_VsCF.dtype) and src_VsCF.requires_grad:
            raise TypeError("rows in half precision are constants: they have no gradient")
        ctx.edges = edges
        ctx.channels = src_VsCF.shape[1]
        # Only the gradient of the weights reads the sources: with constant weights they can be freed.
        weight_trains = weight_EK is not None and weight_EK.requires_grad
        ctx.save_for_backward(src_VsCF if weight_trains else None, weight_EK)
        width = src_VsCF.shape[1] if weight_EK is None else weight_EK.shape[1]
        out = pooled_empty_rows(edges.num_dst, (width, src_VsCF.shape[2]), src_VsCF, accumulate_dtype(src_VsCF.dtype))
        spmm(edges.indptr, edges.indices, None, weight_EK, src_VsCF, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_VdKF: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        src_VsCF, weight_EK = ctx.saved_tensors
        edges: Edges = ctx.edges
        wants_src, wants_weight, _ = ctx.needs_input_grad
        if not wants_weight:
            return (
                WeightedSum.source_gradient(edges, weight_EK, grad_VdKF, ctx.channels) if wants_src else None,
                None,
                None,
            )
        d_weight = pooled_empty(tuple(weight_EK.shape), weight_EK)
        if not wants_src:
            sddmm_dot(edges.indptr, edges.indices, src_VsCF, grad_VdKF, d_weight)
            return None, d_weight, None
        # Both gradients: one pass over the transposed edges reads each gradient row once for the two of them.
        back = cached_transpose(edges)
        d_src = pooled_empty_rows(edges.num_src, tuple(src_VsCF.shape[1:]), grad_VdKF)
        spmm_backward_fused(back.indptr, back.indices, back.edge, weight_EK, grad_VdKF, src_VsCF, d_src, d_weight)
        return d_src, d_weight, None


def _pad_rows(x_VKF: Tensor) -> Tensor:
    """Return the same rows in the layout of `pooled_empty_rows`."""
    rows = len(x_VKF)
    columns = x_VKF[0].numel() if len(x_VKF) else 0
    if x_VKF.device.type != "cpu" or pad_to_cache_line(columns, rows) == columns or x_VKF.stride(0) != columns:
        return x_VKF
    out = pooled_empty_rows(rows, tuple(x_VKF.shape[1:]), x_VKF)
    # The kernels sum the padding too, and uninitialised bytes may be NaN or denormal, which slows arithmetic.
    with_padding(out.flatten(1))[:, columns:] = 0
    return out.copy_(x_VKF)
