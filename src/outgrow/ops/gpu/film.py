"""FiLM sum over in-edges and its backward pass.

Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``F`` columns.
"""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from outgrow.ops.gpu.launch import program_edges, store_partial_sum, sum_over_edges, triton_kernel


def film_sum(
    indptr: Tensor,
    indices: Tensor,
    src_Vs1F: Tensor,
    dst_Vd2F: Tensor,
    weight_E: Tensor | None,
    slope: float,
    out_Vd1F: Tensor,
) -> None:
    """Compute the sum of FiLM messages.

    ``out[v] = sum over in-edges e of weight[e] * leaky_relu(dst[v, 0] * src[u, 0] + dst[v, 1])``, ``u`` the
    source.

    Args:
        indptr: ``[Vd + 1]`` int64.
        indices: ``[E]`` int32 or int64, source of each edge.
        src_Vs1F: ``[Vs, 1, F]``.
        dst_Vd2F: ``[Vd, 2, F]``.
        weight_E: ``[E]``; None if all are 1.
        slope: Slope of the leaky ReLU below zero.
        out_Vd1F: ``[Vd, 1, F]``, written.
    """
    given = indices, src_Vs1F, dst_Vd2F, weight_E
    sum_over_edges(_film_kernel, indptr, len(indices), out_Vd1F, *given, shape=(slope,))


def film_grad_dst(
    indptr: Tensor,
    indices: Tensor,
    src_Vs1F: Tensor,
    dst_Vd2F: Tensor,
    weight_E: Tensor | None,
    slope: float,
    grad_Vd1F: Tensor,
    out_Vd2F: Tensor,
) -> None:
    """Compute the gradient of ``dst``, ``[Vd, 2, F]``, from that of the sum; arguments as in `film_sum`."""
    given = indices, src_Vs1F, dst_Vd2F, weight_E, grad_Vd1F
    sum_over_edges(_grad_dst_kernel, indptr, len(indices), out_Vd2F, *given, shape=(slope,))


def film_grad_src(
    indptr: Tensor,
    indices: Tensor,
    edge: Tensor,
    src_Vs1F: Tensor,
    dst_Vd2F: Tensor,
    weight_E: Tensor | None,
    slope: float,
    grad_Vd1F: Tensor,
    out_Vs1F: Tensor,
) -> None:
    """Compute the gradient of ``src``, ``[Vs, 1, F]``, over the out-edges of each source.

    Args:
        indptr: ``[Vs + 1]`` int64.
        indices: ``[E]`` int32 or int64, destination of each out-edge.
        edge: ``[E]`` int32 or int64, position of each out-edge among the in-edges.
        src_Vs1F: ``[Vs, 1, F]``.
        dst_Vd2F: ``[Vd, 2, F]``.
        weight_E: ``[E]`` weight of each in-edge; None if all are 1.
        slope: Slope of the leaky ReLU below zero.
        grad_Vd1F: ``[Vd, 1, F]``.
        out_Vs1F: ``[Vs, 1, F]``, written.
    """
    given = indices, edge, src_Vs1F, dst_Vd2F, weight_E, grad_Vd1F
    sum_over_edges(_grad_src_kernel, indptr, len(indices), out_Vs1F, *given, shape=(slope,))


@triton_kernel
def _film_kernel(
    indptr: tl.tensor,
    out: tl.tensor,
    scratch: tl.tensor,
    num_cuts: tl.tensor,
    indices: tl.tensor,
    src: tl.tensor,
    dst: tl.tensor,
    weight: tl.tensor,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    F: tl.constexpr = SHAPE[0]
    SLOPE: tl.constexpr = SHAPE[1]
    SEGMENT: tl.constexpr = TILE[0]
    EDGES: tl.constexpr = TILE[1]
    COLUMNS: tl.constexpr = TILE[2]
    ACC: tl.constexpr = scratch.dtype.element_ty
    row, first, last = program_edges(indptr, num_cuts, SEGMENT)
    f = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    inside = f < F
    gamma = tl.load(dst + row * (2 * F) + f, inside, 0).to(ACC)
    beta = tl.load(dst + row * (2 * F) + F + f, inside, 0).to(ACC)
    total = tl.zeros([EDGES, COLUMNS], ACC)
    for start in range(first, last, EDGES):
        e = start + tl.arange(0, EDGES)
        mask = (e < last)[:, None] & inside[None, :]
        other = tl.load(indices + e, e < last, 0).to(tl.int64)
        z = gamma[None, :] * tl.load(src + other[:, None] * F + f[None, :], mask, 0).to(ACC) + beta[None, :]
        message = tl.where(z > 0, z, z * SLOPE)
        if weight is not None:
            message *= tl.load(weight + e, e < last, 0).to(ACC)[:, None]
        total += tl.where(mask, message, 0)
    store_partial_sum(out, scratch, num_cuts, f, tl.sum(total, 0), inside, F)


@triton_kernel
def _grad_dst_kernel(
    indptr: tl.tensor,
    out: tl.tensor,
    scratch: tl.tensor,
    num_cuts: tl.tensor,
    indices: tl.tensor,
    src: tl.tensor,
    dst: tl.tensor,
    weight: tl.tensor,
    grad: tl.tensor,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    F: tl.constexpr = SHAPE[0]
    SLOPE: tl.constexpr = SHAPE[1]
    SEGMENT: tl.constexpr = TILE[0]
    EDGES: tl.constexpr = TILE[1]
    COLUMNS: tl.constexpr = TILE[2]
    ACC: tl.constexpr = scratch.dtype.element_ty
    row, first, last = program_edges(indptr, num_cuts, SEGMENT)
    f = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    inside = f < F
    gamma = tl.load(dst + row * (2 * F) + f, inside, 0).to(ACC)
    beta = tl.load(dst + row * (2 * F) + F + f, inside, 0).to(ACC)
    one = tl.full([EDGES, COLUMNS], 1, ACC)
    d_gamma = tl.zeros([EDGES, COLUMNS], ACC)
    d_beta = tl.zeros([EDGES, COLUMNS], ACC)
    for start in range(first, last, EDGES):
        e = start + tl.arange(0, EDGES)
        mask = (e < last)[:, None] & inside[None, :]
        other = tl.load(indices + e, e < last, 0).to(tl.int64)
        values = tl.load(src + other[:, None] * F + f[None, :], mask, 0).to(ACC)
        rate = tl.where(gamma[None, :] * values + beta[None, :] > 0, one, one * SLOPE)
        if weight is not None:
            rate *= tl.load(weight + e, e < last, 0).to(ACC)[:, None]
        # Lanes without an edge have loaded zeros, for which the derivative is not 0.
        rate = tl.where(mask, rate, 0)
        d_gamma += rate * values
        d_beta += rate
    # All edges of the row share this factor. The product distributes over the segments of a cut row.
    g = tl.load(grad + row * F + f, inside, 0).to(ACC)
    store_partial_sum(out, scratch, num_cuts, f, tl.sum(d_gamma, 0) * g, inside, 2 * F)
    store_partial_sum(out, scratch, num_cuts, F + f, tl.sum(d_beta, 0) * g, inside, 2 * F)


@triton_kernel
def _grad_src_kernel(
    indptr: tl.tensor,
    out: tl.tensor,
    scratch: tl.tensor,
    num_cuts: tl.tensor,
    indices: tl.tensor,
    edge: tl.tensor,
    src: tl.tensor,
    dst: tl.tensor,
    weight: tl.tensor,
    grad: tl.tensor,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    F: tl.constexpr = SHAPE[0]
    SLOPE: tl.constexpr = SHAPE[1]
    SEGMENT: tl.constexpr = TILE[0]
    EDGES: tl.constexpr = TILE[1]
    COLUMNS: tl.constexpr = TILE[2]
    ACC: tl.constexpr = scratch.dtype.element_ty
    row, first, last = program_edges(indptr, num_cuts, SEGMENT)
    f = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    inside = f < F
    src_row = tl.load(src + row * F + f, inside, 0).to(ACC)
    total = tl.zeros([EDGES, COLUMNS], ACC)
    for start in range(first, last, EDGES):
        i = start + tl.arange(0, EDGES)
        mask = (i < last)[:, None] & inside[None, :]
        other = tl.load(indices + i, i < last, 0).to(tl.int64)[:, None]
        gamma = tl.load(dst + other * (2 * F) + f[None, :], mask, 0).to(ACC)
        beta = tl.load(dst + other * (2 * F) + F + f[None, :], mask, 0).to(ACC)
        term = gamma * tl.load(grad + other * F + f[None, :], mask, 0).to(ACC)
        term = tl.where(gamma * src_row[None, :] + beta > 0, term, term * SLOPE)
        if weight is not None:
            e = tl.load(edge + i, i < last, 0).to(tl.int64)
            term *= tl.load(weight + e, i < last, 0).to(ACC)[:, None]
        total += term
    store_partial_sum(out, scratch, num_cuts, f, tl.sum(total, 0), inside, F)
