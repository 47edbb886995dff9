"""Sum over in-edges of source rows, each scaled by every feature of its edge, on a GPU: chunks of edges."""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.ops.edge_features import EdgeFeatures, dense_edge_features
from outgrow.ops.gpu.edge_chunks import edge_chunks
from outgrow.ops.gpu.spmm import spmm, spmm_sum_heads


def outer_sum(
    indptr: Tensor,
    indices: Tensor,
    features: EdgeFeatures,
    src_VsF: Tensor,
    weight_E1: Tensor | None,
    out_VdJF: Tensor,
) -> None:
    """Compute ``out[v, i] = sum over in-edges e of weight[e] * features[e, i] * src[u]``, ``features[e, I] = 1``.

    Args:
        indptr: ``[Vd + 1]`` int64.
        indices: ``[E]`` int32 or int64, source of each edge.
        features: ``[E, De]`` features that are ``I`` inputs.
        src_VsF: ``[Vs, F]`` of any floating type.
        weight_E1: ``[E, 1]``; None if all are 1.
        out_VdJF: ``[Vd, I + 1, F]``, written.
    """
    out_VdJF.zero_()
    scales = out_VdJF.shape[1]
    for chunk in edge_chunks(indptr, len(indices), scales):
        weight = None if weight_E1 is None else weight_E1[chunk.edges]
        scale_NJ = _scale_rows(features, features.values[chunk.edges], weight, scales, out_VdJF.dtype)
        given = chunk.indptr, indices[chunk.edges], None, scale_NJ, src_VsF[:, None]
        spmm(*given, out_VdJF[chunk.rows], add=True)


def outer_grad_src(
    indptr: Tensor,
    indices: Tensor,
    edge: Tensor,
    features: EdgeFeatures,
    grad_VdJF: Tensor,
    weight_E1: Tensor | None,
    out_VsF: Tensor,
) -> None:
    """Compute the gradient of the sources, ``[Vs, F]``, over the out-edges of each.

    Args:
        indptr: ``[Vs + 1]`` int64.
        indices: ``[E]`` int32 or int64, destination of each out-edge.
        edge: ``[E]`` int32 or int64, position of each out-edge among the in-edges.
        features: ``[E, De]`` features that are ``I`` inputs.
        grad_VdJF: ``[Vd, I + 1, F]``.
        weight_E1: ``[E, 1]`` weight of each in-edge; None if all are 1.
        out_VsF: ``[Vs, F]``, written.
    """
    out_VsF.zero_()
    scales = grad_VdJF.shape[1]
    for chunk in edge_chunks(indptr, len(indices), scales):
        at = edge[chunk.edges].long()
        weight = None if weight_E1 is None else weight_E1[at]
        scale_NJ = _scale_rows(features, features.values[at], weight, scales, out_VsF.dtype)
        sums = out_VsF.new_empty(len(chunk.indptr) - 1, 1, out_VsF.shape[1])
        spmm_sum_heads(chunk.indptr, indices[chunk.edges], chunk.positions, scale_NJ, grad_VdJF, sums)
        out_VsF[chunk.rows] += sums[:, 0]


def _scale_rows(
    features: EdgeFeatures, values_ND: Tensor, weight_N1: Tensor | None, scales: int, dtype: torch.dtype
) -> Tensor:
    """Return ``[N, I + 1]``: the features of some edges and 1, times their weights."""
    dense_NI = dense_edge_features(values_ND, features.starts, scales - 1, dtype)
    scale_NJ = torch.cat([dense_NI, dense_NI.new_ones(len(dense_NI), 1)], 1)
    return scale_NJ if weight_N1 is None else scale_NJ * weight_N1
