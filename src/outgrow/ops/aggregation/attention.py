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
from outgrow.ops.aggregation.narrow_spmm import make_narrow_spmm
from outgrow.ops.backend import (
    as_numpy,
    gpu_dispatch,
    kernel_factory,
    once_differentiable,
    parallel_kernel,
    prange,
)
from outgrow.ops.csc import cached_transpose
from outgrow.ops.kernels.numerics import NUMBERS_AHEAD, exp_nonpositive, prefetch_line
from outgrow.ops.kernels.register_vectors import (
    add_vectors,
    divide_vectors,
    fill_vector,
    larger_of_vectors,
    load_vector,
    multiply_vectors,
    select_positive,
    smaller_of_vectors,
    subtract_vectors,
)
from outgrow.ops.kernels.registers import store_accumulator, store_row_accumulator
from outgrow.ops.kernels.work_split import (
    END_ROW,
    ROW,
    add_split_rows,
    balanced_work,
    covers_row,
    row_span,
    split_rows,
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


@kernel_factory
def _make_softmax_kernel(heads: int) -> Callable[..., None]:
    @parallel_kernel
    def softmax_kernel(
        parts: Array, indptr: Array, indices: Array, scores: Scores, edge: Array | None, out: Array
    ) -> None:
        flat = out.reshape(-1)
        for part in prange(len(parts)):
            slope = scores[2]
            for v in range(parts[part, ROW], parts[part, END_ROW]):
                first, last = row_span(parts, part, indptr, v)
                target = load_vector(scores[1], v, heads)
                slopes, top = fill_vector(target, slope), fill_vector(target, -np.inf)
                for e in range(first, last):
                    prefetch_line(scores[0], indices[min(e + NUMBERS_AHEAD, len(indices) - 1)], 0)
                    score = add_vectors(load_vector(scores[0], indices[e], heads), target)
                    if edge is not None:
                        score = add_vectors(score, load_vector(edge, e, heads))
                    # Leaky ReLU without a branch: the larger of both lines, or the smaller if the slope
                    # exceeds 1.
                    scaled = multiply_vectors(score, slopes)
                    score = larger_of_vectors(score, scaled) if slope < 1 else smaller_of_vectors(score, scaled)
                    store_accumulator(score, out, e)
                    top = larger_of_vectors(top, score)
                if covers_row(parts, part, indptr, v):
                    # Scores minus the maximum are at most 0: the exponential cannot overflow.
                    for e in range(first, last):
                        store_accumulator(subtract_vectors(load_vector(out, e, heads), top), out, e)
                    # One flat loop, because those over the heads of an edge are too short to fill a vector; over
                    # a view, because the compiler vectorises no loop whose indices may be negative.
                    numbers = flat[first * heads : last * heads]
                    for j in range(len(numbers)):
                        numbers[j] = exp_nonpositive(numbers[j])
                    total = fill_vector(target, 0)
                    for e in range(first, last):
                        total = add_vectors(total, load_vector(out, e, heads))
                    # Divide once per row and multiply per edge: a division is many times slower.
                    factor = divide_vectors(fill_vector(target, 1), total)
                    for e in range(first, last):
                        store_accumulator(multiply_vectors(load_vector(out, e, heads), factor), out, e)

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
            for v in range(parts[part, ROW], parts[part, END_ROW]):
                first, last = row_span(parts, part, indptr, v)
                target = load_vector(scores[1], v, heads)
                total, slopes = fill_vector(target, 0), fill_vector(target, scores[2])
                mean = total
                if covers_row(parts, part, indptr, v):
                    for e in range(first, last):
                        product = multiply_vectors(load_vector(weight, e, heads), load_vector(grad, e, heads))
                        mean = add_vectors(mean, product)
                else:
                    mean = load_vector(cut_means, np.searchsorted(cut_rows, v), heads)
                for e in range(first, last):
                    prefetch_line(scores[0], indices[min(e + NUMBERS_AHEAD, len(indices) - 1)], 0)
                    # Gradient of a softmax: w * (g - sum of w * g over the row), w its result, g the
                    # gradient.
                    value = subtract_vectors(load_vector(grad, e, heads), mean)
                    value = multiply_vectors(load_vector(weight, e, heads), value)
                    # The score is recomputed from node scores: storing it would take another ``[E, K]``.
                    # At 0 the derivative is the slope, as in torch.
                    score = add_vectors(load_vector(scores[0], indices[e], heads), target)
                    if edge is not None:
                        score = add_vectors(score, load_vector(edge, e, heads))
                    value = select_positive(score, value, multiply_vectors(value, slopes))
                    store_accumulator(value, d_score, e)
                    total = add_vectors(total, value)
                store_row_accumulator(parts, part, indptr, v, total, d_dst, cut)
        add_split_rows(parts, indptr, d_dst, cut)

    return softmax_backward_kernel


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
    given = balanced_work(ends), ends, as_numpy(edge), None, None, as_numpy(values_EK), as_numpy(out_MK)
    make_narrow_spmm(1, values_EK.shape[1])(*given)


def _scalar_like(value: float, like: Tensor) -> Any:
    # A Python float is float64 in a kernel and would widen all that it multiplies.
    return as_numpy(torch.tensor(value, dtype=like.dtype))[()]


def _optional_array(x: Tensor | None) -> Any:
    return None if x is None else as_numpy(x)
