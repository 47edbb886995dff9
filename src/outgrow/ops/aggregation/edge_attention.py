"""Attention whose scores need the values of both ends: of GATv2, and by dot products of queries and keys.

Scores, their softmax over the in-edges of a destination and the weighted sum are one aggregation, which needs all
in-edges and all columns at once. A row per edge is as wide as the heads, never as wide as their columns. Letters:
``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``I`` inputs that features of edges are, ``K`` heads, ``F`` columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from outgrow.core.block import Block, Edges
from outgrow.ops.aggregation.attention import edge_softmax, edge_softmax_backward
from outgrow.ops.aggregation.base import Aggregation
from outgrow.ops.aggregation.edge_relu import leaky_scores
from outgrow.ops.aggregation.spmm import sddmm_dot, spmm
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.backend import once_differentiable
from outgrow.ops.csc import cached_transpose
from outgrow.ops.edge_feature_sums import edge_feature_dot, edge_feature_sum
from outgrow.ops.linear import affine
from outgrow.ops.memory_pool import pooled_empty, pooled_empty_rows
from outgrow.ops.rng import dropout_edges, fold_in

# Sub-key of the attention's dropout, so that it is independent of the draws of the epilogue.
_ATTENTION = 1
_SLOPE = 0.2


class DynamicAttention(nn.Module, Aggregation):
    """``out[v, k] = sum over in-edges e of softmax of (a[k] . leaky_relu(src[u, k] + dst[v, k] + e W_k)) * src[u, k]``.

    The softmax is over the in-edges of ``v``, ``u`` is the source of the edge; the slope is 0.2. Brody, Alon & Yahav,
    How attentive are graph attention networks?, ICLR 2022.

    Args:
        heads: ``K``.
        columns: ``F``.
        edge_dim: ``I``; 0 if features of edges are not read.
        dropout: Probability of dropping an edge of a head, in [0, 1).
    """

    sliceable = False
    additive = False

    def __init__(self, heads: int, columns: int, *, edge_dim: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = nn.Parameter(torch.empty(heads, columns))
        self.edge_weight = nn.Parameter(torch.empty(edge_dim, heads * columns)) if edge_dim else None
        self.dropout = dropout
        for weight in (self.attention, self.edge_weight):
            if weight is not None:
                nn.init.xavier_uniform_(weight)

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate with ``K`` channels on both sides, and no weights of others; see `Aggregation`."""
        assert dst_VdCF is not None
        assert weight_EK is None
        score_EK = leaky_scores(block.edges, src_VsCF, dst_VdCF, self.edge_weight, self.attention, _SLOPE)
        alpha_EK = drop_attention(block, softmax_over_in_edges(block.edges, score_EK), self.dropout)
        return WeightedSum()(block, src_VsCF, None, alpha_EK)


class DotProductAttention(nn.Module, Aggregation):
    """``out[v, k] = sum over in-edges e of alpha[e, k] * (value[u, k] + e W_k)``, ``u`` the source of the edge.

    ``alpha`` is the softmax over the in-edges of ``v`` of ``query[v, k] . (key[u, k] + e W_k) / sqrt(F)``. Shi et al.,
    Masked label prediction: unified message passing model for semi-supervised classification, IJCAI 2021.
    ``q . (e W)`` is ``e . (W q)``, and the sum of ``alpha * (e W)`` is ``(sum of alpha * e) W``: both are rows of
    destinations as wide as the features of an edge.

    Args:
        heads: ``K``.
        columns: ``F``.
        edge_dim: ``I``; 0 if features of edges are not read.
        dropout: Probability of dropping an edge of a head, in [0, 1).
    """

    sliceable = False
    additive = False

    def __init__(self, heads: int, columns: int, *, edge_dim: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.edge_weight = nn.Parameter(torch.empty(edge_dim, heads * columns)) if edge_dim else None
        self.heads = heads
        self.edge_dim = edge_dim
        self.dropout = dropout
        if self.edge_weight is not None:
            nn.init.xavier_uniform_(self.edge_weight)

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate keys, then values, ``2 K`` channels, with queries of destinations; see `Aggregation`."""
        assert dst_VdCF is not None
        assert weight_EK is None
        edges = block.edges
        key_VsKF, value_VsKF = (rows.contiguous() for rows in torch.split(src_VsCF, self.heads, 1))
        query_VdKF = dst_VdCF * dst_VdCF.shape[2] ** -0.5
        score_EK = edge_dot(edges, key_VsKF, query_VdKF)
        if self.edge_weight is None:
            alpha_EK = drop_attention(block, softmax_over_in_edges(edges, score_EK), self.dropout)
            return WeightedSum()(block, value_VsKF, None, alpha_EK)
        weights_IF = torch.split(self.edge_weight, value_VsKF.shape[2], 1)
        folded = [affine((query_VdKF[:, k], weight_IF.T)) for k, weight_IF in enumerate(weights_IF)]
        score_EK = score_EK + edge_feature_dot(edges, torch.stack(folded, 1))
        alpha_EK = drop_attention(block, softmax_over_in_edges(edges, score_EK), self.dropout)
        sum_VdKI = edge_feature_sum(edges, alpha_EK, self.edge_dim)
        of_edges = [affine((sum_VdKI[:, k], weight_IF)) for k, weight_IF in enumerate(weights_IF)]
        return WeightedSum()(block, value_VsKF, None, alpha_EK) + torch.stack(of_edges, 1)


def edge_dot(edges: Edges, src_VsKF: Tensor, dst_VdKF: Tensor) -> Tensor:
    """Return ``[E, K]``: the dot products of the rows of both ends of each edge."""
    return _EdgeDot.apply(src_VsKF, dst_VdKF, edges)  # type: ignore[no-any-return, no-untyped-call]


def softmax_over_in_edges(edges: Edges, score_EK: Tensor) -> Tensor:
    """Return ``[E, K]``: the softmax of scores over the in-edges of each destination."""
    return _SoftmaxOverInEdges.apply(score_EK, edges)  # type: ignore[no-any-return, no-untyped-call]


def drop_attention(block: Block, alpha_EK: Tensor, probability: float) -> Tensor:
    """Return ``[E, K]``: attention, with dropout if ``block.key`` is not None."""
    if block.key is None or probability == 0:
        return alpha_EK
    # Drawn by edge id, so the mask of an edge does not depend on the block it is in.
    return dropout_edges(alpha_EK, block.edge_ids, block.first_edge, fold_in(block.key, _ATTENTION), probability)


class _SoftmaxOverInEdges(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, score_EK: Tensor, edges: Edges) -> Tensor:
        ctx.edges = edges
        weight = pooled_empty(tuple(score_EK.shape), score_EK)
        # The kernel adds scores of both ends, which are zero, and a leaky ReLU of slope 1 changes nothing.
        src, dst = (score_EK.new_zeros(count, score_EK.shape[1]) for count in (edges.num_src, edges.num_dst))
        edge_softmax(edges.indptr, edges.indices, src, dst, 1.0, score_EK, weight)
        ctx.save_for_backward(weight)
        return weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_EK: Tensor) -> tuple[Tensor, None]:
        (weight_EK,) = ctx.saved_tensors
        edges: Edges = ctx.edges
        src, dst = (weight_EK.new_zeros(count, weight_EK.shape[1]) for count in (edges.num_src, edges.num_dst))
        d_score = pooled_empty(tuple(weight_EK.shape), weight_EK)
        edge_softmax_backward(
            edges.indptr, edges.indices, src, dst, 1.0, None, weight_EK, grad_EK, d_score, torch.empty_like(dst)
        )
        return d_score, None


class _EdgeDot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, src_VsKF: Tensor, dst_VdKF: Tensor, edges: Edges) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(src_VsKF, dst_VdKF)
        out = src_VsKF.new_empty(edges.num_edges, src_VsKF.shape[1])
        sddmm_dot(edges.indptr, edges.indices, src_VsKF, dst_VdKF, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_EK: Tensor) -> tuple[Tensor, Tensor, None]:
        src_VsKF, dst_VdKF = ctx.saved_tensors
        edges: Edges = ctx.edges
        back = cached_transpose(edges)
        d_src = pooled_empty_rows(edges.num_src, tuple(src_VsKF.shape[1:]), src_VsKF)
        d_dst = pooled_empty_rows(edges.num_dst, tuple(dst_VdKF.shape[1:]), dst_VdKF)
        spmm(edges.indptr, edges.indices, None, grad_EK, src_VsKF, d_dst)
        spmm(back.indptr, back.indices, back.edge, grad_EK, dst_VdKF, d_src)
        return d_src, d_dst, None
