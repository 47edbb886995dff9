"""Weighted sums of the features of in-edges, and dot products of these features with rows of destinations.

Each is the gradient of the other. Features are constants as in `outgrow.ops.edge_features`. Letters: ``Vd``
destinations, ``E`` edges, ``K`` heads, ``I`` inputs that the features of an edge are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.backend import as_numpy, gpu_dispatch, once_differentiable, parallel_kernel, prange
from outgrow.ops.edge_features import EdgeFeatures, read_edge_features
from outgrow.ops.kernels.numerics import as_float
from outgrow.ops.kernels.work_split import END_ROW, ROW, add_split_rows, balanced_work, row_span, store_row
from outgrow.ops.memory_pool import as_output_rows

Array = NDArray[Any]


def edge_feature_sum(edges: Edges, weight_EK: Tensor, edge_dim: int) -> Tensor:
    """Return ``[Vd, K, I]``: the sum over in-edges ``e`` of ``weight[e, k] * features[e]``.

    Args:
        edges: In-edges of a block, with features.
        weight_EK: ``[E, K]``, in which the result is differentiable.
        edge_dim: ``I``.
    """
    return _FeatureSum.apply(weight_EK, read_edge_features(edges, edge_dim), edges, edge_dim)  # type: ignore[no-any-return, no-untyped-call]


def edge_feature_dot(edges: Edges, rows_VdKI: Tensor) -> Tensor:
    """Return ``[E, K]``: the dot product of the features of each in-edge and ``rows[v, k]`` of its destination ``v``.

    Args:
        edges: In-edges of a block, with features that are ``I`` inputs.
        rows_VdKI: ``[Vd, K, I]``, in which the result is differentiable.
    """
    features = read_edge_features(edges, rows_VdKI.shape[2])
    return _FeatureDot.apply(rows_VdKI, features, edges)  # type: ignore[no-any-return, no-untyped-call]


class _FeatureSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight_EK: Tensor, features: EdgeFeatures, edges: Edges, edge_dim: int) -> Tensor:
        ctx.features, ctx.edges = features, edges
        out = weight_EK.new_empty(edges.num_dst, weight_EK.shape[1], edge_dim)
        feature_sum(edges.indptr, features, weight_EK, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_VdKI: Tensor) -> tuple[Tensor | None, ...]:
        out = grad_VdKI.new_empty(ctx.edges.num_edges, grad_VdKI.shape[1])
        feature_dot(ctx.edges.indptr, ctx.features, grad_VdKI, out)
        return out, None, None, None


class _FeatureDot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_VdKI: Tensor, features: EdgeFeatures, edges: Edges) -> Tensor:
        ctx.features, ctx.edges, ctx.shape = features, edges, rows_VdKI.shape
        out = rows_VdKI.new_empty(edges.num_edges, rows_VdKI.shape[1])
        feature_dot(edges.indptr, features, rows_VdKI, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_EK: Tensor) -> tuple[Tensor | None, ...]:
        out = grad_EK.new_empty(ctx.shape)
        feature_sum(ctx.edges.indptr, ctx.features, grad_EK, out)
        return out, None, None


@gpu_dispatch
def feature_sum(indptr: Tensor, features: EdgeFeatures, weight_EK: Tensor, out_VdKI: Tensor) -> None:
    """Compute `edge_feature_sum` into ``out_VdKI``."""
    ends = as_numpy(indptr)
    parts = balanced_work(ends)
    out = as_output_rows(out_VdKI)
    cut = np.empty((len(parts), out.shape[1]), out.dtype)
    _feature_sum_kernel(parts, ends, *features.to_arrays(), as_numpy(weight_EK), out, cut)


@gpu_dispatch
def feature_dot(indptr: Tensor, features: EdgeFeatures, rows_VdKI: Tensor, out_EK: Tensor) -> None:
    """Compute `edge_feature_dot` into ``out_EK``."""
    ends = as_numpy(indptr)
    _feature_dot_kernel(balanced_work(ends), ends, *features.to_arrays(), as_numpy(rows_VdKI), as_numpy(out_EK))


@parallel_kernel
def _feature_sum_kernel(
    parts: Array, indptr: Array, features: Array, starts: Array | None, weight: Array, out: Array, cut: Array
) -> None:
    heads = weight.shape[1]
    inputs = out.shape[1] // heads
    for part in prange(len(parts)):
        total = np.empty(heads * inputs, out.dtype)
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            for f in range(len(total)):
                total[f] = 0
            for e in range(*row_span(parts, part, indptr, v)):
                for k in range(heads):
                    for d in range(features.shape[1]):
                        if starts is None:
                            total[k * inputs + d] += weight[e, k] * total.dtype.type(as_float(features[e, d]))
                        elif features[e, d] >= 0:
                            total[k * inputs + starts[d] + features[e, d]] += weight[e, k]
            store_row(parts, part, indptr, v, total, out, cut)
    add_split_rows(parts, indptr, out, cut)


@parallel_kernel
def _feature_dot_kernel(
    parts: Array, indptr: Array, features: Array, starts: Array | None, rows: Array, out: Array
) -> None:
    for part in prange(len(parts)):
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            for e in range(*row_span(parts, part, indptr, v)):
                for k in range(out.shape[1]):
                    dot = out.dtype.type(0)
                    for d in range(features.shape[1]):
                        if starts is None:
                            dot += rows[v, k, d] * out.dtype.type(as_float(features[e, d]))
                        elif features[e, d] >= 0:
                            dot += rows[v, k, starts[d] + features[e, d]]
                    out[e, k] = dot
