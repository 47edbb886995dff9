"""Sum over in-edges of source rows, each scaled by every feature of its edge. No row per edge is materialised.

Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``I`` inputs that features of edges are, ``F`` columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.ops.aggregation.base import Aggregation
from outgrow.ops.backend import as_numpy, gpu_dispatch, once_differentiable, parallel_kernel, prange
from outgrow.ops.csc import cached_transpose
from outgrow.ops.edge_features import EdgeFeatures, read_edge_features
from outgrow.ops.kernels.numerics import accumulate_dtype, as_float
from outgrow.ops.kernels.work_split import END_ROW, ROW, add_split_rows, balanced_work, row_span, store_row
from outgrow.ops.memory_pool import as_input_rows, as_output_rows

Array = NDArray[Any]


class FeatureWeightedSum(Aggregation):
    """``out[v, i] = sum over in-edges e of features[e, i] * src[u]``, and ``out[v, I] = sum of src[u]``.

    ``u`` is the source of the edge. What a linear network of the features makes of edges, as in Gilmer et al., Neural
    message passing for quantum chemistry, ICML 2017, is a product of this sum.

    Args:
        edge_dim: ``I``.
    """

    sliceable = True
    additive = True

    def __init__(self, edge_dim: int) -> None:
        self.edge_dim = edge_dim

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate one channel; see `Aggregation`. Weights are constants; constant rows may have half precision."""
        assert src_VsCF.shape[1] == 1
        assert weight_EK is None or not weight_EK.requires_grad
        features = read_edge_features(block.edges, self.edge_dim)
        return _OuterSum.apply(src_VsCF, weight_EK, features, block.edges, self.edge_dim)  # type: ignore[no-any-return, no-untyped-call]


class _OuterSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, src_VsCF: Tensor, weight_EK: Tensor | None, features: EdgeFeatures, edges: Edges, edge_dim: int
    ) -> Tensor:
        dtype = accumulate_dtype(src_VsCF.dtype)
        if ctx.needs_input_grad[0] and src_VsCF.dtype != dtype:
            raise TypeError("rows in half precision are constants: they have no gradient")
        ctx.edges, ctx.features, ctx.shape = edges, features, src_VsCF.shape
        ctx.save_for_backward(weight_EK)
        out = src_VsCF.new_empty(edges.num_dst, edge_dim + 1, src_VsCF.shape[2], dtype=dtype)
        outer_sum(edges.indptr, edges.indices, features, src_VsCF.flatten(1), weight_EK, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_VdJF: Tensor) -> tuple[Tensor | None, ...]:
        (weight_EK,) = ctx.saved_tensors
        back = cached_transpose(ctx.edges)
        out = grad_VdJF.new_empty(ctx.shape)
        grad_VdJF = grad_VdJF.contiguous()
        outer_grad_src(back.indptr, back.indices, back.edge, ctx.features, grad_VdJF, weight_EK, out.flatten(1))
        return out, None, None, None, None


@gpu_dispatch
def outer_sum(
    indptr: Tensor,
    indices: Tensor,
    features: EdgeFeatures,
    src_VsF: Tensor,
    weight_E1: Tensor | None,
    out_VdJF: Tensor,
) -> None:
    """Compute `FeatureWeightedSum` into ``out_VdJF``, ``J = I + 1``."""
    ends = as_numpy(indptr)
    parts = balanced_work(ends)
    out = as_output_rows(out_VdJF)
    weight = None if weight_E1 is None else as_numpy(weight_E1)
    cut = np.empty((len(parts), out.shape[1]), out.dtype)
    columns = out_VdJF.shape[2]
    given = *features.to_arrays(), as_input_rows(src_VsF), weight, columns
    _outer_sum_kernel(parts, ends, as_numpy(indices), *given, out, cut)


@gpu_dispatch
def outer_grad_src(
    indptr: Tensor,
    indices: Tensor,
    edge: Tensor,
    features: EdgeFeatures,
    grad_VdJF: Tensor,
    weight_E1: Tensor | None,
    out_VsF: Tensor,
) -> None:
    """Compute the gradient of the sources, over the transposed edges, into ``out_VsF``."""
    ends = as_numpy(indptr)
    parts = balanced_work(ends)
    out = as_output_rows(out_VsF)
    weight = None if weight_E1 is None else as_numpy(weight_E1)
    cut = np.empty((len(parts), out.shape[1]), out.dtype)
    given = *features.to_arrays(), as_input_rows(grad_VdJF), weight, grad_VdJF.shape[1] - 1, out_VsF.shape[1]
    _outer_grad_kernel(parts, ends, as_numpy(indices), as_numpy(edge), *given, out, cut)


@parallel_kernel
def _outer_sum_kernel(
    parts: Array,
    indptr: Array,
    indices: Array,
    features: Array,
    starts: Array | None,
    src: Array,
    weight: Array | None,
    columns: int,
    out: Array,
    cut: Array,
) -> None:
    width = out.shape[1]
    one = out.dtype.type(1)
    for part in prange(len(parts)):
        total = np.empty(width, out.dtype)
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            for f in range(width):
                total[f] = 0
            for e in range(*row_span(parts, part, indptr, v)):
                u = indices[e]
                scale = one if weight is None else weight[e, 0]
                for d in range(features.shape[1]):
                    if starts is None:
                        factor = scale * out.dtype.type(as_float(features[e, d]))
                        for f in range(columns):
                            total[d * columns + f] += factor * as_float(src[u, f])
                    elif features[e, d] >= 0:
                        first = (starts[d] + features[e, d]) * columns
                        for f in range(columns):
                            total[first + f] += scale * as_float(src[u, f])
                for f in range(columns):
                    total[width - columns + f] += scale * as_float(src[u, f])
            store_row(parts, part, indptr, v, total, out, cut)
    add_split_rows(parts, indptr, out, cut)


@parallel_kernel
def _outer_grad_kernel(
    parts: Array,
    indptr: Array,
    indices: Array,
    edge: Array,
    features: Array,
    starts: Array | None,
    grad: Array,
    weight: Array | None,
    inputs: int,
    columns: int,
    out: Array,
    cut: Array,
) -> None:
    one = out.dtype.type(1)
    for part in prange(len(parts)):
        total = np.empty(columns, out.dtype)
        for u in range(parts[part, ROW], parts[part, END_ROW]):
            for f in range(columns):
                total[f] = 0
            for i in range(*row_span(parts, part, indptr, u)):
                v, e = indices[i], edge[i]
                scale = one if weight is None else weight[e, 0]
                for d in range(features.shape[1]):
                    if starts is None:
                        factor = scale * out.dtype.type(as_float(features[e, d]))
                        for f in range(columns):
                            total[f] += factor * grad[v, d * columns + f]
                    elif features[e, d] >= 0:
                        first = (starts[d] + features[e, d]) * columns
                        for f in range(columns):
                            total[f] += scale * grad[v, first + f]
                for f in range(columns):
                    total[f] += scale * grad[v, inputs * columns + f]
            store_row(parts, part, indptr, u, total, out, cut)
    add_split_rows(parts, indptr, out, cut)
