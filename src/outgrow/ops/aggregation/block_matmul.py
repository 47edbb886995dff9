"""Products of summed rows with small blocks by relation, on a CPU: row by row, without a table of pairs.

`relation_matmul` uses them where they fit; elsewhere it makes dense products by pairs of relation and row. Letters as
there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.aggregation.block_kernels import make_block_dot, make_block_gradient, make_block_sum
from outgrow.ops.aggregation.relation_edges import validate_relations
from outgrow.ops.backend import as_numpy, parallel_kernel, prange
from outgrow.ops.csc import cached_transpose
from outgrow.ops.kernels.registers import MOST_BYTES
from outgrow.ops.kernels.work_split import END_ROW, LEAST_NUMBERS, PARTS, ROW, balanced_work
from outgrow.ops.memory_pool import as_output_rows, pooled_empty, pooled_empty_rows

Array = NDArray[Any]

_MOST_GRADIENT_BYTES = 1 << 25


@dataclass(frozen=True, kw_only=True, eq=False)
class RowEdges:
    """Edges of rows, in the order of their relations within each row; equal ones keep their order.

    Attributes:
        indptr: ``[V + 1]`` int64.
        indices: ``[E]``, row at the other end of each edge.
        edge: ``[E]``, position of each edge in the block.
        relation: ``[E]``, relation of each edge.
    """

    indptr: Tensor
    indices: Tensor
    edge: Tensor
    relation: Tensor


def fits_registers(rows: Tensor, matrix_RBIJ: Tensor) -> bool:
    """Whether sums of these rows, and products with a block, are computed on a CPU in registers."""
    widest = max(matrix_RBIJ.shape[2:]) * matrix_RBIJ.itemsize
    return rows.device.type == "cpu" and rows.dtype == matrix_RBIJ.dtype and widest <= MOST_BYTES


def fits_block_kernels(edges: Edges, rows: Tensor, matrix_RBIJ: Tensor) -> bool:
    """Whether the kernels take these rows and matrices, and are worth compiling."""
    num_relations, blocks, inner, outer = matrix_RBIJ.shape
    if blocks == 1 or not fits_registers(rows, matrix_RBIJ):
        return False
    small = PARTS * num_relations * blocks * inner * outer * matrix_RBIJ.itemsize <= _MOST_GRADIENT_BYTES
    return small and edges.num_edges * blocks * max(inner, outer) >= LEAST_NUMBERS


def in_edges_by_relation(edges: Edges, num_relations: int) -> RowEdges:
    """Return the in-edges of each destination in the order of relations; made once for the edges of a block.

    Raises:
        InputError: A relation is missing or not in ``[0, num_relations)``.
    """
    relation = validate_relations(edges, num_relations)
    slot = "in-edges in the order of relations"
    if slot not in edges.cache:
        edges.cache[slot] = _order(edges.indptr, edges.indices, None, relation)
    return cast(RowEdges, edges.cache[slot])


def out_edges_by_relation(edges: Edges, num_relations: int) -> RowEdges:
    """Return the out-edges of each source in the order of relations; made once for the edges of a block.

    Raises:
        InputError: A relation is missing or not in ``[0, num_relations)``.
    """
    relation = validate_relations(edges, num_relations)
    slot = "out-edges in the order of relations"
    if slot not in edges.cache:
        back = cached_transpose(edges)
        edges.cache[slot] = _order(back.indptr, back.indices, back.edge, relation[back.edge.long()])
    return cast(RowEdges, edges.cache[slot])


def block_sum(given: RowEdges, weight_EK: Tensor, rows_ND: Tensor, matrix_RBIJ: Tensor) -> Tensor:
    """Return ``[M, O]``: ``sum over the edges e of each row of (weight[e] * rows[other end of e]) @ matrix[relation]``.

    Args:
        given: The edges.
        weight_EK: ``[E, 1]``, or ``[E, B]``: a weight for each block.
        rows_ND: ``[N, D]`` rows of the other ends.
        matrix_RBIJ: ``[R, B, I, J]``.
    """
    _, blocks, inner, outer = matrix_RBIJ.shape
    out = pooled_empty_rows(len(given.indptr) - 1, (blocks * outer,), matrix_RBIJ)
    rows, step = _as_block_rows(rows_ND, inner)
    make_block_sum(blocks, inner, outer)(
        *_edge_arrays(given),
        as_numpy(weight_EK),
        rows,
        step,
        flatten_matrices(matrix_RBIJ),
        as_output_rows(out[:, None]),
    )
    return out


def block_dot(given: RowEdges, rows_ND: Tensor, other_MO: Tensor, matrix_RBIJ: Tensor) -> Tensor:
    """Return ``[E, B]``: ``(rows[other end of e] @ matrix[relation of e]) . other[row of e]``, block by block."""
    _, blocks, inner, outer = matrix_RBIJ.shape
    out = pooled_empty((len(given.indices), blocks), matrix_RBIJ)
    rows, step = _as_block_rows(rows_ND, inner)
    other, other_step = _as_block_rows(other_MO, outer)
    make_block_dot(blocks, inner, outer)(
        *_edge_arrays(given),
        rows,
        step,
        other,
        other_step,
        flatten_matrices(matrix_RBIJ.transpose(2, 3)),
        as_numpy(out),
    )
    return out


def block_gradient(
    given: RowEdges, weight_EK: Tensor, rows_NO: Tensor, own_MD: Tensor, matrix_RBIJ: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients ``[M, D]`` of own rows and ``[R, B, I, J]`` of the matrices.

    Those of ``weight[e] * own[row of e] @ matrix[relation of e]``, summed over edges, for gradients ``rows`` of the
    other ends.

    Args:
        given: The edges of own rows.
        weight_EK: ``[E, 1]`` or ``[E, B]``.
        rows_NO: ``[N, O]``.
        own_MD: ``[M, D]``.
        matrix_RBIJ: ``[R, B, I, J]``.
    """
    num_relations, blocks, inner, outer = matrix_RBIJ.shape
    out = pooled_empty_rows(len(own_MD), (blocks * inner,), matrix_RBIJ)
    parts, arrays = _edge_arrays(given)
    sums = torch.zeros(len(parts), num_relations, blocks, inner, outer, dtype=out.dtype)
    rows, step = _as_block_rows(rows_NO, outer)
    own, own_step = _as_block_rows(own_MD, inner)
    make_block_gradient(blocks, inner, outer)(
        *(parts, arrays, as_numpy(weight_EK), rows, step, own, own_step),
        *(flatten_matrices(matrix_RBIJ.transpose(2, 3)), as_output_rows(out[:, None]), as_numpy(sums.view(-1, outer))),
    )
    # The number of parts is fixed, and numbers of different places are added apart, each in one order.
    return out, sums.sum(0)


def _edge_arrays(given: RowEdges) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    """Return the parts of the work, and the edges."""
    ends = as_numpy(given.indptr)
    return balanced_work(ends), (ends, as_numpy(given.indices), as_numpy(given.edge), as_numpy(given.relation))


def _as_block_rows(rows_ND: Tensor, width: int) -> tuple[Array, int]:
    """Return rows as an array of their blocks ``[., width]``, and how many of these lie from a row to the next.

    Without a copy also where rows are some columns of wider ones.
    """
    rows_ND = rows_ND.detach()
    count, columns = rows_ND.shape
    if rows_ND.stride(1) != 1 or rows_ND.stride(0) % width:
        rows_ND = rows_ND.contiguous()
    step = rows_ND.stride(0) // width
    blocks = max(0, count - 1) * step + columns // width if count else 0
    return as_numpy(rows_ND.as_strided((blocks, width), (width, 1))), step


def flatten_matrices(matrix_RBIJ: Tensor) -> Array:
    """Return ``[R * B * I, J]``, as kernels take the matrices."""
    return as_numpy(matrix_RBIJ.detach().reshape(-1, matrix_RBIJ.shape[3]))


def _order(indptr: Tensor, indices: Tensor, edge: Tensor | None, relation: Tensor) -> RowEdges:
    order = torch.empty(len(indices), dtype=torch.int32 if len(indices) < 2**31 else torch.int64)
    ends = as_numpy(indptr)
    _order_rows(balanced_work(ends), ends, as_numpy(relation), as_numpy(order))
    at = order.long()
    return RowEdges(indptr=indptr, indices=indices[at], edge=order if edge is None else edge[at], relation=relation[at])


@parallel_kernel
def _order_rows(parts: Array, indptr: Array, relation: Array, order: Array) -> None:
    for part in prange(len(parts)):
        for v in range(parts[part, ROW], parts[part, END_ROW]):
            first, last = indptr[v], indptr[v + 1]
            # A row that several parts share is ordered by each of them, to the same result.
            found = np.argsort(relation[first:last], kind="mergesort")
            for i in range(last - first):
                order[first + i] = first + found[i]
