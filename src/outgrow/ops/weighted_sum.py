"""The weighted sum over in-edges, forward and backward, without a row per edge.

Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``C`` channels of the source, ``K`` weights of an edge,
``F`` columns. Either ``C = K`` (heads), or ``C = 1`` and one source row serves all ``K`` (bases).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.ops.aggregation import Aggregation
from outgrow.ops.backend import array
from outgrow.ops.row_sums import dot_rows, gather_rows, reduce_rows
from outgrow.ops.topology import transpose


class WeightedSum(Aggregation):
    """``out[v, k] = sum over in-edges e of weight[e, k] * src[source of e, k or 0]``."""

    sliceable = True
    additive = True

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate; see `Aggregation`. ``C`` must be 1 or ``K``; without weights ``K = C``."""
        assert weight_EK is None or src_VsCF.shape[1] in (1, weight_EK.shape[1])
        return _WeightedSum.apply(src_VsCF, weight_EK, block.edges)  # type: ignore[no-any-return, no-untyped-call]

    @staticmethod
    def transpose(edges: Edges, weight_EK: Tensor | None, grad_VdKF: Tensor, channels: int) -> Tensor:
        """``[Vs, C, F]``: the gradient of the sources. Reads no source row.

        Args:
            edges: In-edges of the block.
            weight_EK: ``[E, K]`` or None, as given forward.
            grad_VdKF: ``[Vd, K, F]`` gradient of the result.
            channels: ``C``.
        """
        out = torch.empty(edges.num_src, channels, grad_VdKF.shape[2], dtype=grad_VdKF.dtype)
        back = transpose(edges)
        indptr, dst, edge = array(back.indptr), array(back.indices), array(back.edge)
        if weight_EK is not None and channels < weight_EK.shape[1]:
            reduce_rows(indptr, dst, edge, array(weight_EK), array(grad_VdKF), out.numpy())
        else:
            weight = None if weight_EK is None else array(weight_EK)
            gather_rows(indptr, dst, edge, weight, array(grad_VdKF), out.numpy())
        return out


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, src_VsCF: Tensor, weight_EK: Tensor | None, edges: Edges) -> Tensor:
        ctx.edges, ctx.channels = edges, src_VsCF.shape[1]
        weight_trains = weight_EK is not None and weight_EK.requires_grad
        ctx.save_for_backward(src_VsCF if weight_trains else None, weight_EK)
        width = src_VsCF.shape[1] if weight_EK is None else weight_EK.shape[1]
        out = torch.empty(edges.num_dst, width, src_VsCF.shape[2], dtype=src_VsCF.dtype)
        weight = None if weight_EK is None else array(weight_EK)
        gather_rows(array(edges.indptr), array(edges.indices), None, weight, array(src_VsCF), out.numpy())
        return out

    @staticmethod
    def backward(ctx: Any, grad_VdKF: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        src_VsCF, weight_EK = ctx.saved_tensors
        edges: Edges = ctx.edges
        d_src = d_weight = None
        if ctx.needs_input_grad[0]:
            d_src = WeightedSum.transpose(edges, weight_EK, grad_VdKF, ctx.channels)
        if ctx.needs_input_grad[1]:
            d_weight = torch.empty_like(weight_EK)
            indptr, indices = array(edges.indptr), array(edges.indices)
            dot_rows(indptr, indices, array(src_VsCF), array(grad_VdKF), d_weight.numpy())
        return d_src, d_weight, None
