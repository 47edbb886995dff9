"""Attention weights: a softmax over the in-edges of each destination, one per head.

Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``K`` heads. Everything here is narrow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.backend import array, kernel, prange
from outgrow.ops.row_sums import even_parts
from outgrow.ops.topology import transpose

Array = NDArray[Any]


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
        heads = src_VsK.shape[1]
        weight = torch.empty(edges.num_edges, heads, dtype=src_VsK.dtype)
        indptr, indices = array(edges.indptr), array(edges.indices)
        slope_of_type = array(torch.tensor(slope, dtype=src_VsK.dtype))[()]
        _softmax_of(heads)(
            even_parts(indptr), indptr, indices, array(src_VsK), array(dst_VdK), slope_of_type, weight.numpy()
        )
        ctx.edges, ctx.slope = edges, slope_of_type
        ctx.save_for_backward(src_VsK, dst_VdK, weight)
        return weight

    @staticmethod
    def backward(ctx: Any, grad_EK: Tensor) -> tuple[Tensor, Tensor, None, None]:
        src_VsK, dst_VdK, weight_EK = ctx.saved_tensors
        edges: Edges = ctx.edges
        d_score, d_dst, d_src = torch.empty_like(weight_EK), torch.empty_like(dst_VdK), torch.empty_like(src_VsK)
        indptr = array(edges.indptr)
        _softmax_backward_of(weight_EK.shape[1])(
            even_parts(indptr),
            indptr,
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
        indptr = array(back.indptr)
        _sum_edges(even_parts(indptr), indptr, array(back.edge), d_score.numpy(), d_src.numpy())
        return d_src, d_dst, None, None


@cache
def _softmax_of(heads: int) -> Callable[..., None]:
    @kernel
    def softmax(parts: Array, indptr: Array, indices: Array, src: Array, dst: Array, slope: Any, out: Array) -> None:
        for part in prange(len(parts) - 1):
            top, total = np.empty(heads, out.dtype), np.empty(heads, out.dtype)
            for v in range(parts[part], parts[part + 1]):
                first, last = indptr[v], indptr[v + 1]
                top[:], total[:] = -np.inf, 0
                for e in range(first, last):
                    for k in range(heads):
                        score = src[indices[e], k] + dst[v, k]
                        score = max(score, score * slope) if slope < 1 else min(score, score * slope)
                        out[e, k] = score
                        top[k] = max(top[k], score)
                for e in range(first, last):
                    for k in range(heads):
                        value = np.exp(out[e, k] - top[k])
                        out[e, k] = value
                        total[k] += value
                for e in range(first, last):
                    for k in range(heads):
                        out[e, k] /= total[k]

    return softmax


@cache
def _softmax_backward_of(heads: int) -> Callable[..., None]:
    @kernel
    def softmax_backward(
        parts: Array,
        indptr: Array,
        indices: Array,
        src: Array,
        dst: Array,
        slope: Any,
        weight: Array,
        grad: Array,
        d_score: Array,
        d_dst: Array,
    ) -> None:
        for part in prange(len(parts) - 1):
            mean = np.empty(heads, weight.dtype)
            for v in range(parts[part], parts[part + 1]):
                first, last = indptr[v], indptr[v + 1]
                mean[:] = 0
                for e in range(first, last):
                    for k in range(heads):
                        mean[k] += weight[e, k] * grad[e, k]
                d_dst[v] = 0
                for e in range(first, last):
                    for k in range(heads):
                        value = weight[e, k] * (grad[e, k] - mean[k])
                        below = src[indices[e], k] + dst[v, k] <= 0
                        value = value * slope if below else value
                        d_score[e, k] = value
                        d_dst[v, k] += value

    return softmax_backward


@kernel
def _sum_edges(parts: Array, indptr: Array, edge: Array, values: Array, out: Array) -> None:
    for part in prange(len(parts) - 1):
        for u in range(parts[part], parts[part + 1]):
            out[u] = 0
            for i in range(indptr[u], indptr[u + 1]):
                for k in range(out.shape[1]):
                    out[u, k] += values[edge[i], k]
