"""Products of summed rows with a matrix for each relation, on a CPU: without a table of pairs.

`relation_matmul` uses the kernels where rows fit the registers; elsewhere it makes dense products by pairs of relation
and row. Letters as there.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.aggregation.block_matmul import fits_registers, flatten_matrices
from outgrow.ops.aggregation.pair_kernels import make_pair_kernel
from outgrow.ops.aggregation.relation_edges import validate_relations
from outgrow.ops.backend import as_numpy
from outgrow.ops.csc import transpose
from outgrow.ops.kernels.work_split import LEAST_NUMBERS, PARTS, balanced_work
from outgrow.ops.memory_pool import as_input_rows, as_output_rows, pooled_empty_rows

Array = NDArray[Any]

_EDGES_OF_GRADIENT = 1 << 10
"""Edges for each matrix that a part of the work has at least: a gradient of its own costs as much as some of them."""
_LEAST_PARTS = 4


def fits_pair_kernels(edges: Edges, rows: Tensor, weight_EK: Tensor, matrix_RBIJ: Tensor) -> bool:
    """Whether the kernels take these rows and matrices, and are worth compiling."""
    _, blocks, inner, outer = matrix_RBIJ.shape
    if blocks > 1 or weight_EK.shape[1] > 1 or not fits_registers(rows, matrix_RBIJ):
        return False
    return edges.num_edges * max(inner, outer) >= LEAST_NUMBERS


def pair_matmul(edges: Edges, weight_E1: Tensor, src_VsD: Tensor, matrix_R1DO: Tensor) -> Tensor:
    """Return ``[Vd, O]``: ``sum over in-edges e of (weight[e] * src[source of e]) @ matrix[relation of e]``."""
    num_relations, _, inner, outer = matrix_R1DO.shape
    ends = as_numpy(edges.indptr)
    out = pooled_empty_rows(edges.num_dst, (outer,), matrix_R1DO)
    relation = validate_relations(edges, num_relations)
    make_pair_kernel(inner, outer, 0, out.itemsize)(
        *(balanced_work(ends), ends, as_numpy(edges.indices), None, as_numpy(relation), num_relations),
        *(as_numpy(weight_E1), as_input_rows(src_VsD)),
        *(flatten_matrices(matrix_R1DO), as_output_rows(out[:, None]), None, None),
    )
    return out


def matrix_gradient(edges: Edges, weight_E1: Tensor, src_VsD: Tensor, grad_VdO: Tensor, num_relations: int) -> Tensor:
    """Return ``[R, 1, D, O]``: the gradient of the matrices of `pair_matmul`; sums of pairs are made again."""
    inner, outer = src_VsD.shape[1], grad_VdO.shape[1]
    ends = as_numpy(edges.indptr)
    parts, sums = _make_gradients(ends, num_relations, outer, inner, src_VsD)
    relation = validate_relations(edges, num_relations)
    own = as_input_rows(grad_VdO)
    make_pair_kernel(inner, 0, outer, src_VsD.itemsize)(
        *(parts, ends, as_numpy(edges.indices), None, as_numpy(relation), num_relations),
        *(as_numpy(weight_E1), as_input_rows(src_VsD), None, None, own, as_numpy(sums.view(-1, inner))),
    )
    return sums.sum(0).transpose(1, 2)[:, None]


def pair_gradients(
    edges: Edges, weight_E1: Tensor, src_VsD: Tensor, grad_VdO: Tensor, matrix_R1DO: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients ``[Vs, D]`` of the sources and ``[R, 1, D, O]`` of the matrices of `pair_matmul`.

    Gradients are summed by pairs of relation and source, so that one pass over the out-edges gives both.
    """
    num_relations, _, inner, outer = matrix_R1DO.shape
    back = transpose(edges)
    ends = as_numpy(back.indptr)
    parts, sums = _make_gradients(ends, num_relations, inner, outer, src_VsD)
    out = pooled_empty_rows(edges.num_src, (inner,), matrix_R1DO)
    relation = validate_relations(edges, num_relations)
    make_pair_kernel(outer, inner, inner, out.itemsize)(
        *(parts, ends, as_numpy(back.indices), as_numpy(back.edge), as_numpy(relation), num_relations),
        *(as_numpy(weight_E1), as_input_rows(grad_VdO)),
        *(flatten_matrices(matrix_R1DO.transpose(2, 3)), as_output_rows(out[:, None])),
        *(as_input_rows(src_VsD), as_numpy(sums.view(-1, outer))),
    )
    return out, sums.sum(0)[:, None]


def _make_gradients(ends: Array, num_relations: int, height: int, width: int, like: Tensor) -> tuple[Array, Tensor]:
    """Return parts of the work, each large enough for a gradient of its own, and zeros ``[P, R, height, width]``."""
    paid = int(ends[-1]) // (num_relations * _EDGES_OF_GRADIENT)
    parts = balanced_work(ends, min(PARTS, max(_LEAST_PARTS, paid)))
    # The number of parts depends on the graph alone; numbers of different places are added apart, each in one order.
    return parts, torch.zeros(len(parts), num_relations, height, width, dtype=like.dtype)
