"""FiLM sum over in-edges: the destination scales and shifts its messages. No row per edge is materialised.

Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``R`` relations, ``F`` columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Block
from outgrow.ops.aggregation.base import Aggregation, PairKernels, pair_sum
from outgrow.ops.aggregation.relation_edges import relation_pairs
from outgrow.ops.backend import gpu_dispatch, kernel_factory, parallel_kernel, prange
from outgrow.ops.kernels.work_split import END_ROW, ROW, add_split_rows, launch_balanced, row_span, store_row

Array = NDArray[Any]


class Film(Aggregation):
    """``out[v] = sum over in-edges e of weight[e] * leaky_relu(dst[v, 2r] * src[u, r] + dst[v, 2r + 1])``.

    ``u`` is the source of the edge and ``r`` its relation, or 0 if relations are ignored. Brockschmidt,
    GNN-FiLM: Graph neural networks with feature-wise linear modulation, ICML 2020.

    Args:
        slope: Slope of the leaky ReLU below zero: 0 for ReLU, 1 for the identity.
        num_relations: ``R``; 0 if relations are ignored.
    """

    sliceable = True
    additive = True

    def __init__(self, slope: float = 0.0, num_relations: int = 0) -> None:
        self.slope = slope
        self.num_relations = num_relations

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate; see `Aggregation`.

        Sources have 1 channel per relation and destinations 2. Weights are constants.
        """
        channels = max(1, self.num_relations)
        assert src_VsCF.shape[1] == channels
        assert dst_VdCF is not None
        assert dst_VdCF.shape[1] == 2 * channels
        if not self.num_relations:
            return pair_sum(_KERNELS, block.edges, src_VsCF, dst_VdCF, weight_EK, self.slope)
        # A channel per relation in memory order is a row per pair of node and relation: with the edges
        # renumbered to such pairs, the kernels need to know nothing of relations.
        edges, order = relation_pairs(block.edges, channels)
        columns = src_VsCF.shape[2]
        weight_PK = None if weight_EK is None else weight_EK[order]
        ends = src_VsCF.reshape(edges.num_src, 1, columns), dst_VdCF.reshape(edges.num_dst, 2, columns)
        per_relation = pair_sum(_KERNELS, edges, *ends, weight_PK, self.slope)
        return per_relation.reshape(block.edges.num_dst, channels, columns).sum(1, keepdim=True)


@gpu_dispatch
def film_sum(
    indptr: Tensor,
    indices: Tensor,
    src_Vs1F: Tensor,
    dst_Vd2F: Tensor,
    weight_E: Tensor | None,
    slope: float,
    out_Vd1F: Tensor,
) -> None:
    """Compute the sum of `Film` without relations, into ``out_Vd1F``."""
    launch_balanced(_make_film_kernel, indptr, indices, src_Vs1F, dst_Vd2F, weight_E, slope, out=out_Vd1F)


@gpu_dispatch
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
    """Compute the gradient of scales and shifts from that of the sum, into ``out_Vd2F``."""
    launch_balanced(
        _make_grad_dst_kernel, indptr, indices, src_Vs1F, dst_Vd2F, weight_E, slope, grad_Vd1F, out=out_Vd2F
    )


@gpu_dispatch
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
    """Compute the gradient of the sources, over the transposed edges, into ``out_Vs1F``."""
    launch_balanced(
        _make_grad_src_kernel, indptr, indices, edge, src_Vs1F, dst_Vd2F, weight_E, slope, grad_Vd1F, out=out_Vs1F
    )


_KERNELS = PairKernels(film_sum, film_grad_dst, film_grad_src)


@kernel_factory
def _make_film_kernel(fixed: int | None) -> Callable[..., None]:
    @parallel_kernel
    def film_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        src: Array,
        dst: Array,
        weight: Array | None,
        slope: float,
        columns: int,
        out: Array,
        cut: Array,
    ) -> None:
        width = columns if fixed is None else fixed
        one = out.dtype.type(1)
        negative_slope = out.dtype.type(slope)
        for part in prange(len(parts)):
            total = np.empty(width, out.dtype)
            for v in range(parts[part, ROW], parts[part, END_ROW]):
                for f in range(len(total)):
                    total[f] = 0
                for e in range(*row_span(parts, part, indptr, v)):
                    u = indices[e]
                    scale = one if weight is None else weight[e]
                    # Weight and slope below zero in one factor: the loop over columns only selects and
                    # multiplies.
                    below = scale * negative_slope
                    for f in range(width):
                        z = dst[v, f] * src[u, f] + dst[v, width + f]
                        total[f] += z * (scale if z > 0 else below)
                store_row(parts, part, indptr, v, total, out, cut)
        add_split_rows(parts, indptr, out, cut)

    return film_kernel


@kernel_factory
def _make_grad_dst_kernel(fixed: int | None) -> Callable[..., None]:
    @parallel_kernel
    def grad_dst_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        src: Array,
        dst: Array,
        weight: Array | None,
        slope: float,
        grad: Array,
        columns: int,
        out: Array,
        cut: Array,
    ) -> None:
        width = columns if fixed is None else fixed
        one = out.dtype.type(1)
        negative_slope = out.dtype.type(slope)
        for part in prange(len(parts)):
            # The gradient of the scales, then that of the shifts: the two channels of a destination row.
            total = np.empty(2 * width, out.dtype)
            for v in range(parts[part, ROW], parts[part, END_ROW]):
                for f in range(len(total)):
                    total[f] = 0
                for e in range(*row_span(parts, part, indptr, v)):
                    u = indices[e]
                    scale = one if weight is None else weight[e]
                    below = scale * negative_slope
                    for f in range(width):
                        # Derivative of the leaky ReLU, from a score that is recomputed rather than stored per
                        # edge.
                        rate = scale if dst[v, f] * src[u, f] + dst[v, width + f] > 0 else below
                        total[f] += rate * src[u, f]
                        total[width + f] += rate
                # All edges of the row share this factor. The product distributes over the pieces of a cut
                # row.
                for f in range(width):
                    total[f] *= grad[v, f]
                    total[width + f] *= grad[v, f]
                store_row(parts, part, indptr, v, total, out, cut)
        add_split_rows(parts, indptr, out, cut)

    return grad_dst_kernel


@kernel_factory
def _make_grad_src_kernel(fixed: int | None) -> Callable[..., None]:
    @parallel_kernel
    def grad_src_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        edge: Array,
        src: Array,
        dst: Array,
        weight: Array | None,
        slope: float,
        grad: Array,
        columns: int,
        out: Array,
        cut: Array,
    ) -> None:
        width = columns if fixed is None else fixed
        one = out.dtype.type(1)
        negative_slope = out.dtype.type(slope)
        for part in prange(len(parts)):
            total = np.empty(width, out.dtype)
            for u in range(parts[part, ROW], parts[part, END_ROW]):
                for f in range(len(total)):
                    total[f] = 0
                for i in range(*row_span(parts, part, indptr, u)):
                    v = indices[i]
                    scale = one if weight is None else weight[edge[i]]
                    below = scale * negative_slope
                    for f in range(width):
                        rate = scale if dst[v, f] * src[u, f] + dst[v, width + f] > 0 else below
                        total[f] += rate * dst[v, f] * grad[v, f]
                store_row(parts, part, indptr, u, total, out, cut)
        add_split_rows(parts, indptr, out, cut)

    return grad_src_kernel
