"""Sums and dot products of rows that each relation multiplies by a matrix of its own, without a row per edge.

Rows are summed over the edges of a pair of relation and node first, and dense products serve many pairs of a relation.
Backward, the same holds from the side of the sources, which gives the gradient of the matrices too: nothing that the
forward pass summed is stored, and it is summed again only where no source has a gradient. Letters: ``Vs`` sources,
``Vd`` destinations, ``E`` edges, ``R`` relations, ``B`` blocks on the diagonal, each of ``I`` by ``J`` numbers; ``D = B
* I`` and ``O = B * J`` columns; ``K`` weights of an edge, 1 or ``B``; ``p`` pairs of a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from outgrow.core.block import Block, Edges
from outgrow.ops.aggregation.base import Aggregation
from outgrow.ops.aggregation.block_matmul import (
    block_dot,
    block_gradient,
    block_sum,
    fits_block_kernels,
    in_edges_by_relation,
    out_edges_by_relation,
)
from outgrow.ops.aggregation.pair_edges import PairChunk, add_rows, in_edge_pairs, out_edge_pairs
from outgrow.ops.aggregation.pair_matmul import fits_pair_kernels, matrix_gradient, pair_gradients, pair_matmul
from outgrow.ops.aggregation.relation_edges import validate_relations
from outgrow.ops.aggregation.spmm import sddmm_dot, spmm
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.backend import once_differentiable
from outgrow.ops.kernels.numerics import accumulate_dtype
from outgrow.ops.linear import affine, product_functions, uses_bfloat16
from outgrow.ops.memory_pool import pooled_empty, pooled_empty_rows
from outgrow.ops.sparse import PartialRows


class RelationMatmul(nn.Module, Aggregation):
    """``out[v] = sum over in-edges e of weight[e] * src[source of e] @ matrix[relation of e]``.

    Or, of sources that were multiplied before, the sum of the channel of the relation of each edge.

    Args:
        num_relations: ``R``.
        in_features: ``D``.
        out_features: ``O``.
        blocks: ``B``; divides both.
        project_first: Whether sources have been multiplied: ``[Vs, R, O]`` instead of ``[Vs, 1, D]``.
    """

    additive = True

    def __init__(
        self, num_relations: int, in_features: int, out_features: int, *, blocks: int = 1, project_first: bool = False
    ) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.empty(num_relations, blocks, in_features // blocks, out_features // blocks))
        for block in self.matrix.detach().flatten(0, 1):
            nn.init.xavier_uniform_(block)
        self.project_first = project_first

    @property
    def sliceable(self) -> bool:  # type: ignore[override]
        """Whether columns are those of the result, not those that the matrices mix."""
        return self.project_first

    @property
    def sums_pairs(self) -> bool:  # type: ignore[override]
        """Whether matrices are applied to sums over pairs, not before these."""
        return not self.project_first

    def project(self, x_VD: Tensor | PartialRows) -> Tensor:
        """Return ``[V, R, O]``: rows times the matrix of every relation."""
        relations, blocks, width, _ = self.matrix.shape
        if blocks > 1 and isinstance(x_VD, Tensor):
            rows_BVI = _as_channels(x_VD.to(self.matrix.dtype), blocks).transpose(0, 1)
            joined_BIJ = self.matrix.permute(1, 2, 0, 3).flatten(2)
            product_BVRJ = torch.unflatten(torch.bmm(rows_BVI, joined_BIJ), 2, (relations, -1))
            return product_BVRJ.permute(1, 2, 0, 3).flatten(2)
        # Sparse rows have their columns anywhere, so their product is with the zeros beside the blocks too.
        diagonal_B = torch.eye(blocks, dtype=self.matrix.dtype, device=self.matrix.device)
        full_BIRBJ = self.matrix.permute(1, 2, 0, 3)[:, :, :, None] * diagonal_B[:, None, None, :, None]
        joined_DJ = full_BIRBJ.reshape(blocks * width, -1)
        y_VJ = affine((x_VD, joined_DJ)) if isinstance(x_VD, Tensor) else x_VD @ joined_DJ
        return torch.unflatten(y_VJ, 1, (relations, -1))

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Return ``[Vd, 1, O]``, with one constant weight per edge; see `Aggregation`."""
        assert weight_EK is not None
        if not self.project_first:
            return relation_matmul_sum(block.edges, src_VsCF.squeeze(1), weight_EK, self.matrix)[:, None]
        return sum_channels(block, range(len(self.matrix)), src_VsCF, weight_EK)


def channel_edges(edges: Edges, channels: Sequence[int], num_channels: int) -> Edges:
    """Return the edges from row ``u * C + c`` for source ``u`` and channel ``c``; made once for the edges of a block.

    Args:
        edges: The edges.
        channels: Channel of each relation.
        num_channels: ``C``.

    Raises:
        InputError: A relation is missing or not one of those that have channels.
    """
    relation = validate_relations(edges, len(channels))
    slot = f"edges from channels {channels} of {num_channels}"
    if slot not in edges.cache:
        count = edges.num_src * num_channels
        of_relation = torch.tensor(channels, device=edges.indices.device)
        indices = edges.indices.long() * num_channels + of_relation[relation.long()]
        edges.cache[slot] = Edges(
            indptr=edges.indptr, indices=indices.to(torch.int32 if count < 2**31 else torch.int64), num_src=count
        )
    return cast(Edges, edges.cache[slot])


def sum_channels(block: Block, channels: Sequence[int], src_VsCF: Tensor, weight_EK: Tensor) -> Tensor:
    """Return ``[Vd, 1, F]``: ``sum over in-edges e of weight[e] * src[source of e, channel of e's relation]``.

    Args:
        block: The edges, with relations.
        channels: Channel of each relation.
        src_VsCF: ``[Vs, C, F]``.
        weight_EK: ``[E, 1]`` constant.
    """
    # A channel per relation in memory order is a row per pair of node and channel: a plain sum over these.
    edges = channel_edges(block.edges, tuple(channels), src_VsCF.shape[1])
    rows = src_VsCF.reshape(edges.num_src, 1, src_VsCF.shape[2])
    return WeightedSum()(replace(block, edges=edges), rows, None, weight_EK)


def relation_matmul_sum(edges: Edges, src_VsD: Tensor, weight_EK: Tensor, matrix_RBIJ: Tensor) -> Tensor:
    """Return ``[Vd, O]``: ``sum over in-edges e of (weight[e] * src[source of e]) @ matrix[relation of e]``.

    Args:
        edges: In-edges of a block, with relations below ``R``.
        src_VsD: ``[Vs, D]``; a constant may be in half precision.
        weight_EK: ``[E, 1]`` constant, or ``[E, B]``: a weight for each block.
        matrix_RBIJ: ``[R, B, I, J]`` blocks on the diagonal of each relation's matrix.

    Returns:
        ``[Vd, O]``, differentiable in all but constants; zeros for a destination without in-edges.
    """
    assert weight_EK.shape[1] == matrix_RBIJ.shape[1] or not weight_EK.requires_grad
    return _MatmulSum.apply(src_VsD, weight_EK, matrix_RBIJ, edges)  # type: ignore[no-any-return, no-untyped-call]


def relation_dot(edges: Edges, src_VsD: Tensor, dst_VdO: Tensor, matrix_RBIJ: Tensor) -> Tensor:
    """Return ``[E, B]``: ``(src[source of e] @ matrix[relation of e]) . dst[destination of e]``, block by block.

    Args:
        edges: In-edges of a block, with relations below ``R``.
        src_VsD: ``[Vs, D]``.
        dst_VdO: ``[Vd, O]``.
        matrix_RBIJ: ``[R, B, I, J]`` blocks on the diagonal of each relation's matrix.
    """
    return _RelationDot.apply(src_VsD, dst_VdO, matrix_RBIJ, edges)  # type: ignore[no-any-return, no-untyped-call]


class _MatmulSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, src_VsD: Tensor, weight_EK: Tensor, matrix_RBIJ: Tensor, edges: Edges) -> Tensor:
        ctx.edges = edges
        # Remembered, since the backward pass may run outside the context that switched bfloat16 on.
        ctx.narrow = uses_bfloat16()
        ctx.save_for_backward(src_VsD, weight_EK, matrix_RBIJ)
        return _sum_products(edges, weight_EK, src_VsD, matrix_RBIJ, ctx.narrow)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_VdO: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor, None]:
        src_VsD, weight_EK, matrix_RBIJ = ctx.saved_tensors
        wants_src, wants_weight, *_ = ctx.needs_input_grad
        d_src, d_matrix = _source_gradients(ctx, weight_EK, grad_VdO, wants_src)
        if not wants_weight:
            return d_src, None, d_matrix, None
        return d_src, _dot(ctx.edges, src_VsD, grad_VdO, matrix_RBIJ, ctx.narrow), d_matrix, None


class _RelationDot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, src_VsD: Tensor, dst_VdO: Tensor, matrix_RBIJ: Tensor, edges: Edges) -> Tensor:
        ctx.edges = edges
        ctx.narrow = uses_bfloat16()
        ctx.save_for_backward(src_VsD, dst_VdO, matrix_RBIJ)
        return _dot(edges, src_VsD, dst_VdO, matrix_RBIJ, ctx.narrow)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_EB: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        src_VsD, dst_VdO, matrix_RBIJ = ctx.saved_tensors
        # Both gradients are the sums above, with the gradients of the dot products for weights.
        d_src, d_matrix = _source_gradients(ctx, grad_EB, dst_VdO, ctx.needs_input_grad[0])
        return d_src, _sum_products(ctx.edges, grad_EB, src_VsD, matrix_RBIJ, ctx.narrow), d_matrix, None


def _sum_products(edges: Edges, weight_EK: Tensor, src_VsD: Tensor, matrix_RBIJ: Tensor, narrow: bool) -> Tensor:
    """Return ``[Vd, O]``: ``sum over in-edges e of (weight[e] * src[source of e]) @ matrix[relation of e]``."""
    if fits_block_kernels(edges, src_VsD, matrix_RBIJ):
        return block_sum(in_edges_by_relation(edges, len(matrix_RBIJ)), weight_EK, src_VsD, matrix_RBIJ)
    if not narrow and fits_pair_kernels(edges, src_VsD, weight_EK, matrix_RBIJ):
        return pair_matmul(edges, weight_EK, src_VsD, matrix_RBIJ)
    rows = _as_channels(src_VsD, weight_EK.shape[1])
    out = matrix_RBIJ.new_zeros(edges.num_dst, _width(matrix_RBIJ))
    for chunk in in_edge_pairs(edges, len(matrix_RBIJ)).chunks():
        sums = _sum_of_pairs(chunk, weight_EK, rows, edges)
        for relation, first, last in chunk.spans:
            part = _block_product(sums[first:last], matrix_RBIJ[relation], narrow)
            add_rows(out, chunk.rows[first:last], part)
    return out


def _source_gradients(ctx: Any, weight_EK: Tensor, rows_VdO: Tensor, wants_src: bool) -> tuple[Tensor | None, Tensor]:
    """Return the gradients of the sources, if wanted, and of the matrices, from rows of destinations."""
    src_VsD, *_, matrix_RBIJ = ctx.saved_tensors
    edges: Edges = ctx.edges
    if wants_src and fits_block_kernels(edges, src_VsD, matrix_RBIJ):
        pairs = out_edges_by_relation(edges, len(matrix_RBIJ))
        return block_gradient(pairs, weight_EK, rows_VdO, src_VsD, matrix_RBIJ)
    if not ctx.narrow and fits_pair_kernels(edges, src_VsD, weight_EK, matrix_RBIJ):
        if wants_src:
            return pair_gradients(edges, weight_EK, src_VsD, rows_VdO, matrix_RBIJ)
        return None, matrix_gradient(edges, weight_EK, src_VsD, rows_VdO, len(matrix_RBIJ))
    d_src = torch.zeros_like(src_VsD, memory_format=torch.contiguous_format) if wants_src else None
    d_matrix = torch.zeros_like(matrix_RBIJ)
    rows = _as_channels(rows_VdO, weight_EK.shape[1])
    for chunk in out_edge_pairs(edges, len(matrix_RBIJ)).chunks():
        sums = _sum_of_pairs(chunk, weight_EK, rows, edges)
        for relation, first, last in chunk.spans:
            part, sources = sums[first:last], chunk.rows[first:last]
            d_matrix[relation] += _block_gradient(src_VsD.index_select(0, sources), part, d_matrix.shape[1], ctx.narrow)
            if d_src is not None:
                add_rows(d_src, sources, _block_product(part, matrix_RBIJ[relation].transpose(1, 2), ctx.narrow))
    return d_src, d_matrix


def _dot(edges: Edges, src_VsD: Tensor, dst_VdO: Tensor, matrix_RBIJ: Tensor, narrow: bool) -> Tensor:
    """Return ``[E, B]``: dot products of the sources with what relations make of the destinations."""
    if fits_block_kernels(edges, src_VsD, matrix_RBIJ):
        return block_dot(in_edges_by_relation(edges, len(matrix_RBIJ)), src_VsD, dst_VdO, matrix_RBIJ)
    matrix_RBJI = matrix_RBIJ.transpose(2, 3)
    blocks = matrix_RBJI.shape[1]
    src = _as_channels(src_VsD, blocks)
    out = pooled_empty((edges.num_edges, blocks), matrix_RBJI)
    for chunk in in_edge_pairs(edges, len(matrix_RBJI)).chunks():
        rows = pooled_empty_rows(len(chunk.rows), (_width(matrix_RBJI),), matrix_RBJI)
        for relation, first, last in chunk.spans:
            given = dst_VdO.index_select(0, chunk.rows[first:last])
            rows[first:last] = _block_product(given, matrix_RBJI[relation], narrow)
        dots = matrix_RBJI.new_empty(len(chunk.indices), blocks)
        sddmm_dot(chunk.indptr, chunk.indices, src, _as_channels(rows, blocks), dots)
        out[chunk.edge.long()] = dots
    return out


def _sum_of_pairs(chunk: PairChunk, weight_EK: Tensor, rows_NKF: Tensor, edges: Edges) -> Tensor:
    """Return ``[p, K * F]``: the weighted sums of the pairs of a chunk."""
    dtype = accumulate_dtype(rows_NKF.dtype)
    sums = pooled_empty_rows(len(chunk.rows), tuple(rows_NKF.shape[1:]), rows_NKF, dtype)
    # All chunks run the same kernel, that of all edges.
    spmm(chunk.indptr, chunk.indices, chunk.edge, weight_EK, rows_NKF, sums, num_edges=edges.num_edges)
    return sums.flatten(1)


def _as_channels(rows_VF: Tensor, channels: int) -> Tensor:
    """Return ``[V, C, F / C]``, without a copy."""
    return torch.unflatten(rows_VF, 1, (channels, rows_VF.shape[1] // channels))


def _width(matrix_RBIJ: Tensor) -> int:
    return matrix_RBIJ.shape[1] * matrix_RBIJ.shape[3]


def _block_product(rows_ND: Tensor, matrix_BIJ: Tensor, narrow: bool) -> Tensor:
    """Return ``[N, O]``: rows times a block-diagonal matrix."""
    if len(matrix_BIJ) == 1:
        return product_functions(narrow)[0](rows_ND, matrix_BIJ[0])
    # Small blocks gain nothing from bfloat16.
    rows_BNI = _as_channels(rows_ND, len(matrix_BIJ)).transpose(0, 1)
    return torch.bmm(rows_BNI, matrix_BIJ).transpose(0, 1).flatten(1)


def _block_gradient(rows_ND: Tensor, grad_NO: Tensor, blocks: int, narrow: bool) -> Tensor:
    """Return ``[B, I, J]``: the gradient of a block-diagonal matrix."""
    if blocks == 1:
        return product_functions(narrow)[1](rows_ND, grad_NO)[None]
    given, grad = (_as_channels(each, blocks).transpose(0, 1) for each in (rows_ND.to(grad_NO.dtype), grad_NO))
    return torch.bmm(given.transpose(1, 2), grad)
