"""Maximum over in-edges, column by column, and its backward pass.

Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``F`` columns.
"""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from outgrow.ops.gpu.launch import (
    launch_kernel,
    num_blocks,
    program_edges,
    store_partial_sum,
    sum_over_edges,
    tile_shape,
    triton_kernel,
)


def segment_max(indptr: Tensor, indices: Tensor, src_VsF: Tensor, out_VdF: Tensor, winner_VdF: Tensor) -> None:
    """Compute ``out[v, f] = max over in-edges e of src[source of e, f]``; a tie goes to the first edge.

    NaN wins at the first edge of a row and is skipped elsewhere.

    Args:
        indptr: ``[Vd + 1]`` int64.
        indices: ``[E]`` int32 or int64, source of each edge.
        src_VsF: ``[Vs, F]``.
        out_VdF: ``[Vd, F]``, written; 0 without in-edges.
        winner_VdF: ``[Vd, F]`` int32 or int64, written: the edge of the largest value; -1 without in-edges.
    """
    num_rows, columns = out_VdF.shape
    edges, width = tile_shape(columns)
    grid = num_rows, num_blocks(columns, width)
    launch_kernel(
        _max_kernel, grid, indptr, indices, src_VsF, out_VdF, winner_VdF, SHAPE=(columns,), TILE=(edges, width)
    )


def segment_max_backward(
    indptr: Tensor, dst: Tensor, edge: Tensor, winner_VdF: Tensor, grad_VdF: Tensor, out_VsF: Tensor
) -> None:
    """Compute ``out[u, f] = sum over out-edges e of u of grad[v, f] where winner[v, f] is e``.

    Args:
        indptr: ``[Vs + 1]`` int64.
        dst: ``[E]`` int32 or int64, destination ``v`` of each out-edge.
        edge: ``[E]`` int32 or int64, position of each out-edge among the in-edges.
        winner_VdF: ``[Vd, F]`` int32 or int64.
        grad_VdF: ``[Vd, F]``.
        out_VsF: ``[Vs, F]``, written.
    """
    sum_over_edges(_max_backward_kernel, indptr, len(dst), out_VsF[:, None], dst, edge, winner_VdF, grad_VdF, shape=())


@triton_kernel
def _max_kernel(
    indptr: tl.tensor,
    indices: tl.tensor,
    src: tl.tensor,
    out: tl.tensor,
    winner: tl.tensor,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    F: tl.constexpr = SHAPE[0]
    EDGES: tl.constexpr = TILE[0]
    COLUMNS: tl.constexpr = TILE[1]
    NONE: tl.constexpr = 2147483647
    dtype: tl.constexpr = src.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    first, last = tl.load(indptr + row), tl.load(indptr + row + 1)
    f = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = f < F
    best = tl.full([EDGES, COLUMNS], float("-inf"), dtype)
    # Position of the best edge of each lane, counted within the row.
    position = tl.full([EDGES, COLUMNS], NONE, tl.int32)
    for start in range(first, last, EDGES):
        e = start + tl.arange(0, EDGES)
        mask = (e < last)[:, None] & inside[None, :]
        other = tl.load(indices + e, e < last, 0).to(tl.int64)
        value = tl.load(src + other[:, None] * F + f[None, :], mask, float("-inf"))
        # A first value of -inf is not larger than the initial one but must still win; NaN is not equal to
        # itself.
        better = mask & ((value > best) | ((position == NONE) & (value == value)))
        best = tl.where(better, value, best)
        position = tl.where(better, (e - first).to(tl.int32)[:, None], position)
    top = tl.max(best, 0)
    # Among lanes with the largest value the smallest position: a tie goes to the first edge.
    chosen = tl.min(tl.where(best == top[None, :], position, NONE), 0)
    head = tl.zeros([COLUMNS], dtype)
    if first < last:
        head = tl.load(src + tl.load(indices + first).to(tl.int64) * F + f, inside, 0)
    # As on the CPU: NaN at the first edge of a row wins, and if every value is NaN the first edge does.
    by_head = (head != head) | (chosen == NONE)
    top = tl.where(by_head, head, top)
    chosen = tl.where(by_head, 0, chosen)
    tl.store(out + row * F + f, top, inside)
    tl.store(winner + row * F + f, tl.where(first < last, first + chosen, -1), inside)


@triton_kernel
def _max_backward_kernel(
    indptr: tl.tensor,
    out: tl.tensor,
    scratch: tl.tensor,
    num_cuts: tl.tensor,
    dst: tl.tensor,
    edge: tl.tensor,
    winner: tl.tensor,
    grad: tl.tensor,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    F: tl.constexpr = SHAPE[0]
    SEGMENT: tl.constexpr = TILE[0]
    EDGES: tl.constexpr = TILE[1]
    COLUMNS: tl.constexpr = TILE[2]
    ACC: tl.constexpr = scratch.dtype.element_ty
    _row, first, last = program_edges(indptr, num_cuts, SEGMENT)
    f = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    inside = f < F
    total = tl.zeros([EDGES, COLUMNS], ACC)
    for start in range(first, last, EDGES):
        i = start + tl.arange(0, EDGES)
        mask = (i < last)[:, None] & inside[None, :]
        e = tl.load(edge + i, i < last, 0)
        at = tl.load(dst + i, i < last, 0).to(tl.int64)[:, None] * F + f[None, :]
        won = tl.load(winner + at, mask, -1) == e[:, None]
        total += tl.load(grad + at, mask & won, 0).to(ACC)
    store_partial_sum(out, scratch, num_cuts, f, tl.sum(total, 0), inside, F)
