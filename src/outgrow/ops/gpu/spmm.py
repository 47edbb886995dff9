"""SpMM and SDDMM over the edges of each node, and their backward pass.

Letters: ``M`` result rows, ``N`` input rows, ``E`` edges, ``C`` channels, ``K`` weights of an edge, ``F``
columns.
"""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from outgrow.ops.gpu.launch import (
    launch_kernel,
    num_extra_segments,
    program_edges,
    segment_tile,
    store_partial_sum,
    sum_over_edges,
    triton_kernel,
)
from outgrow.ops.memory_pool import pooled_empty


def spmm(
    indptr: Tensor,
    indices: Tensor,
    edge: Tensor | None,
    weight: Tensor | None,
    rows: Tensor,
    out: Tensor,
    *,
    add: bool = False,
    num_edges: int | None = None,
) -> None:
    """Compute ``out[m, k] = sum over edges i of m of weight[edge[i] or i, k] * rows[indices[i], k or 0]``.

    Args:
        indptr: ``[M + 1]`` int64.
        indices: ``[E]`` int32 or int64, row of each edge.
        edge: ``[E]`` position of the weight of each edge; None if it is that of the edge.
        weight: ``[E, K]``; None if all are 1.
        rows: ``[N, C, F]`` of any floating type; ``C`` is ``K`` or 1.
        out: ``[M, K, F]``, written.
        add: Whether to add to ``out``.
        num_edges: Used on the CPU only.
    """
    if add:
        # The kernel overwrites its output, so the sum needs memory of its own.
        sums = pooled_empty(tuple(out.shape), out)
        spmm(indptr, indices, edge, weight, rows, sums)
        out.add_(sums)
        return
    weights, shared = out.shape[1], rows.shape[1] == 1
    given = indices, edge, weight, rows, None, None
    sum_over_edges(_spmm_kernel, indptr, len(indices), out, *given, shape=(weights, shared, 1), channels=weights)


def spmm_sum_heads(indptr: Tensor, indices: Tensor, edge: Tensor, weight: Tensor, rows: Tensor, out: Tensor) -> None:
    """Compute ``out[m, 0] = sum over edges i of m and k of weight[edge[i], k] * rows[indices[i], k]``.

    Args:
        indptr: ``[M + 1]`` int64.
        indices: ``[E]`` int32 or int64, row of each edge.
        edge: ``[E]`` position of the weights of each edge.
        weight: ``[E, K]``.
        rows: ``[N, K, F]``.
        out: ``[M, 1, F]``, written.
    """
    weights = rows.shape[1]
    given = indices, edge, weight, rows, None, None
    sum_over_edges(_spmm_kernel, indptr, len(indices), out, *given, shape=(weights, False, weights))


def spmm_backward_fused(
    indptr: Tensor,
    indices: Tensor,
    edge: Tensor,
    weight: Tensor,
    rows: Tensor,
    own: Tensor,
    out: Tensor,
    d_weight: Tensor,
) -> None:
    """Compute both gradients of a weighted sum in one pass over the out-edges of each source ``m``.

    ``out[m, k or 0] = sum over edges i of m of weight[edge[i], k] * rows[indices[i], k]``, summed over ``k``
    as well if ``C`` is 1; ``d_weight[edge[i], k] = rows[indices[i], k] . own[m, k or 0]``.

    Args:
        indptr: ``[M + 1]`` int64.
        indices: ``[E]`` int32 or int64, row of each edge.
        edge: ``[E]`` position of the weights of each edge.
        weight: ``[E, K]``.
        rows: ``[N, K, F]``, the gradient of the sum.
        own: ``[M, C, F]``, the rows that were summed; ``C`` is ``K`` or 1.
        out: ``[M, C, F]``, written.
        d_weight: ``[E, K]``, written.
    """
    weights, channels = rows.shape[1], own.shape[1]
    # Whole rows per program: the dot product for an edge's weight needs all columns.
    given = indices, edge, weight, rows, own, d_weight
    shape = (weights, False, weights // channels)
    sum_over_edges(_spmm_kernel, indptr, len(indices), out, *given, shape=shape, channels=channels, whole_rows=True)


def sddmm_dot(indptr: Tensor, indices: Tensor, rows: Tensor, other: Tensor, out: Tensor) -> None:
    """Compute ``out[e, k] = other[m, k] . rows[indices[e], k or 0]`` for each edge ``e`` of ``m``.

    Args:
        indptr: ``[M + 1]`` int64.
        indices: ``[E]`` int32 or int64, row of each edge.
        rows: ``[N, C, F]``; ``C`` is ``K`` or 1.
        other: ``[M, K, F]``.
        out: ``[E, K]``, written.
    """
    num_rows, weights, columns = other.shape
    cuts = num_extra_segments(len(indices))
    shape = columns, weights, rows.shape[1] == 1
    given = indptr, cuts, indices, rows, other, out
    launch_kernel(_sddmm_kernel, (cuts + num_rows, weights), *given, SHAPE=shape, TILE=segment_tile(columns))


@triton_kernel
def _spmm_kernel(
    indptr: tl.tensor,
    out: tl.tensor,
    scratch: tl.tensor,
    num_cuts: tl.tensor,
    indices: tl.tensor,
    edge: tl.tensor,
    weight: tl.tensor,
    rows: tl.tensor,
    own: tl.tensor,
    d_weight: tl.tensor,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    F: tl.constexpr = SHAPE[0]
    WEIGHTS: tl.constexpr = SHAPE[1]
    SHARED: tl.constexpr = SHAPE[2]
    SUMMED: tl.constexpr = SHAPE[3]
    SEGMENT: tl.constexpr = TILE[0]
    EDGES: tl.constexpr = TILE[1]
    COLUMNS: tl.constexpr = TILE[2]
    # One kernel for three ops: SUMMED weights of an edge go into one result channel (shared bases or heads),
    # and ``d_weight`` adds the second gradient. Triton compiles only the branches in use.
    CHANNELS: tl.constexpr = WEIGHTS // SUMMED
    ACC: tl.constexpr = scratch.dtype.element_ty
    row, first, last = program_edges(indptr, num_cuts, SEGMENT)
    channel = tl.program_id(1)
    f = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    inside = f < F
    if d_weight is not None:
        own_row = tl.load(own + (row * CHANNELS + channel) * F + f, inside, 0).to(ACC)
    # A row of partial sums per edge of the tile: they are added once at the end, not in every iteration.
    total = tl.zeros([EDGES, COLUMNS], ACC)
    for start in range(first, last, EDGES):
        i = start + tl.arange(0, EDGES)
        is_edge = i < last
        at = i if edge is None else tl.load(edge + i, is_edge, 0).to(tl.int64)
        other = tl.load(indices + i, is_edge, 0).to(tl.int64)
        for part in range(SUMMED):
            k = channel + part
            given = other if SHARED else other * WEIGHTS + k
            values = tl.load(rows + given[:, None] * F + f[None, :], is_edge[:, None] & inside[None, :], 0).to(ACC)
            if d_weight is not None:
                tl.store(d_weight + at * WEIGHTS + k, tl.sum(values * own_row[None, :], 1), is_edge)
            if weight is not None:
                values *= tl.load(weight + at * WEIGHTS + k, is_edge, 0).to(ACC)[:, None]
            total += values
    store_partial_sum(out, scratch, num_cuts, channel * F + f, tl.sum(total, 0), inside, CHANNELS * F)


@triton_kernel
def _sddmm_kernel(
    indptr: tl.tensor,
    num_cuts: tl.tensor,
    indices: tl.tensor,
    rows: tl.tensor,
    other: tl.tensor,
    out: tl.tensor,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    F: tl.constexpr = SHAPE[0]
    WEIGHTS: tl.constexpr = SHAPE[1]
    SHARED: tl.constexpr = SHAPE[2]
    SEGMENT: tl.constexpr = TILE[0]
    EDGES: tl.constexpr = TILE[1]
    COLUMNS: tl.constexpr = TILE[2]
    ACC: tl.constexpr = tl.float64 if out.dtype.element_ty == tl.float64 else tl.float32
    row, first, last = program_edges(indptr, num_cuts, SEGMENT)
    k = tl.program_id(1)
    own_row = other + (row * WEIGHTS + k) * F
    for start in range(first, last, EDGES):
        i = start + tl.arange(0, EDGES)
        is_edge = i < last
        given = tl.load(indices + i, is_edge, 0).to(tl.int64)
        given = given if SHARED else given * WEIGHTS + k
        total = tl.zeros([EDGES, COLUMNS], ACC)
        for begin in range(0, F, COLUMNS):
            f = begin + tl.arange(0, COLUMNS)
            inside = f < F
            values = tl.load(rows + given[:, None] * F + f[None, :], is_edge[:, None] & inside[None, :], 0).to(ACC)
            total += values * tl.load(own_row + f, inside, 0).to(ACC)[None, :]
        tl.store(out + i * WEIGHTS + k, tl.sum(total, 1), is_edge)
