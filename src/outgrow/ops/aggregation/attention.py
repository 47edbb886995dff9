"""Edge softmax, forward and backward.

A few rows may be cut between parts (`outgrow.ops.kernels.work_split`): the kernels compute their scores,
NumPy their maxima and sums. Letters: ``Vs`` sources, ``Vd`` destinations, ``M`` rows, ``E`` edges, ``K``
heads. The number of heads is small, and a compile-time constant of the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.backend import (
    as_numpy,
    device_function,
    gpu_dispatch,
    kernel_factory,
    once_differentiable,
    parallel_kernel,
    prange,
)
from outgrow.ops.csc import cached_transpose
from outgrow.ops.kernels.numerics import NUMBERS_AHEAD, exp_nonpositive, prefetch_line
from outgrow.ops.kernels.work_split import (
    END_ROW,
    ROW,
    add_split_rows,
    balanced_work,
    covers_row,
    row_span,
    split_rows,
    store_row,
)
from outgrow.ops.memory_pool import pooled_empty

Array = NDArray[Any]
Scores = tuple[Array, Array, Any]
"""Scores of sources and of destinations, and the slope."""


def softmax_rows(indptr: Array, indices: Array, scores: Scores, edge: Array | None, out: Array) -> None:
    """Compute ``out[e] = softmax over the edges of a row of leaky_relu(score of e)``."""
    parts = balanced_work(indptr)
    _make_softmax_kernel(out.shape[1])(parts, indptr, indices, scores, edge, out)
    # A softmax needs the maximum of the whole row, which no single part sees if the row is cut. There are
    # fewer such rows than parts, so NumPy finishes them after the kernel.
    for row in split_rows(parts, indptr):
        values = out[indptr[row] : indptr[row + 1]]
        np.exp(values - values.max(0), out=values)
        values /= values.sum(0)


def softmax_rows_backward(
    indptr: Array,
    indices: Array,
    scores: Scores,
    edge: Array | None,
    weight: Array,
    grad: Array,
    d_score: Array,
    d_dst: Array,
) -> None:
    """Compute the gradients of the edges' scores before the leaky ReLU, and their sums over each row."""
    parts = balanced_work(indptr)
    heads = weight.shape[1]
    rows = split_rows(parts, indptr)
    # Every piece of a cut row needs the mean over the whole row, so it must be known before the parallel
    # loop.
    means = np.empty((len(rows), heads), weight.dtype)
    for at, row in enumerate(rows):
        edges = slice(indptr[row], indptr[row + 1])
        means[at] = (weight[edges] * grad[edges]).sum(0)
    cut = np.empty((len(parts), heads), weight.dtype)
    _make_softmax_backward_kernel(heads)(
        parts, indptr, indices, scores, edge, weight, grad, rows, means, d_score, d_dst, cut
    )


@parallel_kernel
def add_edge_values(parts: Array, indptr: Array, edge: Array, values: Array, out: Array) -> None:
    """Compute ``out[m] = sum over edges i of m of values[edge[i]]``."""
    cut = np.empty((len(parts), out.shape[1]), out.dtype)
    for part in prange(len(parts)):
        total = np.empty(out.shape[1], out.dtype)
        for u in range(parts[part, ROW], parts[part, END_ROW]):
            for k in range(len(total)):
                total[k] = 0
            first, last = row_span(parts, part, indptr, u)
            for i in range(first, last):
                prefetch_line(values, edge[min(i + NUMBERS_AHEAD, len(edge) - 1)], 0)
                for k in range(len(total)):
                    total[k] += values[edge[i], k]
            store_row(parts, part, indptr, u, total, out, cut)
    add_split_rows(parts, indptr, out, cut)


@kernel_factory
def _make_softmax_kernel(heads: int) -> Callable[..., None]:
    @parallel_kernel
    def softmax_kernel(
        parts: Array, indptr: Array, indices: Array, scores: Scores, edge: Array | None, out: Array
    ) -> None:
        flat = out.reshape(-1)
        for part in prange(len(parts)):
            slope = scores[2]
            top, total = np.empty(heads, out.dtype), np.empty(heads, out.dtype)
            for v in range(parts[part, ROW], parts[part, END_ROW]):
                first, last = row_span(parts, part, indptr, v)
                # One loop per step, since the compiler vectorises each of them but not a loop that does it
                # all.
                for e in range(first, last):
                    prefetch_line(scores[0], indices[min(e + NUMBERS_AHEAD, len(indices) - 1)], 0)
                    for k in range(heads):
                        score = _edge_score(scores, edge, indices[e], v, e, k)
                        # Leaky ReLU without a branch: the larger of both lines, or the smaller if the slope
                        # exceeds 1.
                        out[e, k] = max(score, score * slope) if slope < 1 else min(score, score * slope)
                if covers_row(parts, part, indptr, v):
                    for k in range(heads):
                        highest = out.dtype.type(-np.inf)
                        for e in range(first, last):
                            highest = max(highest, out[e, k])
                        top[k] = highest
                    # Scores minus the maximum are at most 0: the exponential cannot overflow.
                    for e in range(first, last):
                        for k in range(heads):
                            out[e, k] -= top[k]
                    # One flat loop, because loops over the heads are too short to fill a vector.
                    for j in range(first * heads, last * heads):
                        flat[j] = exp_nonpositive(flat[j])
                    for k in range(heads):
                        sum_k = out.dtype.type(0)
                        for e in range(first, last):
                            sum_k += out[e, k]
                        # Divide once per row and multiply per edge: a division is many times slower.
                        total[k] = 1 / sum_k
                    for e in range(first, last):
                        for k in range(heads):
                            out[e, k] *= total[k]

    return softmax_kernel


@kernel_factory
def _make_softmax_backward_kernel(heads: int) -> Callable[..., None]:
    @parallel_kernel
    def softmax_backward_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        scores: Scores,
        edge: Array | None,
        weight: Array,
        grad: Array,
        cut_rows: Array,
        cut_means: Array,
        d_score: Array,
        d_dst: Array,
        cut: Array,
    ) -> None:
        for part in prange(len(parts)):
            mean, total = np.empty(heads, weight.dtype), np.empty(heads, weight.dtype)
            for v in range(parts[part, ROW], parts[part, END_ROW]):
                first, last = row_span(parts, part, indptr, v)
                whole = covers_row(parts, part, indptr, v)
                at = 0 if whole else np.searchsorted(cut_rows, v)
                for k in range(heads):
                    total[k], mean[k] = 0, 0
                    if not whole:
                        mean[k] = cut_means[at, k]
                if whole:
                    for e in range(first, last):
                        for k in range(heads):
                            mean[k] += weight[e, k] * grad[e, k]
                for e in range(first, last):
                    prefetch_line(scores[0], indices[min(e + NUMBERS_AHEAD, len(indices) - 1)], 0)
                    for k in range(heads):
                        # Gradient of a softmax: w * (g - sum of w * g over the row), w its result, g the
                        # gradient.
                        value = weight[e, k] * (grad[e, k] - mean[k])
                        # The score is recomputed from node scores: storing it would take another ``[E, K]``.
                        # At 0 the derivative is the slope, as in torch.
                        below = _edge_score(scores, edge, indices[e], v, e, k) <= 0
                        value = value * scores[2] if below else value
                        d_score[e, k] = value
                        total[k] += value
                store_row(parts, part, indptr, v, total, d_dst, cut)
        add_split_rows(parts, indptr, d_dst, cut)

    return softmax_backward_kernel


@device_function
def _edge_score(scores: Scores, edge: Array | None, u: int, v: int, e: int, k: int) -> Any:
    """Return the score of an edge before the leaky ReLU."""
    src, dst, _ = scores
    return src[u, k] + dst[v, k] if edge is None else src[u, k] + dst[v, k] + edge[e, k]


def attention_weight(
    edges: Edges, src_VsK: Tensor, dst_VdK: Tensor, slope: float, edge_EK: Tensor | None = None
) -> Tensor:
    """Compute ``softmax over in-edges of leaky_relu(src[source] + dst[destination] + edge)``.

    These are the attention weights of GAT (Velickovic et al., ICLR 2018).

    Args:
        edges: In-edges of a block.
        src_VsK: ``[Vs, K]`` score of each source.
        dst_VdK: ``[Vd, K]`` score of each destination.
        slope: Slope of the leaky ReLU below zero.
        edge_EK: ``[E, K]`` score of each edge; None if edges have none.

    Returns:
        ``[E, K]``; sums to 1 over the in-edges of each destination with in-edges.
    """
    return _EdgeSoftmax.apply(src_VsK, dst_VdK, edge_EK, edges, slope)  # type: ignore[no-any-return, no-untyped-call]


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, src_VsK: Tensor, dst_VdK: Tensor, edge_EK: Tensor | None, edges: Edges, slope: float
    ) -> Tensor:
        weight = pooled_empty((edges.num_edges, src_VsK.shape[1]), src_VsK)
        edge_softmax(edges.indptr, edges.indices, src_VsK, dst_VdK, slope, edge_EK, weight)
        ctx.edges = edges
        ctx.slope = slope
        ctx.save_for_backward(src_VsK, dst_VdK, edge_EK, weight)
        return weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_EK: Tensor) -> tuple[Tensor | None, ...]:
        src_VsK, dst_VdK, edge_EK, weight_EK = ctx.saved_tensors
        edges: Edges = ctx.edges
        d_score = pooled_empty(tuple(weight_EK.shape), weight_EK)
        d_dst = pooled_empty(tuple(dst_VdK.shape), dst_VdK)
        d_src = pooled_empty(tuple(src_VsK.shape), src_VsK)
        scores = src_VsK, dst_VdK, ctx.slope, edge_EK
        edge_softmax_backward(edges.indptr, edges.indices, *scores, weight_EK, grad_EK, d_score, d_dst)
        # Over the transposed edges one thread owns each source, so the sums need no atomic additions.
        back = cached_transpose(edges)
        sum_edge_values(back.indptr, back.edge, d_score, d_src)
        return d_src, d_dst, d_score if ctx.needs_input_grad[2] else None, None, None


@gpu_dispatch
def edge_softmax(
    indptr: Tensor,
    indices: Tensor,
    src_VsK: Tensor,
    dst_VdK: Tensor,
    slope: float,
    edge_EK: Tensor | None,
    out_EK: Tensor,
) -> None:
    """Compute `attention_weight` into ``out``."""
    ends = as_numpy(indptr)
    scores = as_numpy(src_VsK), as_numpy(dst_VdK), _scalar_like(slope, out_EK)
    edge = _optional_array(edge_EK)
    softmax_rows(ends, as_numpy(indices), scores, edge, as_numpy(out_EK))


@gpu_dispatch
def edge_softmax_backward(
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
    """Compute the gradients of edge scores before the leaky ReLU and of destination scores.

    ``weight`` is the result of `edge_softmax`, ``grad`` its gradient. The last two arguments are written.
    """
    ends = as_numpy(indptr)
    scores = as_numpy(src_VsK), as_numpy(dst_VdK), _scalar_like(slope, weight_EK)
    edge = _optional_array(edge_EK)
    inputs = as_numpy(weight_EK), as_numpy(grad_EK)
    outputs = as_numpy(d_score_EK), as_numpy(d_dst_VdK)
    softmax_rows_backward(ends, as_numpy(indices), scores, edge, *inputs, *outputs)


@gpu_dispatch
def sum_edge_values(indptr: Tensor, edge: Tensor, values_EK: Tensor, out_MK: Tensor) -> None:
    """Compute ``out[m] = sum over edges i of m of values[edge[i]]``."""
    ends = as_numpy(indptr)
    add_edge_values(balanced_work(ends), ends, as_numpy(edge), as_numpy(values_EK), as_numpy(out_MK))


def _scalar_like(value: float, like: Tensor) -> Any:
    # A Python float is float64 in a kernel and would widen all that it multiplies.
    return as_numpy(torch.tensor(value, dtype=like.dtype))[()]


def _optional_array(x: Tensor | None) -> Any:
    return None if x is None else as_numpy(x)
