"""The gated sum over in-edges: each edge lets a share of every column through. No row per edge is made.

Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``F`` columns.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.ops.aggregation import Aggregation
from outgrow.ops.backend import array, kernel, prange, sequential
from outgrow.ops.topology import transpose

_LARGEST_SCORE = {torch.float32: 40.0, torch.float64: 340.0}
"""Up to here ``exp(-a) * exp(-b)`` neither overflows nor loses digits, so it may stand for ``exp(-(a + b))``."""


class Gated(Aggregation):
    """``out[v] = sum over in-edges e of weight[e] * sigmoid(src[u, 0] + dst[v, 0]) * src[u, 1]``, ``u`` the source.

    The gate of Marcheggiani & Titov (EMNLP 2017), per column as in Bresson & Laurent, Residual gated graph ConvNets,
    2017. The exponentials are computed per node, not per edge, wherever the scores are small enough.
    """

    sliceable = True
    additive = True

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate; see `Aggregation`. Sources give 2 channels, destinations 1 or none; a weight is a constant."""
        assert src_VsCF.shape[1] == 2
        assert weight_EK is None or (weight_EK.shape[1] == 1 and not weight_EK.requires_grad)
        if dst_VdCF is None:
            dst_VdCF = src_VsCF.new_zeros(block.edges.num_dst, 1, src_VsCF.shape[2])
        return _Gated.apply(src_VsCF, dst_VdCF, weight_EK, block.edges)  # type: ignore[no-any-return, no-untyped-call]


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, src_VsCF: Tensor, dst_VdCF: Tensor, weight_EK: Tensor | None, edges: Edges) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(src_VsCF, dst_VdCF, weight_EK)
        out = torch.empty_like(dst_VdCF, memory_format=torch.contiguous_format)
        _sum(array(edges.indptr), array(edges.indices), *_operands(src_VsCF, dst_VdCF, weight_EK), out.numpy())
        return out

    @staticmethod
    def backward(ctx: Any, grad_VdCF: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        edges: Edges = ctx.edges
        operands, grad = _operands(*ctx.saved_tensors), array(grad_VdCF)
        d_src = d_dst = None
        if ctx.needs_input_grad[0]:
            back, d_src = transpose(edges), torch.empty(edges.num_src, 2, grad.shape[2], dtype=grad_VdCF.dtype)
            topology = array(back.indptr), array(back.indices), array(back.edge)
            _to_sources(*topology, *operands, grad, d_src.numpy())
        if ctx.needs_input_grad[1]:
            d_dst = torch.empty(grad_VdCF.shape, dtype=grad_VdCF.dtype)
            _to_destinations(array(edges.indptr), array(edges.indices), *operands, grad, d_dst.numpy())
        return d_src, d_dst, None, None


def _operands(src_VsCF: Tensor, dst_VdCF: Tensor, weight_EK: Tensor | None) -> tuple[Any, Any, Any, Any]:
    """Rows of sources and destinations, weights, and None if the gates in the rows are scores, not exponentials."""
    weight = None if weight_EK is None else array(weight_EK.view(-1))
    largest = _largest(src_VsCF[:, 0], dst_VdCF)
    for dtype in (src_VsCF.dtype, torch.float64):
        if largest <= _LARGEST_SCORE[dtype]:
            src_VsCF, dst_VdCF = src_VsCF.to(dtype), dst_VdCF.to(dtype)
            src_VsCF = torch.stack([src_VsCF[:, 0].neg().exp(), src_VsCF[:, 1]], 1)
            return array(src_VsCF), array(dst_VdCF.neg().exp()), weight, True
    return array(src_VsCF), array(dst_VdCF), weight, None


def _largest(*scores: Tensor) -> float:
    """The largest magnitude; infinite if there is one that is not a number."""
    ends = [abs(end.item()) for score in scores if score.numel() for end in score.detach().aminmax()]
    return math.inf if any(map(math.isnan, ends)) else max(ends, default=0.0)


@sequential
def _gate(one: Any, src: Any, dst: Any, exponentials: Any) -> Any:
    """``sigmoid(a + b)``, from ``a`` and ``b`` or from ``exp(-a)`` and ``exp(-b)``."""
    if exponentials is None:
        return one / (one + np.exp(-(src + dst)))
    return one / (one + src * dst)


@kernel
def _sum(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    src: NDArray[Any],
    dst: NDArray[Any],
    weight: NDArray[Any] | None,
    exponentials: bool | None,
    out: NDArray[Any],
) -> None:
    one = out.dtype.type(1)
    for v in prange(out.shape[0]):
        row, mine = out[v, 0], dst[v, 0]
        row[:] = 0
        for e in range(indptr[v], indptr[v + 1]):
            gate, value = src[indices[e], 0], src[indices[e], 1]
            scale = one if weight is None else weight[e]
            for f in range(len(row)):
                row[f] += scale * value[f] * _gate(one, gate[f], mine[f], exponentials)


@kernel
def _to_destinations(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    src: NDArray[Any],
    dst: NDArray[Any],
    weight: NDArray[Any] | None,
    exponentials: bool | None,
    grad: NDArray[Any],
    out: NDArray[Any],
) -> None:
    one = out.dtype.type(1)
    for v in prange(out.shape[0]):
        row, mine = out[v, 0], dst[v, 0]
        row[:] = 0
        for e in range(indptr[v], indptr[v + 1]):
            gate, value = src[indices[e], 0], src[indices[e], 1]
            scale = one if weight is None else weight[e]
            for f in range(len(row)):
                share = _gate(one, gate[f], mine[f], exponentials)
                row[f] += scale * value[f] * share * (one - share)
        for f in range(len(row)):
            row[f] *= grad[v, 0, f]


@kernel
def _to_sources(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    edge: NDArray[Any],
    src: NDArray[Any],
    dst: NDArray[Any],
    weight: NDArray[Any] | None,
    exponentials: bool | None,
    grad: NDArray[Any],
    out: NDArray[Any],
) -> None:
    one = out.dtype.type(1)
    for u in prange(out.shape[0]):
        gate, d_gate, d_value = src[u, 0], out[u, 0], out[u, 1]
        d_gate[:] = 0
        d_value[:] = 0
        for i in range(indptr[u], indptr[u + 1]):
            other, g = dst[indices[i], 0], grad[indices[i], 0]
            scale = one if weight is None else weight[edge[i]]
            for f in range(len(gate)):
                share = _gate(one, gate[f], other[f], exponentials)
                passed = scale * g[f] * share
                d_value[f] += passed
                d_gate[f] += passed * (one - share)
        for f in range(len(gate)):
            d_gate[f] *= src[u, 1, f]
