"""Gated sum over in-edges: each edge has a gate per column. No row per edge is materialised.

Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``F`` columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Block
from outgrow.ops.aggregation.base import Aggregation, PairKernels, pair_sum
from outgrow.ops.backend import device_function, gpu_dispatch, kernel_factory, parallel_kernel, prange
from outgrow.ops.kernels.work_split import END_ROW, ROW, add_split_rows, launch_balanced, row_span, store_row

Array = NDArray[Any]

_LARGEST_SCORE = {torch.float32: 40.0, torch.float64: 340.0}
"""Largest scores for which ``exp(-a) * exp(-b)`` stays in range and can replace ``exp(-(a + b))``."""


class Gated(Aggregation):
    """Gated sum: ``out[v] = sum over e of weight[e] * sigmoid(src[u, 0] + dst[v, 0]) * src[u, 1]``.

    The sum runs over the in-edges ``e`` of ``v``, from source ``u``. The gate of Marcheggiani & Titov (EMNLP
    2017), per column as in Bresson & Laurent, Residual gated graph ConvNets, 2017. On the CPU the
    exponentials are computed per node instead of per edge if all scores are small enough.
    """

    sliceable = True
    additive = True

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate; see `Aggregation`.

        Sources have 2 channels, destinations 1 or None. Weights are constants.
        """
        assert src_VsCF.shape[1] == 2
        if dst_VdCF is None:
            dst_VdCF = src_VsCF.new_zeros(block.edges.num_dst, 1, src_VsCF.shape[2])
        return pair_sum(_KERNELS, block.edges, src_VsCF, dst_VdCF, weight_EK)


@gpu_dispatch
def gated_sum(
    indptr: Tensor,
    indices: Tensor,
    src_Vs2F: Tensor,
    dst_Vd1F: Tensor,
    weight_E: Tensor | None,
    out_Vd1F: Tensor,
) -> None:
    """Compute the sum of `Gated` from the scores of the gates, into ``out_Vd1F``."""
    src, dst, exponentials = _gate_inputs(src_Vs2F, dst_Vd1F)
    launch_balanced(partial(_make_gated_kernel, exponentials), indptr, indices, src, dst, weight_E, out=out_Vd1F)


@gpu_dispatch
def gated_grad_dst(
    indptr: Tensor,
    indices: Tensor,
    src_Vs2F: Tensor,
    dst_Vd1F: Tensor,
    weight_E: Tensor | None,
    grad_Vd1F: Tensor,
    out_Vd1F: Tensor,
) -> None:
    """Compute the gradient of the destinations' scores from that of the sum, into ``out_Vd1F``."""
    src, dst, exponentials = _gate_inputs(src_Vs2F, dst_Vd1F)
    launch_balanced(
        partial(_make_grad_dst_kernel, exponentials), indptr, indices, src, dst, weight_E, grad_Vd1F, out=out_Vd1F
    )


@gpu_dispatch
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
    """Compute the gradient of the sources, over the transposed edges, into ``out_Vs2F``."""
    src, dst, exponentials = _gate_inputs(src_Vs2F, dst_Vd1F)
    launch_balanced(
        partial(_make_grad_src_kernel, exponentials), indptr, indices, edge, src, dst, weight_E, grad_Vd1F, out=out_Vs2F
    )


_KERNELS = PairKernels(gated_sum, gated_grad_dst, gated_grad_src)


def _gate_inputs(src_Vs2F: Tensor, dst_Vd1F: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Return the rows of both ends, and whether their gates are exponentials of the negated scores."""
    largest = _largest_score(src_Vs2F[:, 0], dst_Vd1F)
    # exp(-(a + b)) = exp(-a) * exp(-b) turns an exponential per edge into one per node and a product per
    # edge. Scores beyond the range of float32 are tried in float64, which is still cheaper than exponentials
    # per edge.
    for dtype in (src_Vs2F.dtype, torch.float64):
        if largest <= _LARGEST_SCORE[dtype]:
            src_Vs2F = src_Vs2F.to(dtype)
            dst_Vd1F = dst_Vd1F.to(dtype)
            return torch.stack([src_Vs2F[:, 0].neg().exp(), src_Vs2F[:, 1]], 1), dst_Vd1F.neg().exp(), True
    return src_Vs2F, dst_Vd1F, False


def _largest_score(*scores: Tensor) -> float:
    """Return the largest magnitude; infinity if any score is NaN."""
    ends = [abs(end.item()) for score in scores if score.numel() for end in score.detach().aminmax()]
    return math.inf if any(map(math.isnan, ends)) else max(ends, default=0.0)


@device_function
def _sigmoid_gate(one: Any, src: Any, dst: Any, exponentials: bool) -> Any:
    """Return ``sigmoid(a + b)``, from ``a`` and ``b`` or from ``exp(-a)`` and ``exp(-b)``."""
    return one / (one + (src * dst if exponentials else np.exp(-(src + dst))))


@kernel_factory
def _make_gated_kernel(exponentials: bool, fixed: int | None) -> Callable[..., None]:
    @parallel_kernel
    def gated_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        src: Array,
        dst: Array,
        weight: Array | None,
        columns: int,
        out: Array,
        cut: Array,
    ) -> None:
        width = columns if fixed is None else fixed
        one = out.dtype.type(1)
        for part in prange(len(parts)):
            total = np.empty(width, out.dtype)
            for v in range(parts[part, ROW], parts[part, END_ROW]):
                for f in range(len(total)):
                    total[f] = 0
                for e in range(*row_span(parts, part, indptr, v)):
                    u = indices[e]
                    scale = one if weight is None else weight[e]
                    for f in range(width):
                        total[f] += scale * src[u, width + f] * _sigmoid_gate(one, src[u, f], dst[v, f], exponentials)
                store_row(parts, part, indptr, v, total, out, cut)
        add_split_rows(parts, indptr, out, cut)

    return gated_kernel


@kernel_factory
def _make_grad_dst_kernel(exponentials: bool, fixed: int | None) -> Callable[..., None]:
    @parallel_kernel
    def grad_dst_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        src: Array,
        dst: Array,
        weight: Array | None,
        grad: Array,
        columns: int,
        out: Array,
        cut: Array,
    ) -> None:
        width = columns if fixed is None else fixed
        one = out.dtype.type(1)
        for part in prange(len(parts)):
            total = np.empty(width, out.dtype)
            for v in range(parts[part, ROW], parts[part, END_ROW]):
                for f in range(len(total)):
                    total[f] = 0
                for e in range(*row_span(parts, part, indptr, v)):
                    u = indices[e]
                    scale = one if weight is None else weight[e]
                    for f in range(width):
                        # The derivative of the sigmoid is s * (1 - s): the gate is recomputed, not stored per
                        # edge.
                        gate = _sigmoid_gate(one, src[u, f], dst[v, f], exponentials)
                        total[f] += scale * src[u, width + f] * gate * (one - gate)
                # All edges of the row share this factor. The product distributes over the pieces of a cut
                # row.
                for f in range(width):
                    total[f] *= grad[v, f]
                store_row(parts, part, indptr, v, total, out, cut)
        add_split_rows(parts, indptr, out, cut)

    return grad_dst_kernel


@kernel_factory
def _make_grad_src_kernel(exponentials: bool, fixed: int | None) -> Callable[..., None]:
    @parallel_kernel
    def grad_src_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        edge: Array,
        src: Array,
        dst: Array,
        weight: Array | None,
        grad: Array,
        columns: int,
        out: Array,
        cut: Array,
    ) -> None:
        width = columns if fixed is None else fixed
        one = out.dtype.type(1)
        for part in prange(len(parts)):
            # The gradient of the scores, then that of the values: the two channels of a source row.
            total = np.empty(2 * width, out.dtype)
            for u in range(parts[part, ROW], parts[part, END_ROW]):
                for f in range(len(total)):
                    total[f] = 0
                for i in range(*row_span(parts, part, indptr, u)):
                    v = indices[i]
                    scale = one if weight is None else weight[edge[i]]
                    for f in range(width):
                        gate = _sigmoid_gate(one, src[u, f], dst[v, f], exponentials)
                        term = scale * grad[v, f] * gate
                        total[f] += term * (one - gate)
                        total[width + f] += term
                # The value is common to all edges of the source, so the scores' gradient is scaled once.
                for f in range(width):
                    total[f] *= src[u, width + f]
                store_row(parts, part, indptr, u, total, out, cut)
        add_split_rows(parts, indptr, out, cut)

    return grad_src_kernel
