"""Attention weights: a softmax over the in-edges of each destination, one per head.

Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``K`` heads. Everything here is narrow.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.attention_kernels import add_edges, softmax_rows, softmax_rows_backward
from outgrow.ops.backend import array, once, twinned
from outgrow.ops.buffers import empty
from outgrow.ops.parts import even_parts
from outgrow.ops.topology import transpose


def attention_weight(
    edges: Edges, src_VsK: Tensor, dst_VdK: Tensor, slope: float, edge_EK: Tensor | None = None
) -> Tensor:
    """``softmax over in-edges of leaky_relu(src[source] + dst[destination] + edge)`` (Velickovic et al., ICLR 2018).

    Args:
        edges: In-edges of a block.
        src_VsK: ``[Vs, K]`` score of each source.
        dst_VdK: ``[Vd, K]`` score of each destination.
        slope: Slope of the leaky ReLU below zero.
        edge_EK: ``[E, K]`` score of each edge; None if edges have none.

    Returns:
        ``[E, K]``; sums to 1 over the in-edges of each destination that has any.
    """
    return _Attention.apply(src_VsK, dst_VdK, edge_EK, edges, slope)  # type: ignore[no-any-return, no-untyped-call]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, src_VsK: Tensor, dst_VdK: Tensor, edge_EK: Tensor | None, edges: Edges, slope: float
    ) -> Tensor:
        weight = empty((edges.num_edges, src_VsK.shape[1]), src_VsK)
        softmax(edges.indptr, edges.indices, src_VsK, dst_VdK, slope, edge_EK, weight)
        ctx.edges, ctx.slope = edges, slope
        ctx.save_for_backward(src_VsK, dst_VdK, edge_EK, weight)
        return weight

    @staticmethod
    @once
    def backward(ctx: Any, grad_EK: Tensor) -> tuple[Tensor | None, ...]:
        src_VsK, dst_VdK, edge_EK, weight_EK = ctx.saved_tensors
        edges: Edges = ctx.edges
        d_score = empty(tuple(weight_EK.shape), weight_EK)
        d_dst, d_src = empty(tuple(dst_VdK.shape), dst_VdK), empty(tuple(src_VsK.shape), src_VsK)
        scores = src_VsK, dst_VdK, ctx.slope, edge_EK
        softmax_backward(edges.indptr, edges.indices, *scores, weight_EK, grad_EK, d_score, d_dst)
        back = transpose(edges)
        sum_edges(back.indptr, back.edge, d_score, d_src)
        return d_src, d_dst, d_score if ctx.needs_input_grad[2] else None, None, None


@twinned
def softmax(
    indptr: Tensor,
    indices: Tensor,
    src_VsK: Tensor,
    dst_VdK: Tensor,
    slope: float,
    edge_EK: Tensor | None,
    out_EK: Tensor,
) -> None:
    """What `attention_weight` gives, written to ``out``."""
    ends = array(indptr)
    scores, edge = (array(src_VsK), array(dst_VdK), _of_type(slope, out_EK)), _optional(edge_EK)
    softmax_rows(ends, array(indices), scores, edge, array(out_EK))


@twinned
def softmax_backward(
    indptr: Tensor,
    indices: Tensor,
    src_VsK: Tensor,
    dst_VdK: Tensor,
    slope: float,
    edge_EK: Tensor | None,
    weight_EK: Tensor,
    grad_EK: Tensor,
    d_score_EK: Tensor,
    d_dst_VdK: Tensor,
) -> None:
    """Gradients of each edge's score before the leaky ReLU, and of the destinations', written to the last two.

    ``weight`` is what `softmax` gave, ``grad`` the gradient of it.
    """
    ends = array(indptr)
    scores, edge = (array(src_VsK), array(dst_VdK), _of_type(slope, weight_EK)), _optional(edge_EK)
    given, found = (array(weight_EK), array(grad_EK)), (array(d_score_EK), array(d_dst_VdK))
    softmax_rows_backward(ends, array(indices), scores, edge, *given, *found)


@twinned
def sum_edges(indptr: Tensor, edge: Tensor, values_EK: Tensor, out_MK: Tensor) -> None:
    """``out[m] = sum over edges i of m of values[edge[i]]``, written to ``out``."""
    ends = array(indptr)
    add_edges(even_parts(ends), ends, array(edge), array(values_EK), array(out_MK))


def _of_type(value: float, like: Tensor) -> Any:
    return array(torch.tensor(value, dtype=like.dtype))[()]


def _optional(x: Tensor | None) -> Any:
    return None if x is None else array(x)
