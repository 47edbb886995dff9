"""Gated sum over in-edges and its backward pass.

The gate is computed per edge: a GPU has arithmetic to spare while it waits for memory.
Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``F`` columns.
"""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from outgrow.ops.gpu.launch import program_edges, store_partial_sum, sum_over_edges, triton_function, triton_kernel


def gated_sum(
    indptr: Tensor, indices: Tensor, src_Vs2F: Tensor, dst_Vd1F: Tensor, weight_E: Tensor | None, out_Vd1F: Tensor
) -> None:
    """Compute the gated sum over in-edges.

    ``out[v] = sum over in-edges e of weight[e] * sigmoid(src[u, 0] + dst[v, 0]) * src[u, 1]``, ``u`` the
    source.

    Args:
        indptr: ``[Vd + 1]`` int64.
        indices: ``[E]`` int32 or int64, source of each edge.
        src_Vs2F: ``[Vs, 2, F]``.
        dst_Vd1F: ``[Vd, 1, F]``.
        weight_E: ``[E]``; None if all are 1.
        out_Vd1F: ``[Vd, 1, F]``, written.
    """
    given = indices, src_Vs2F, dst_Vd1F, weight_E, None
    sum_over_edges(_grad_dst_kernel, indptr, len(indices), out_Vd1F, *given, shape=())


def gated_grad_dst(
    indptr: Tensor,
    indices: Tensor,
    src_Vs2F: Tensor,
    dst_Vd1F: Tensor,
    weight_E: Tensor | None,
    grad_Vd1F: Tensor,
    out_Vd1F: Tensor,
) -> None:
    """Compute the gradient of ``dst``, ``[Vd, 1, F]``, from that of the sum; arguments as in `gated_sum`."""
    given = indices, src_Vs2F, dst_Vd1F, weight_E, grad_Vd1F
    sum_over_edges(_grad_dst_kernel, indptr, len(indices), out_Vd1F, *given, shape=())


def gated_grad_src(
    indptr: Tensor,
    indices: Tensor,
    edge: Tensor,
    src_Vs2F: Tensor,
    dst_Vd1F: Tensor,
    weight_E: Tensor | None,
    grad_Vd1F: Tensor,
    out_Vs2F: Tensor,
) -> None:
    """Compute the gradient of ``src``, ``[Vs, 2, F]``, over the out-edges of each source.

    Args:
        indptr: ``[Vs + 1]`` int64.
        indices: ``[E]`` int32 or int64, destination of each out-edge.
        edge: ``[E]`` int32 or int64, position of each out-edge among the in-edges.
        src_Vs2F: ``[Vs, 2, F]``.
        dst_Vd1F: ``[Vd, 1, F]``.
        weight_E: ``[E]`` weight of each in-edge; None if all are 1.
        grad_Vd1F: ``[Vd, 1, F]``.
        out_Vs2F: ``[Vs, 2, F]``, written.
    """
    given = indices, edge, src_Vs2F, dst_Vd1F, weight_E, grad_Vd1F
    sum_over_edges(_grad_src_kernel, indptr, len(indices), out_Vs2F, *given, shape=())


@triton_function
def _sigmoid(score: tl.tensor) -> tl.tensor:
    return 1 / (1 + tl.exp(-score))


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
    """Compute the sum itself if ``grad`` is None, else the gradient of ``dst``."""
    F: tl.constexpr = SHAPE[0]
    SEGMENT: tl.constexpr = TILE[0]
    EDGES: tl.constexpr = TILE[1]
    COLUMNS: tl.constexpr = TILE[2]
    ACC: tl.constexpr = scratch.dtype.element_ty
    row, first, last = program_edges(indptr, num_cuts, SEGMENT)
    f = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    inside = f < F
    dst_row = tl.load(dst + row * F + f, inside, 0).to(ACC)
    total = tl.zeros([EDGES, COLUMNS], ACC)
    for start in range(first, last, EDGES):
        e = start + tl.arange(0, EDGES)
        mask = (e < last)[:, None] & inside[None, :]
        other = tl.load(indices + e, e < last, 0).to(tl.int64)
        at = other[:, None] * (2 * F) + f[None, :]
        gate = _sigmoid(tl.load(src + at, mask, 0).to(ACC) + dst_row[None, :])
        term = tl.load(src + at + F, mask, 0).to(ACC) * gate
        if weight is not None:
            term *= tl.load(weight + e, e < last, 0).to(ACC)[:, None]
        # Derivative of the sigmoid s: s * (1 - s).
        if grad is not None:
            term *= 1 - gate
        total += term
    # The gradient of the sum is common to the row's edges, so it is multiplied in once, per segment if the
    # row is cut.
    result = tl.sum(total, 0)
    if grad is not None:
        result *= tl.load(grad + row * F + f, inside, 0).to(ACC)
    store_partial_sum(out, scratch, num_cuts, f, result, inside, F)


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
    SEGMENT: tl.constexpr = TILE[0]
    EDGES: tl.constexpr = TILE[1]
    COLUMNS: tl.constexpr = TILE[2]
    ACC: tl.constexpr = scratch.dtype.element_ty
    row, first, last = program_edges(indptr, num_cuts, SEGMENT)
    f = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    inside = f < F
    gate = tl.load(src + row * (2 * F) + f, inside, 0).to(ACC)
    value = tl.load(src + row * (2 * F) + F + f, inside, 0).to(ACC)
    d_gate = tl.zeros([EDGES, COLUMNS], ACC)
    d_value = tl.zeros([EDGES, COLUMNS], ACC)
    for start in range(first, last, EDGES):
        i = start + tl.arange(0, EDGES)
        mask = (i < last)[:, None] & inside[None, :]
        other = tl.load(indices + i, i < last, 0).to(tl.int64)
        at = other[:, None] * F + f[None, :]
        sigmoid = _sigmoid(gate[None, :] + tl.load(dst + at, mask, 0).to(ACC))
        term = tl.load(grad + at, mask, 0).to(ACC) * sigmoid
        if weight is not None:
            e = tl.load(edge + i, i < last, 0).to(tl.int64)
            term *= tl.load(weight + e, i < last, 0).to(ACC)[:, None]
        d_value += term
        d_gate += term * (1 - sigmoid)
    # The value is common to the out-edges of a source, so the gate's gradient is scaled by it once.
    store_partial_sum(out, scratch, num_cuts, f, tl.sum(d_gate, 0) * value, inside, 2 * F)
    store_partial_sum(out, scratch, num_cuts, F + f, tl.sum(d_value, 0), inside, 2 * F)
