"""Leaky ReLUs of what both ends and the features of an edge add up to: messages of GINE and scores of GATv2.

Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``I`` inputs that features of edges are, ``K`` heads, ``F``
columns of each, ``W`` columns of all of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from outgrow.core.block import Block, Edges
from outgrow.ops.aggregation.base import Aggregate, Aggregation
from outgrow.ops.aggregation.edge_relu_kernels import (
    make_grad_src_kernel,
    make_grad_terms_kernel,
    make_score_kernel,
    make_sum_kernel,
)
from outgrow.ops.backend import as_numpy, gpu_dispatch, once_differentiable
from outgrow.ops.csc import cached_transpose
from outgrow.ops.edge_features import EdgeFeatures, read_edge_features, zero_sums
from outgrow.ops.kernels.numerics import accumulate_dtype
from outgrow.ops.kernels.registers import MOST_BYTES
from outgrow.ops.kernels.work_split import LEAST_NUMBERS, balanced_work, specialised_width
from outgrow.ops.memory_pool import as_input_rows, as_output_rows


class GineSum(nn.Module, Aggregation):
    """``out[v] = sum over in-edges e of weight[e] * relu(src[u] + features[e] @ W + b)``.

    ``u`` is the source of the edge. The message of Hu et al., Strategies for pre-training graph neural networks, ICLR
    2020.

    Args:
        edge_dim: ``I``, inputs that the features of an edge are.
        columns: ``F``.
    """

    sliceable = True
    additive = True

    def __init__(self, edge_dim: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(edge_dim, columns))
        self.bias = nn.Parameter(torch.zeros(columns))
        nn.init.xavier_uniform_(self.weight)

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate one channel; see `Aggregation`. Weights are constants; constant rows may have half precision."""
        return _relu_sum(block, src_VsCF, weight_EK, self.weight, self.bias)

    def restrict_to_columns(self, first: int, last: int) -> Aggregate:
        """Return the aggregation with these columns of the weight and the bias only."""
        weight_IF, bias_F = self.weight[:, first:last], self.bias[first:last]
        return lambda block, src_VsCF, _, weight_EK: _relu_sum(block, src_VsCF, weight_EK, weight_IF, bias_F)


def _relu_sum(block: Block, src_VsCF: Tensor, weight_EK: Tensor | None, weight_IF: Tensor, bias_F: Tensor) -> Tensor:
    assert src_VsCF.shape[1:] == (1, len(bias_F))
    assert weight_EK is None or not weight_EK.requires_grad
    features = read_edge_features(block.edges, len(weight_IF))
    terms_JF = torch.cat([weight_IF, bias_F[None]])
    return _ReluSum.apply(src_VsCF, terms_JF, weight_EK, features, block.edges)  # type: ignore[no-any-return, no-untyped-call]


def leaky_scores(
    edges: Edges, src_VsKF: Tensor, dst_VdKF: Tensor, weight_IW: Tensor | None, attention_KF: Tensor, slope: float
) -> Tensor:
    """Return ``[E, K]``: ``attention[k] . leaky_relu(src[u, k] + dst[v, k] + (features[e] @ weight)[k])``.

    These are the scores of GATv2 (Brody, Alon & Yahav, How attentive are graph attention networks?, ICLR 2022).

    Args:
        edges: In-edges of a block.
        src_VsKF: ``[Vs, K, F]``.
        dst_VdKF: ``[Vd, K, F]``.
        weight_IW: ``[I, K * F]``; None if features of edges are not read.
        attention_KF: ``[K, F]``.
        slope: Slope of the leaky ReLU below zero, in [0, 1].
    """
    features = None if weight_IW is None else read_edge_features(edges, len(weight_IW))
    shift_1W = attention_KF.new_zeros(1, attention_KF.numel())
    terms_JW = shift_1W if weight_IW is None else torch.cat([weight_IW, shift_1W])
    return _LeakyScores.apply(src_VsKF, dst_VdKF, terms_JW, attention_KF, slope, features, edges)  # type: ignore[no-any-return, no-untyped-call]


class EdgeSums(NamedTuple):
    """What the leaky ReLU of an edge is taken of, and its slope.

    Attributes:
        src: ``[Vs, W]``, or rows in half precision.
        dst: ``[Vd, W]``; None if destinations add nothing.
        features: Features of the edges; None if they add nothing.
        terms: ``[I + 1, W]``: the weight of the features, and what is added to all edges.
        slope: Slope below zero.
    """

    src: Tensor
    dst: Tensor | None
    features: EdgeFeatures | None
    terms: Tensor
    slope: float


class _ReluSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        src_VsCF: Tensor,
        terms_JF: Tensor,
        weight_EK: Tensor | None,
        features: EdgeFeatures,
        edges: Edges,
    ) -> Tensor:
        if ctx.needs_input_grad[0] and src_VsCF.dtype != terms_JF.dtype:
            raise TypeError("rows in half precision are constants: they have no gradient")
        ctx.edges = edges
        ctx.features = features
        ctx.save_for_backward(src_VsCF, terms_JF, weight_EK)
        sums = EdgeSums(src_VsCF.flatten(1), None, features, terms_JF, 0.0)
        out = terms_JF.new_empty(edges.num_dst, 1, terms_JF.shape[1], dtype=accumulate_dtype(terms_JF.dtype))
        relu_sum(edges.indptr, edges.indices, sums, weight_EK, out.flatten(1))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_VdCF: Tensor) -> tuple[Tensor | None, ...]:
        src_VsCF, terms_JF, weight_EK = ctx.saved_tensors
        edges: Edges = ctx.edges
        sums = EdgeSums(src_VsCF.flatten(1), None, ctx.features, terms_JF, 0.0)
        rate_VF = grad_VdCF.flatten(1).contiguous()
        d_src = d_terms = None
        if ctx.needs_input_grad[0]:
            back = cached_transpose(edges)
            d_src = src_VsCF.new_empty(src_VsCF.shape)
            relu_grad_src(back.indptr, back.indices, back.edge, sums, 1, weight_EK, rate_VF, d_src.flatten(1))
        if ctx.needs_input_grad[1]:
            d_terms = terms_JF.new_empty(terms_JF.shape)
            relu_grad_terms(edges.indptr, edges.indices, sums, 1, weight_EK, rate_VF, None, d_terms)
        return d_src, d_terms, None, None, None


class _LeakyScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        src_VsKF: Tensor,
        dst_VdKF: Tensor,
        terms_JW: Tensor,
        attention_KF: Tensor,
        slope: float,
        features: EdgeFeatures | None,
        edges: Edges,
    ) -> Tensor:
        ctx.edges = edges
        ctx.features = features
        ctx.slope = slope
        ctx.save_for_backward(src_VsKF, dst_VdKF, terms_JW, attention_KF)
        out = src_VsKF.new_empty(edges.num_edges, len(attention_KF))
        sums = EdgeSums(src_VsKF.flatten(1), dst_VdKF.flatten(1), features, terms_JW, slope)
        leaky_score(edges.indptr, edges.indices, sums, attention_KF.reshape(-1), out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_EK: Tensor) -> tuple[Tensor | None, ...]:
        src_VsKF, dst_VdKF, terms_JW, attention_KF = ctx.saved_tensors
        edges: Edges = ctx.edges
        sums = EdgeSums(src_VsKF.flatten(1), dst_VdKF.flatten(1), ctx.features, terms_JW, ctx.slope)
        heads, attention_W = len(attention_KF), attention_KF.reshape(-1)
        back = cached_transpose(edges)
        d_src, d_dst = src_VsKF.new_empty(src_VsKF.shape), dst_VdKF.new_empty(dst_VdKF.shape)
        relu_grad_src(back.indptr, back.indices, back.edge, sums, heads, grad_EK, None, d_src.flatten(1))
        # One pass over the in-edges: their sums by destination, and the gradients of both weights.
        d_both = terms_JW.new_empty(len(terms_JW) + 1, terms_JW.shape[1])
        relu_grad_terms(edges.indptr, edges.indices, sums, heads, grad_EK, None, d_dst.flatten(1), d_both)
        # What all edges are multiplied by is left out of the sums over them.
        d_src *= attention_KF
        d_dst *= attention_KF
        return d_src, d_dst, d_both[:-1] * attention_W, d_both[-1].view(attention_KF.shape), None, None, None


def _operands(sums: EdgeSums) -> tuple[Any, ...]:
    """Return the arrays of kernels, up to the slope."""
    features = (None, None) if sums.features is None else sums.features.to_arrays()
    dst = None if sums.dst is None else as_input_rows(sums.dst)
    return as_input_rows(sums.src), dst, *features, as_numpy(sums.terms), sums.slope


def _kernel_options(num_edges: int, heads: int, sums: EdgeSums) -> tuple[tuple[int, int] | None, bool]:
    """Return the widths that a kernel is compiled for, None for the general one, and whether sums fit registers."""
    columns = sums.terms.shape[1]
    numbers = sums.features is None or sums.features.starts is None
    fits = numbers and sums.src.dtype == sums.terms.dtype and columns * sums.terms.itemsize <= MOST_BYTES
    if fits and num_edges * columns >= LEAST_NUMBERS:
        return (heads, columns // heads), True
    return None if specialised_width(num_edges, columns) is None else (heads, columns // heads), False


@gpu_dispatch
def relu_sum(indptr: Tensor, indices: Tensor, sums: EdgeSums, weight_E1: Tensor | None, out_VdF: Tensor) -> None:
    """Compute the sum of `GineSum` into ``out_VdF``; destinations add nothing."""
    ends = as_numpy(indptr)
    parts = balanced_work(ends)
    src, _, *operands = _operands(sums)
    weight = None if weight_E1 is None else as_numpy(weight_E1)
    out = as_output_rows(out_VdF)
    cut = np.empty((len(parts), out.shape[1]), out.dtype)
    run = make_sum_kernel(specialised_width(len(indices), sums.terms.shape[1]))
    run(parts, ends, as_numpy(indices), src, *operands, weight, out, cut)


@gpu_dispatch
def leaky_score(indptr: Tensor, indices: Tensor, sums: EdgeSums, attention_W: Tensor, out_EK: Tensor) -> None:
    """Compute `leaky_scores` into ``out_EK``."""
    ends = as_numpy(indptr)
    run = make_score_kernel(*_kernel_options(len(indices), out_EK.shape[1], sums))
    run(balanced_work(ends), ends, as_numpy(indices), *_operands(sums), as_numpy(attention_W), as_numpy(out_EK))


@gpu_dispatch
def relu_grad_src(
    indptr: Tensor,
    indices: Tensor,
    edge: Tensor,
    sums: EdgeSums,
    heads: int,
    scale_EK: Tensor | None,
    rate_VW: Tensor | None,
    out_VsW: Tensor,
) -> None:
    """Compute the gradient of the sources over the transposed edges into ``out_VsW``.

    ``scale`` of an edge times ``rate`` of its destination, None for 1, is the gradient of its leaky ReLUs.
    """
    ends = as_numpy(indptr)
    parts = balanced_work(ends)
    scale = None if scale_EK is None else as_numpy(scale_EK)
    out = as_output_rows(out_VsW)
    cut = np.empty((len(parts), out.shape[1]), out.dtype)
    run = make_grad_src_kernel(*_kernel_options(len(indices), heads, sums))
    given = *_operands(sums)[:-1], (sums.slope, heads), scale, None if rate_VW is None else as_input_rows(rate_VW)
    run(parts, (ends, as_numpy(indices), as_numpy(edge)), *given, (out, cut))


@gpu_dispatch
def relu_grad_terms(
    indptr: Tensor,
    indices: Tensor,
    sums: EdgeSums,
    heads: int,
    scale_EK: Tensor | None,
    rate_VW: Tensor | None,
    out_VdW: Tensor | None,
    d_terms: Tensor,
) -> None:
    """Compute the gradients of destinations, unless ``out`` is None, and of ``terms``, summed in float64.

    ``d_terms`` is ``[I + 1, W]``, or ``[I + 2, W]`` with the gradient of the attention as the last row.
    """
    ends = as_numpy(indptr)
    parts = balanced_work(ends)
    scale = None if scale_EK is None else as_numpy(scale_EK)
    out = None if out_VdW is None else as_output_rows(out_VdW)
    total = zero_sums(len(parts), *d_terms.shape)
    given = *_operands(sums)[:-1], (sums.slope, heads), scale, None if rate_VW is None else as_input_rows(rate_VW)
    cut = np.empty((len(parts), d_terms.shape[1]), given[4].dtype)
    run = make_grad_terms_kernel(*_kernel_options(len(indices), heads, sums))
    run(parts, (ends, as_numpy(indices)), *given, out, (cut, total))
    as_numpy(d_terms)[:] = total.sum(0)
