"""Edges of several relations: their means and trained weights.

Sums over the edges of a relation sort the edges by relation, so that a relation becomes a row, which may be
cut. Letters: ``M`` result rows, ``N`` input rows, ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``R``
relations, ``B`` bases, ``F`` columns.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from outgrow.ops.gpu.csc import edge_destinations, sort_by_row
from outgrow.ops.gpu.launch import (
    launch_kernel,
    next_power_of_two,
    num_blocks,
    program_edges,
    store_partial_sum,
    sum_over_edges,
    tile_shape,
    triton_kernel,
)
from outgrow.ops.gpu.spmm import spmm


def write_relation_mean(
    indptr: Tensor, relation: Tensor, weight_E: Tensor | None, num_relations: int, out_E: Tensor
) -> None:
    """Compute each edge's weight over the total of its row and relation; 0 if that is not finite.

    Args:
        indptr: ``[M + 1]`` int64.
        relation: ``[E]`` of any integer type, in ``[0, num_relations)``.
        weight_E: ``[E]``; None if all are 1.
        num_relations: ``R``.
        out_E: ``[E]``, written.
    """
    # A block of relations per pass bounds the tile; more than 64 take several passes over the row.
    relations = min(next_power_of_two(num_relations), 64)
    given = indptr, relation, weight_E, out_E, num_relations
    launch_kernel(_relation_mean_kernel, (len(indptr) - 1,), *given, TILE=(1024 // relations, relations))


def basis_weight_forward(relation: Tensor, share_RB: Tensor, scale_E: Tensor, out_EB: Tensor) -> None:
    """Compute ``out[e] = scale[e] * share[relation[e]]``.

    Args:
        relation: ``[E]`` of any integer type.
        share_RB: ``[R, B]``.
        scale_E: ``[E]``.
        out_EB: ``[E, B]``, written.
    """
    num_edges, bases = out_EB.shape
    edges, width = tile_shape(bases)
    grid = num_blocks(num_edges, edges), num_blocks(bases, width)
    given = relation, share_RB, scale_E, out_EB, num_edges
    launch_kernel(_basis_weight_kernel, grid, *given, SHAPE=(bases,), TILE=(edges, width))


def basis_grad(relation: Tensor, scale_E: Tensor, grad_EB: Tensor, out_RB: Tensor) -> None:
    """Compute ``out[r] = sum over edges e of relation r of scale[e] * grad[e]``, in float64.

    Args:
        relation: ``[E]`` of any integer type.
        scale_E: ``[E]``.
        grad_EB: ``[E, B]``.
        out_RB: ``[R, B]``, written.
    """
    indptr, order = sort_by_row(relation, len(out_RB))
    total = torch.empty_like(out_RB, dtype=torch.float64)
    spmm(indptr, order, order, scale_E[:, None], grad_EB[:, None], total[:, None])
    out_RB.copy_(total)


def relational_spmm(
    indptr: Tensor,
    indices: Tensor,
    edge: Tensor,
    relation: Tensor,
    weight_E: Tensor,
    scale_RF: Tensor,
    src_NF: Tensor,
    out_MF: Tensor,
) -> None:
    """Compute ``out[m] = sum over edges i of m of weight[e] * scale[relation[e]] * src[indices[i]]``.

    ``e`` is ``edge[i]``.

    Args:
        indptr: ``[M + 1]`` int64.
        indices: ``[E]`` int32 or int64, row of each edge.
        edge: ``[E]`` int32 or int64, position of the weight and the relation of each edge.
        relation: ``[E]`` of any integer type.
        weight_E: ``[E]``.
        scale_RF: ``[R, F]``.
        src_NF: ``[N, F]``.
        out_MF: ``[M, F]``, written.
    """
    given = edge, weight_E, indices, src_NF, relation, scale_RF
    sum_over_edges(_relational_product_kernel, indptr, len(indices), out_MF[:, None], *given, shape=())


def relational_scale_grad(
    indptr: Tensor,
    indices: Tensor,
    relation: Tensor,
    weight_E: Tensor,
    src_VsF: Tensor,
    grad_VdF: Tensor,
    out_RF: Tensor,
) -> None:
    """Compute ``out[r] = sum over edges e of r of weight[e] * src[indices[e]] * grad[destination of e]``.

    Args:
        indptr: ``[Vd + 1]`` int64.
        indices: ``[E]`` int32 or int64, source of each edge.
        relation: ``[E]`` of any integer type.
        weight_E: ``[E]``.
        src_VsF: ``[Vs, F]``.
        grad_VdF: ``[Vd, F]``.
        out_RF: ``[R, F]``, written.
    """
    # The same kernel as forward: relations take the place of rows, gradient rows that of scales.
    by_relation, order = sort_by_row(relation, len(out_RF))
    given = order, weight_E, indices[order], src_VsF, edge_destinations(indptr, len(indices)), grad_VdF
    sum_over_edges(_relational_product_kernel, by_relation, len(indices), out_RF[:, None], *given, shape=())


@triton_kernel
def _relation_mean_kernel(
    indptr: tl.tensor,
    relation: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    num_relations: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    """Compute the means of a block of relations at a time: compare each edge with each of them."""
    EDGES: tl.constexpr = TILE[0]
    RELATIONS: tl.constexpr = TILE[1]
    row = tl.program_id(0).to(tl.int64)
    first, last = tl.load(indptr + row), tl.load(indptr + row + 1)
    for begin in range(0, num_relations, RELATIONS):
        r = begin + tl.arange(0, RELATIONS)
        counts = tl.zeros([EDGES, RELATIONS], tl.float64)
        for start in range(first, last, EDGES):
            e = start + tl.arange(0, EDGES)
            same = (e < last)[:, None] & (tl.load(relation + e, e < last, 0)[:, None] == r[None, :])
            own_weight = tl.full([EDGES], 1, tl.float64)
            if weight is not None:
                own_weight = tl.load(weight + e, e < last, 0).to(tl.float64)
            counts += tl.where(same, own_weight[:, None], 0)
        total = tl.sum(counts, 0)
        for start in range(first, last, EDGES):
            e = start + tl.arange(0, EDGES)
            same = (e < last)[:, None] & (tl.load(relation + e, e < last, 0)[:, None] == r[None, :])
            own_weight = tl.full([EDGES], 1, tl.float64)
            if weight is not None:
                own_weight = tl.load(weight + e, e < last, 0).to(tl.float64)
            whole = tl.sum(tl.where(same, total[None, :], 0), 1)
            # Divide by 1 instead of 0 and select afterwards: both sides of a selection are computed.
            share = own_weight / tl.where(whole == 0, 1, whole)
            # Each edge is written in the pass over its own relation only.
            is_here = tl.max(same.to(tl.int32), 1) > 0
            tl.store(out + e, tl.where((whole != 0) & (tl.abs(share) < float("inf")), share, 0), is_here)


@triton_kernel
def _basis_weight_kernel(
    relation: tl.tensor,
    share: tl.tensor,
    scale: tl.tensor,
    out: tl.tensor,
    num_edges: tl.tensor,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    B: tl.constexpr = SHAPE[0]
    EDGES: tl.constexpr = TILE[0]
    COLUMNS: tl.constexpr = TILE[1]
    e = tl.program_id(0).to(tl.int64) * EDGES + tl.arange(0, EDGES)
    b = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (e < num_edges)[:, None] & (b < B)[None, :]
    r = tl.load(relation + e, e < num_edges, 0).to(tl.int64)
    value = tl.load(share + r[:, None] * B + b[None, :], mask, 0)
    value *= tl.load(scale + e, e < num_edges, 0)[:, None]
    tl.store(out + e[:, None] * B + b[None, :], value, mask)


@triton_kernel
def _relational_product_kernel(
    indptr: tl.tensor,
    out: tl.tensor,
    scratch: tl.tensor,
    num_cuts: tl.tensor,
    edge: tl.tensor,
    weight: tl.tensor,
    left_row: tl.tensor,
    left: tl.tensor,
    right_row: tl.tensor,
    right: tl.tensor,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Sum ``weight[edge[i]] * left[left_row[i]] * right[right_row[edge[i]]]`` over edges ``i``."""
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
        e = tl.load(edge + i, i < last, 0).to(tl.int64)
        a = tl.load(left_row + i, i < last, 0).to(tl.int64)[:, None] * F + f[None, :]
        b = tl.load(right_row + e, i < last, 0).to(tl.int64)[:, None] * F + f[None, :]
        products = tl.load(left + a, mask, 0).to(ACC) * tl.load(right + b, mask, 0).to(ACC)
        total += products * tl.load(weight + e, i < last, 0).to(ACC)[:, None]
    store_partial_sum(out, scratch, num_cuts, f, tl.sum(total, 0), inside, F)
