"""Softmax over the in-edges of each destination, one per head, and its backward pass.

Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``M`` rows, ``K`` heads.
"""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from outgrow.ops.gpu.launch import launch_kernel, tile_shape, triton_function, triton_kernel
from outgrow.ops.gpu.spmm import spmm


def edge_softmax(
    indptr: Tensor,
    indices: Tensor,
    src_VsK: Tensor,
    dst_VdK: Tensor,
    slope: float,
    edge_EK: Tensor | None,
    out_EK: Tensor,
) -> None:
    """Compute ``softmax over in-edges e of leaky_relu(src[source] + dst[destination] + edge[e])``.

    Args:
        indptr: ``[Vd + 1]`` int64.
        indices: ``[E]`` int32 or int64, source of each edge.
        src_VsK: ``[Vs, K]``.
        dst_VdK: ``[Vd, K]``.
        slope: Slope of the leaky ReLU below zero.
        edge_EK: ``[E, K]``; None if all are 0.
        out_EK: ``[E, K]``, written.
    """
    # One warp per row: a row of a few edges and heads would leave more of them idle.
    heads = dst_VdK.shape[1]
    given = indptr, indices, src_VsK, dst_VdK, edge_EK, out_EK
    launch_kernel(
        _edge_softmax_kernel, (len(dst_VdK),), *given, SHAPE=(heads, slope), TILE=_head_tile(heads), num_warps=1
    )


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
    """Compute the gradients of edge and destination scores from that of the weights.

    Args:
        indptr: ``[Vd + 1]`` int64.
        indices: ``[E]`` int32 or int64, source of each edge.
        src_VsK: ``[Vs, K]``.
        dst_VdK: ``[Vd, K]``.
        slope: Slope of the leaky ReLU below zero.
        edge_EK: ``[E, K]``; None if all are 0.
        weight_EK: ``[E, K]``, the result of `edge_softmax`.
        grad_EK: ``[E, K]``, its gradient.
        d_score_EK: ``[E, K]``, written: the gradient of the sum of scores of each edge.
        d_dst_VdK: ``[Vd, K]``, written: its sum over the in-edges of each destination.
    """
    heads = dst_VdK.shape[1]
    given = indptr, indices, src_VsK, dst_VdK, edge_EK, weight_EK, grad_EK, d_score_EK, d_dst_VdK
    launch_kernel(
        _edge_softmax_backward_kernel,
        (len(dst_VdK),),
        *given,
        SHAPE=(heads, slope),
        TILE=_head_tile(heads),
        num_warps=1,
    )


def sum_edge_values(indptr: Tensor, edge: Tensor, values_EK: Tensor, out_MK: Tensor) -> None:
    """Compute ``out[m] = sum over edges i of m of values[edge[i]]``.

    Args:
        indptr: ``[M + 1]`` int64.
        edge: ``[E]`` int32 or int64.
        values_EK: ``[E, K]``.
        out_MK: ``[M, K]``, written.
    """
    spmm(indptr, edge, None, None, values_EK[:, None], out_MK[:, None])


def _head_tile(heads: int) -> tuple[int, int]:
    """Return edges and heads of a tile, a small one: rows are narrow and most have few edges."""
    return tile_shape(heads, heads, elements=256)


@triton_function
def _edge_scores(
    src: tl.tensor,
    dst_score: tl.tensor,
    edge_score: tl.tensor,
    other: tl.tensor,
    e: tl.tensor,
    k: tl.tensor,
    mask: tl.tensor,
    HEADS: tl.constexpr,
) -> tl.tensor:
    """Return the scores of a tile of edges by heads, before the leaky ReLU."""
    score = tl.load(src + other[:, None] * HEADS + k[None, :], mask, 0).to(dst_score.dtype) + dst_score[None, :]
    if edge_score is not None:
        score += tl.load(edge_score + e[:, None] * HEADS + k[None, :], mask, 0).to(dst_score.dtype)
    return score


@triton_function
def _leaky_relu(score: tl.tensor, SLOPE: tl.constexpr) -> tl.tensor:
    return tl.where(score > 0, score, score * SLOPE)


@triton_kernel
def _edge_softmax_kernel(
    indptr: tl.tensor,
    indices: tl.tensor,
    src: tl.tensor,
    dst: tl.tensor,
    edge_score: tl.tensor,
    out: tl.tensor,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    HEADS: tl.constexpr = SHAPE[0]
    SLOPE: tl.constexpr = SHAPE[1]
    EDGES: tl.constexpr = TILE[0]
    WIDTH: tl.constexpr = TILE[1]
    ACC: tl.constexpr = tl.float64 if out.dtype.element_ty == tl.float64 else tl.float32
    row = tl.program_id(0).to(tl.int64)
    first, last = tl.load(indptr + row), tl.load(indptr + row + 1)
    k = tl.arange(0, WIDTH)
    dst_score = tl.load(dst + row * HEADS + k, k < HEADS, 0).to(ACC)
    # Three passes that each recompute the scores from node scores, which are cached: storing them per edge
    # would add traffic to memory.
    highest = tl.full([EDGES, WIDTH], float("-inf"), ACC)
    for start in range(first, last, EDGES):
        e = start + tl.arange(0, EDGES)
        mask = (e < last)[:, None] & (k < HEADS)[None, :]
        other = tl.load(indices + e, e < last, 0).to(tl.int64)
        score = _leaky_relu(_edge_scores(src, dst_score, edge_score, other, e, k, mask, HEADS), SLOPE)
        highest = tl.maximum(highest, tl.where(mask, score, float("-inf")))
    top = tl.max(highest, 0)
    # Scores minus the maximum are at most 0: the exponential cannot overflow.
    total = tl.zeros([EDGES, WIDTH], ACC)
    for start in range(first, last, EDGES):
        e = start + tl.arange(0, EDGES)
        mask = (e < last)[:, None] & (k < HEADS)[None, :]
        other = tl.load(indices + e, e < last, 0).to(tl.int64)
        score = _leaky_relu(_edge_scores(src, dst_score, edge_score, other, e, k, mask, HEADS), SLOPE)
        total += tl.where(mask, tl.exp(score - top[None, :]), 0)
    whole = tl.sum(total, 0)
    for start in range(first, last, EDGES):
        e = start + tl.arange(0, EDGES)
        mask = (e < last)[:, None] & (k < HEADS)[None, :]
        other = tl.load(indices + e, e < last, 0).to(tl.int64)
        score = _leaky_relu(_edge_scores(src, dst_score, edge_score, other, e, k, mask, HEADS), SLOPE)
        tl.store(out + e[:, None] * HEADS + k[None, :], tl.exp(score - top[None, :]) / whole[None, :], mask)


@triton_kernel
def _edge_softmax_backward_kernel(
    indptr: tl.tensor,
    indices: tl.tensor,
    src: tl.tensor,
    dst: tl.tensor,
    edge_score: tl.tensor,
    weight: tl.tensor,
    grad: tl.tensor,
    d_score: tl.tensor,
    d_dst: tl.tensor,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    HEADS: tl.constexpr = SHAPE[0]
    SLOPE: tl.constexpr = SHAPE[1]
    EDGES: tl.constexpr = TILE[0]
    WIDTH: tl.constexpr = TILE[1]
    ACC: tl.constexpr = tl.float64 if d_dst.dtype.element_ty == tl.float64 else tl.float32
    row = tl.program_id(0).to(tl.int64)
    first, last = tl.load(indptr + row), tl.load(indptr + row + 1)
    k = tl.arange(0, WIDTH)
    dst_score = tl.load(dst + row * HEADS + k, k < HEADS, 0).to(ACC)
    # Gradient of a softmax: w * (g - sum of w * g over the row), w its result, g the gradient.
    products = tl.zeros([EDGES, WIDTH], ACC)
    for start in range(first, last, EDGES):
        e = start + tl.arange(0, EDGES)
        mask = (e < last)[:, None] & (k < HEADS)[None, :]
        at = e[:, None] * HEADS + k[None, :]
        products += tl.load(weight + at, mask, 0).to(ACC) * tl.load(grad + at, mask, 0).to(ACC)
    mean = tl.sum(products, 0)
    total = tl.zeros([EDGES, WIDTH], ACC)
    for start in range(first, last, EDGES):
        e = start + tl.arange(0, EDGES)
        mask = (e < last)[:, None] & (k < HEADS)[None, :]
        at = e[:, None] * HEADS + k[None, :]
        other = tl.load(indices + e, e < last, 0).to(tl.int64)
        score = _edge_scores(src, dst_score, edge_score, other, e, k, mask, HEADS)
        value = tl.load(weight + at, mask, 0).to(ACC) * (tl.load(grad + at, mask, 0).to(ACC) - mean[None, :])
        value = tl.where(score > 0, value, value * SLOPE)
        tl.store(d_score + at, value, mask)
        total += value
    tl.store(d_dst + row * HEADS + k, tl.sum(total, 0), k < HEADS)
