"""Attention weights: a softmax over the in-edges of each destination, one per head.

Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``K`` heads. Everything here is narrow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.backend import array, kernel, prange
from outgrow.ops.topology import transpose


def attention_weight(edges: Edges, src_VsK: Tensor, dst_VdK: Tensor, slope: float) -> Tensor:
    """``softmax over in-edges of leaky_relu(src[source] + dst[destination])`` (Velickovic et al., ICLR 2018).

    Args:
        edges: In-edges of a block.
        src_VsK: ``[Vs, K]`` score of each source.
        dst_VdK: ``[Vd, K]`` score of each destination.
        slope: Slope of the leaky ReLU below zero.

    Returns:
        ``[E, K]``; sums to 1 over the in-edges of each destination that has any.
    """
    return _Attention.apply(src_VsK, dst_VdK, edges, slope)  # type: ignore[no-any-return, no-untyped-call]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, src_VsK: Tensor, dst_VdK: Tensor, edges: Edges, slope: float) -> Tensor:
        weight = torch.empty(edges.num_edges, src_VsK.shape[1], dtype=src_VsK.dtype)
        _softmax(array(edges.indptr), array(edges.indices), array(src_VsK), array(dst_VdK), slope, weight.numpy())
        ctx.edges, ctx.slope = edges, slope
        ctx.save_for_backward(src_VsK, dst_VdK, weight)
        return weight

    @staticmethod
    def backward(ctx: Any, grad_EK: Tensor) -> tuple[Tensor, Tensor, None, None]:
        src_VsK, dst_VdK, weight_EK = ctx.saved_tensors
        edges: Edges = ctx.edges
        d_score, d_dst, d_src = torch.empty_like(weight_EK), torch.empty_like(dst_VdK), torch.empty_like(src_VsK)
        _softmax_backward(
            array(edges.indptr),
            array(edges.indices),
            array(src_VsK),
            array(dst_VdK),
            ctx.slope,
            array(weight_EK),
            array(grad_EK),
            d_score.numpy(),
            d_dst.numpy(),
        )
        back = transpose(edges)
        _sum_edges(array(back.indptr), array(back.edge), d_score.numpy(), d_src.numpy())
        return d_src, d_dst, None, None


@kernel
def _softmax(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    src: NDArray[Any],
    dst: NDArray[Any],
    slope: float,
    out: NDArray[Any],
) -> None:
    for v in prange(dst.shape[0]):
        first, last = indptr[v], indptr[v + 1]
        for k in range(dst.shape[1]):
            top = -np.inf
            for e in range(first, last):
                score = src[indices[e], k] + dst[v, k]
                score = score if score > 0 else score * slope
                out[e, k] = score
                top = max(top, score)
            total = 0.0
            for e in range(first, last):
                value = np.exp(out[e, k] - top)
                out[e, k] = value
                total += value
            for e in range(first, last):
                out[e, k] /= total


@kernel
def _softmax_backward(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    src: NDArray[Any],
    dst: NDArray[Any],
    slope: float,
    weight: NDArray[Any],
    grad: NDArray[Any],
    d_score: NDArray[Any],
    d_dst: NDArray[Any],
) -> None:
    for v in prange(dst.shape[0]):
        first, last = indptr[v], indptr[v + 1]
        for k in range(dst.shape[1]):
            mean = 0.0
            for e in range(first, last):
                mean += weight[e, k] * grad[e, k]
            total = 0.0
            for e in range(first, last):
                value = weight[e, k] * (grad[e, k] - mean)
                if src[indices[e], k] + dst[v, k] <= 0:
                    value *= slope
                d_score[e, k] = value
                total += value
            d_dst[v, k] = total


@kernel
def _sum_edges(indptr: NDArray[np.int64], edge: NDArray[Any], values: NDArray[Any], out: NDArray[Any]) -> None:
    for u in prange(out.shape[0]):
        for k in range(out.shape[1]):
            total = 0.0
            for i in range(indptr[u], indptr[u + 1]):
                total += values[edge[i], k]
            out[u, k] = total
