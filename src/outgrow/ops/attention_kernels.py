"""The kernels under `outgrow.ops.attention`: softmax over the edges of a row, forward and backward.

The few rows that are cut (`outgrow.ops.parts`) get their scores from the kernels, their maxima and sums from NumPy.
Letters: ``M`` rows, ``E`` edges, ``K`` heads, which are compile-time constants.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import inlined, kernel, prange
from outgrow.ops.exponential import exp_of
from outgrow.ops.parts import END_ROW, ROW, cut_rows, even_parts, is_whole, piece
from outgrow.ops.pieces import add_cut, place
from outgrow.ops.prefetch import NUMBERS_AHEAD, prefetch

Array = NDArray[Any]
Scores = tuple[Array, Array, Any]
"""Scores of sources and of destinations, and the slope."""


def softmax_rows(indptr: Array, indices: Array, scores: Scores, edge: Array | None, out: Array) -> None:
    """``out[e] = softmax over the edges of a row of leaky_relu(score of e)``."""
    parts = even_parts(indptr)
    _softmax_of(out.shape[1])(parts, indptr, indices, scores, edge, out)
    for row in cut_rows(parts, indptr):
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
    """Gradients of the scores of edges before the leaky ReLU, and their sums over each row."""
    parts, heads = even_parts(indptr), weight.shape[1]
    rows = cut_rows(parts, indptr)
    means = np.empty((len(rows), heads), weight.dtype)
    for at, row in enumerate(rows):
        edges = slice(indptr[row], indptr[row + 1])
        means[at] = (weight[edges] * grad[edges]).sum(0)
    cut = np.empty((len(parts), heads), weight.dtype)
    _backward_of(heads)(parts, indptr, indices, scores, edge, weight, grad, rows, means, d_score, d_dst, cut)


@kernel
def add_edges(parts: Array, indptr: Array, edge: Array, values: Array, out: Array) -> None:
    """``out[m] = sum over edges i of m of values[edge[i]]``."""
    cut = np.empty((len(parts), out.shape[1]), out.dtype)
    for part in prange(len(parts)):
        total = np.empty(out.shape[1], out.dtype)
        for u in range(parts[part, ROW], parts[part, END_ROW]):
            for k in range(len(total)):
                total[k] = 0
            first, last = piece(parts, part, indptr, u)
            for i in range(first, last):
                prefetch(values, edge[min(i + NUMBERS_AHEAD, len(edge) - 1)], 0)
                for k in range(len(total)):
                    total[k] += values[edge[i], k]
            place(parts, part, indptr, u, total, out, cut)
    add_cut(parts, indptr, out, cut)


@cache
def _softmax_of(heads: int) -> Callable[..., None]:
    @kernel
    def softmax(parts: Array, indptr: Array, indices: Array, scores: Scores, edge: Array | None, out: Array) -> None:
        flat = out.reshape(-1)
        for part in prange(len(parts)):
            slope = scores[2]
            top, total = np.empty(heads, out.dtype), np.empty(heads, out.dtype)
            for v in range(parts[part, ROW], parts[part, END_ROW]):
                first, last = piece(parts, part, indptr, v)
                # loops of one purpose: the compiler computes several at once in each
                for e in range(first, last):
                    prefetch(scores[0], indices[min(e + NUMBERS_AHEAD, len(indices) - 1)], 0)
                    for k in range(heads):
                        score = _score(scores, edge, indices[e], v, e, k)
                        out[e, k] = max(score, score * slope) if slope < 1 else min(score, score * slope)
                if is_whole(parts, part, indptr, v):
                    for k in range(heads):
                        highest = out.dtype.type(-np.inf)
                        for e in range(first, last):
                            highest = max(highest, out[e, k])
                        top[k] = highest
                    for e in range(first, last):
                        for k in range(heads):
                            out[e, k] -= top[k]
                    for j in range(first * heads, last * heads):
                        flat[j] = exp_of(flat[j])
                    for k in range(heads):
                        sum_k = out.dtype.type(0)
                        for e in range(first, last):
                            sum_k += out[e, k]
                        total[k] = 1 / sum_k
                    for e in range(first, last):
                        for k in range(heads):
                            out[e, k] *= total[k]

    return softmax


@cache
def _backward_of(heads: int) -> Callable[..., None]:
    @kernel
    def backward(
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
                first, last = piece(parts, part, indptr, v)
                whole = is_whole(parts, part, indptr, v)
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
                    prefetch(scores[0], indices[min(e + NUMBERS_AHEAD, len(indices) - 1)], 0)
                    for k in range(heads):
                        value = weight[e, k] * (grad[e, k] - mean[k])
                        below = _score(scores, edge, indices[e], v, e, k) <= 0
                        value = value * scores[2] if below else value
                        d_score[e, k] = value
                        total[k] += value
                place(parts, part, indptr, v, total, d_dst, cut)
        add_cut(parts, indptr, d_dst, cut)

    return backward


@inlined
def _score(scores: Scores, edge: Array | None, u: int, v: int, e: int, k: int) -> Any:
    """Score of an edge before the leaky ReLU."""
    src, dst, _ = scores
    return src[u, k] + dst[v, k] if edge is None else src[u, k] + dst[v, k] + edge[e, k]
