"""Weighted sums of the features of in-edges, and dot products with rows of destinations, on a GPU: chunks of edges."""

from __future__ import annotations

from torch import Tensor

from outgrow.ops.edge_features import EdgeFeatures, dense_edge_features
from outgrow.ops.gpu.edge_chunks import edge_chunks
from outgrow.ops.gpu.spmm import sddmm_dot, spmm


def feature_sum(indptr: Tensor, features: EdgeFeatures, weight_EK: Tensor, out_VdKI: Tensor) -> None:
    """Compute ``out[v, k] = sum over in-edges e of weight[e, k] * features[e]``.

    Args:
        indptr: ``[Vd + 1]`` int64.
        features: ``[E, De]`` features that are ``I`` inputs.
        weight_EK: ``[E, K]``.
        out_VdKI: ``[Vd, K, I]``, written.
    """
    out_VdKI.zero_()
    inputs = out_VdKI.shape[2]
    for chunk in edge_chunks(indptr, len(weight_EK), inputs):
        rows_NI = dense_edge_features(features.values[chunk.edges], features.starts, inputs, out_VdKI.dtype)
        given = chunk.indptr, chunk.positions, None, weight_EK[chunk.edges], rows_NI[:, None]
        spmm(*given, out_VdKI[chunk.rows], add=True)


def feature_dot(indptr: Tensor, features: EdgeFeatures, rows_VdKI: Tensor, out_EK: Tensor) -> None:
    """Compute ``out[e, k] = features[e] . rows[v, k]`` for each in-edge ``e`` of ``v``.

    Args:
        indptr: ``[Vd + 1]`` int64.
        features: ``[E, De]`` features that are ``I`` inputs.
        rows_VdKI: ``[Vd, K, I]``.
        out_EK: ``[E, K]``, written.
    """
    inputs = rows_VdKI.shape[2]
    for chunk in edge_chunks(indptr, len(out_EK), inputs):
        rows_NI = dense_edge_features(features.values[chunk.edges], features.starts, inputs, out_EK.dtype)
        given = chunk.indptr, chunk.positions, rows_NI[:, None], rows_VdKI[chunk.rows]
        sddmm_dot(*given, out_EK[chunk.edges])
