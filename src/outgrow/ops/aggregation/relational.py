"""Aggregation over edges of several relations: means per relation, trained weights, no row per edge.

Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``R`` relations, ``B`` bases, ``F`` columns.
Gradients that sum over all edges do so in a fixed number of parts and in order, whatever the number of
threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from outgrow.core.block import Block, Edges
from outgrow.ops.aggregation.base import Aggregate, Aggregation
from outgrow.ops.aggregation.relation_edges import self_loop_relation, validate_relations
from outgrow.ops.backend import as_numpy, gpu_dispatch, kernel_factory, once_differentiable, parallel_kernel, prange
from outgrow.ops.csc import cached_transpose
from outgrow.ops.edge_weight import apply_sample_weight, divide_by_totals, require_divisible_block
from outgrow.ops.kernels.numerics import accumulate_dtype
from outgrow.ops.kernels.work_split import (
    END_ROW,
    ROW,
    add_split_rows,
    as_kernel_array,
    balanced_work,
    launch_balanced,
    row_span,
    specialised_width,
    store_row,
)

Array = NDArray[Any]

_SHARES = 16
"""Parallel partial sums over all edges; fixed, so that results do not depend on the threads."""


def relation_mean_weight(block: Block, num_relations: int, dtype: torch.dtype) -> Tensor:
    """Return ``[E, 1]``: weight of each edge over the total of its destination's edges of the same relation.

    The totals are those of the graph if the block has them, as it must unless it holds all in-edges of its
    destinations; else they are computed from the block. Sampled edges are scaled by the number of edges that
    they stand for (see `apply_sample_weight`). Computed once per block.
    """
    dtype = accumulate_dtype(dtype)
    edges = block.edges
    slot = f"relation mean {dtype}"
    relation = validate_relations(edges, num_relations)
    if slot not in edges.cache:
        require_divisible_block(block, by_relation=True)
        out = edges.indptr.new_empty(edges.num_edges, 1, dtype=dtype)
        if block.relation_degree is None:
            write_relation_mean(edges.indptr, relation, edges.weight, num_relations, out.view(-1))
        else:
            out.fill_(1) if edges.weight is None else out.copy_(edges.weight[:, None])
            out /= block.relation_degree[:, None]
            # The weights of a relation may sum to 0, where a mean is undefined: such edges count for nothing.
            out.nan_to_num_(0, 0, 0)
        edges.cache[slot] = apply_sample_weight(block, out)
    return cast(Tensor, edges.cache[slot])


def basis_weight(edges: Edges, share_RB: Tensor, scale_E1: Tensor) -> Tensor:
    """Return ``[E, B]``: ``scale[e] * share[relation of e]``, differentiable in ``share``.

    Args:
        edges: In-edges of a block, whose relations are below ``R``.
        share_RB: ``[R, B]``: coefficient of each basis in each relation.
        scale_E1: ``[E, 1]`` constant.
    """
    validate_relations(edges, len(share_RB))
    return _BasisWeight.apply(share_RB, scale_E1, edges)  # type: ignore[no-any-return, no-untyped-call]


class RelationScale(nn.Module, Aggregation):
    """Sum over in-edges with a trained scale per relation and column.

    ``out[v] = sum over in-edges e of weight[e] * scale[relation of e] * src[source of e]``, column by column.

    Args:
        num_relations: ``R``.
        columns: ``F``.
        loops: Whether added self-loops form one more relation, the last.
    """

    sliceable = True
    additive = True

    def __init__(self, num_relations: int, columns: int, *, loops: bool = False) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(num_relations + loops, columns))
        self.loops = loops
        nn.init.normal_(self.scale, 1.0, 0.1)

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate one channel with one constant weight per edge; see `Aggregation`."""
        return self._apply_scale(self.scale, block, src_VsCF, weight_EK)

    def restrict_to_columns(self, first: int, last: int) -> Aggregate:
        """Return the aggregation with the scales of these columns only."""
        scale_RF = self.scale[:, first:last]
        return lambda block, src_VsCF, _, weight_EK: self._apply_scale(scale_RF, block, src_VsCF, weight_EK)

    def _apply_scale(self, scale_RF: Tensor, block: Block, src_VsCF: Tensor, weight_EK: Tensor | None) -> Tensor:
        assert src_VsCF.shape[1:] == (1, scale_RF.shape[1])
        assert weight_EK is not None
        assert weight_EK.shape[1] == 1
        assert not weight_EK.requires_grad
        edges = self_loop_relation(block.edges, len(scale_RF) - 1) if self.loops else block.edges
        return sum_scaled_rows(src_VsCF, scale_RF, weight_EK, edges)


class _BasisWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, share_RB: Tensor, scale_E1: Tensor, edges: Edges) -> Tensor:
        ctx.edges = edges
        ctx.shape = share_RB.shape
        ctx.save_for_backward(scale_E1)
        out = share_RB.new_empty(edges.num_edges, share_RB.shape[1])
        basis_weight_forward(validate_relations(edges, len(share_RB)), share_RB, scale_E1.view(-1), out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_EB: Tensor) -> tuple[Tensor, None, None]:
        (scale_E1,) = ctx.saved_tensors
        out = grad_EB.new_empty(ctx.shape)
        basis_grad(validate_relations(ctx.edges, len(out)), scale_E1.view(-1), grad_EB, out)
        return out, None, None


def sum_scaled_rows(src_VsCF: Tensor, scale_RF: Tensor, weight_E1: Tensor, edges: Edges) -> Tensor:
    """Return ``[Vd, 1, F]``: the sum of `RelationScale` with these scales, differentiable in rows and scales."""
    validate_relations(edges, len(scale_RF))
    return _RelationScale.apply(src_VsCF, scale_RF, weight_E1, edges)  # type: ignore[no-any-return, no-untyped-call]


class _RelationScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, src_VsCF: Tensor, scale_RF: Tensor, weight_E1: Tensor, edges: Edges) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(src_VsCF, scale_RF, weight_E1)
        relation = validate_relations(edges, len(scale_RF))
        weight_E = weight_E1.view(-1)
        # The kernel looks weights and relations up by edge position, so that it serves the transposed edges
        # as well.
        at = torch.arange(edges.num_edges, device=src_VsCF.device)
        out = src_VsCF.new_empty(edges.num_dst, 1, src_VsCF.shape[2])
        relational_spmm(
            edges.indptr, edges.indices, at, relation, weight_E, scale_RF, src_VsCF.flatten(1), out.flatten(1)
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_VdCF: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        src_VsCF, scale_RF, weight_E1 = ctx.saved_tensors
        edges: Edges = ctx.edges
        relation = validate_relations(edges, len(scale_RF))
        weight_E = weight_E1.view(-1)
        grad_VdF = grad_VdCF.flatten(1)
        d_src = d_scale = None
        if ctx.needs_input_grad[0]:
            back = cached_transpose(edges)
            d_src = src_VsCF.new_empty(src_VsCF.shape)
            relational_spmm(*back, relation, weight_E, scale_RF, grad_VdF, d_src.flatten(1))
        if ctx.needs_input_grad[1]:
            d_scale = scale_RF.new_empty(scale_RF.shape)
            given = relation, weight_E, src_VsCF.flatten(1), grad_VdF
            relational_scale_grad(edges.indptr, edges.indices, *given, d_scale)
        return d_src, d_scale, None, None


@gpu_dispatch
def write_relation_mean(
    indptr: Tensor, relation: Tensor, weight_E: Tensor | None, num_relations: int, out_E: Tensor
) -> None:
    """Compute `relation_mean_weight` into ``out_E``; 0 where the quotient is not finite."""
    parts = balanced_work(as_numpy(indptr))
    weight = None if weight_E is None else as_numpy(weight_E)
    # Float64, since float32 loses digits in sums over many edges.
    total = np.zeros((len(parts), 2, num_relations))
    divide_by_totals(parts, as_numpy(indptr), as_numpy(relation), weight, total, as_numpy(out_E))


@gpu_dispatch
def basis_weight_forward(relation: Tensor, share_RB: Tensor, scale_E: Tensor, out_EB: Tensor) -> None:
    """Compute `basis_weight` into ``out_EB``."""
    _basis_weight_kernel(as_numpy(relation), as_numpy(share_RB), as_numpy(scale_E), as_numpy(out_EB))


@gpu_dispatch
def basis_grad(relation: Tensor, scale_E: Tensor, grad_EB: Tensor, out_RB: Tensor) -> None:
    """Compute the gradient of the shares from that of the weights, into ``out_RB``; summed in float64."""
    sums = np.zeros((_SHARES, *out_RB.shape))
    _basis_grad_kernel(as_numpy(relation), as_numpy(scale_E), as_numpy(grad_EB), sums)
    as_numpy(out_RB)[:] = sums.sum(0)


@gpu_dispatch
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
    """Compute ``out[m] = sum over i of m of weight[e] * scale[relation[e]] * src[indices[i]]``.

    ``e`` is ``edge[i]``, the position of the weight and the relation.
    """
    launch_balanced(_make_relational_spmm, indptr, indices, edge, relation, weight_E, scale_RF, src_NF, out=out_MF)


@gpu_dispatch
def relational_scale_grad(
    indptr: Tensor,
    indices: Tensor,
    relation: Tensor,
    weight_E: Tensor,
    src_VsF: Tensor,
    grad_VdF: Tensor,
    out_RF: Tensor,
) -> None:
    """Compute the gradient of the relations' scales, into ``out_RF``; summed in float64."""
    sums = np.zeros((_SHARES, *out_RF.shape))
    given = (as_kernel_array(value) for value in (indptr, indices, relation, weight_E, src_VsF, grad_VdF))
    _make_scale_grad_kernel(specialised_width(len(indices), out_RF.shape[1]))(
        balanced_work(as_numpy(indptr)), *given, sums
    )
    as_numpy(out_RF)[:] = sums.sum(0)


@parallel_kernel
def _basis_weight_kernel(relation: Array, share: Array, scale: Array, out: Array) -> None:
    for e in prange(out.shape[0]):
        for b in range(out.shape[1]):
            out[e, b] = scale[e] * share[relation[e], b]


@parallel_kernel
def _basis_grad_kernel(relation: Array, scale: Array, grad: Array, sums: Array) -> None:
    count = len(relation)
    for share in prange(len(sums)):
        for e in range(count * share // len(sums), count * (share + 1) // len(sums)):
            # Many edges have the same relation, so each share of the edges has its own table of sums.
            for b in range(grad.shape[1]):
                sums[share, relation[e], b] += scale[e] * grad[e, b]


@kernel_factory
def _make_relational_spmm(fixed: int | None) -> Callable[..., None]:
    @parallel_kernel
    def relational_spmm_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        edge: Array,
        relation: Array,
        weight: Array,
        scale: Array,
        src: Array,
        columns: int,
        out: Array,
        cut: Array,
    ) -> None:
        width = columns if fixed is None else fixed
        for part in prange(len(parts)):
            total = np.empty(width, out.dtype)
            for m in range(parts[part, ROW], parts[part, END_ROW]):
                for f in range(len(total)):
                    total[f] = 0
                for i in range(*row_span(parts, part, indptr, m)):
                    u = indices[i]
                    factor = weight[edge[i]]
                    r = relation[edge[i]]
                    for f in range(width):
                        total[f] += factor * scale[r, f] * src[u, f]
                store_row(parts, part, indptr, m, total, out, cut)
        add_split_rows(parts, indptr, out, cut)

    return relational_spmm_kernel


@kernel_factory
def _make_scale_grad_kernel(fixed: int | None) -> Callable[..., None]:
    @parallel_kernel
    def scale_grad_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        relation: Array,
        weight: Array,
        src: Array,
        grad: Array,
        sums: Array,
    ) -> None:
        width = sums.shape[2] if fixed is None else fixed
        count = len(parts)
        shares = len(sums)
        # Whole parts per share: the order of each sum follows from the edges alone, not from the threads.
        for share in prange(shares):
            for part in range(count * share // shares, count * (share + 1) // shares):
                for v in range(parts[part, ROW], parts[part, END_ROW]):
                    for e in range(*row_span(parts, part, indptr, v)):
                        u = indices[e]
                        r = relation[e]
                        factor = weight[e]
                        for f in range(width):
                            sums[share, r, f] += factor * src[u, f] * grad[v, f]

    return scale_grad_kernel
