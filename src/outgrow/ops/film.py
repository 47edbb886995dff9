"""The sum of modulated messages over in-edges: the destination scales and shifts what it hears. No row per edge.

Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``F`` columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.ops.aggregation import Aggregation
from outgrow.ops.backend import array, kernel, prange
from outgrow.ops.topology import transpose


class Film(Aggregation):
    """``out[v] = sum over in-edges e of weight[e] * leaky_relu(dst[v, 0] * src[u, 0] + dst[v, 1])``, ``u`` the source.

    Brockschmidt, GNN-FiLM: Graph neural networks with feature-wise linear modulation, ICML 2020.

    Args:
        slope: Slope of the leaky ReLU below zero: 0 for ReLU, 1 for the identity.
    """

    sliceable = True
    additive = True

    def __init__(self, slope: float = 0.0) -> None:
        self.slope = slope

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate; see `Aggregation`. Sources give 1 channel, destinations 2; a weight is a constant."""
        assert src_VsCF.shape[1] == 1
        assert dst_VdCF is not None
        assert dst_VdCF.shape[1] == 2
        assert weight_EK is None or (weight_EK.shape[1] == 1 and not weight_EK.requires_grad)
        return _Film.apply(src_VsCF, dst_VdCF, weight_EK, block.edges, self.slope)  # type: ignore[no-any-return, no-untyped-call]


class _Film(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, src_VsCF: Tensor, dst_VdCF: Tensor, weight_EK: Tensor | None, edges: Edges, slope: float
    ) -> Tensor:
        ctx.edges, ctx.slope = edges, array(torch.tensor(slope, dtype=src_VsCF.dtype))[()]
        ctx.save_for_backward(src_VsCF, dst_VdCF, weight_EK)
        out = torch.empty(edges.num_dst, 1, src_VsCF.shape[2], dtype=src_VsCF.dtype)
        operands = (*_operands(src_VsCF, dst_VdCF, weight_EK), ctx.slope)
        _sum(array(edges.indptr), array(edges.indices), *operands, out.numpy())
        return out

    @staticmethod
    def backward(ctx: Any, grad_VdCF: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        edges: Edges = ctx.edges
        operands, grad = (*_operands(*ctx.saved_tensors), ctx.slope), array(grad_VdCF)
        d_src = d_dst = None
        if ctx.needs_input_grad[0]:
            back, d_src = transpose(edges), torch.empty(edges.num_src, 1, grad.shape[2], dtype=grad_VdCF.dtype)
            topology = array(back.indptr), array(back.indices), array(back.edge)
            _to_sources(*topology, *operands, grad, d_src.numpy())
        if ctx.needs_input_grad[1]:
            d_dst = torch.empty(edges.num_dst, 2, grad.shape[2], dtype=grad_VdCF.dtype)
            _to_destinations(array(edges.indptr), array(edges.indices), *operands, grad, d_dst.numpy())
        return d_src, d_dst, None, None, None


def _operands(src_VsCF: Tensor, dst_VdCF: Tensor, weight_EK: Tensor | None) -> tuple[Any, Any, Any]:
    return array(src_VsCF), array(dst_VdCF), None if weight_EK is None else array(weight_EK.view(-1))


@kernel
def _sum(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    src: NDArray[Any],
    dst: NDArray[Any],
    weight: NDArray[Any] | None,
    slope: Any,
    out: NDArray[Any],
) -> None:
    one = out.dtype.type(1)
    for v in prange(out.shape[0]):
        row, gamma, beta = out[v, 0], dst[v, 0], dst[v, 1]
        row[:] = 0
        for e in range(indptr[v], indptr[v + 1]):
            other = src[indices[e], 0]
            scale = one if weight is None else weight[e]
            below = scale * slope
            for f in range(len(row)):
                z = gamma[f] * other[f] + beta[f]
                row[f] += z * (scale if z > 0 else below)


@kernel
def _to_destinations(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    src: NDArray[Any],
    dst: NDArray[Any],
    weight: NDArray[Any] | None,
    slope: Any,
    grad: NDArray[Any],
    out: NDArray[Any],
) -> None:
    one = out.dtype.type(1)
    for v in prange(out.shape[0]):
        d_gamma, d_beta, gamma, beta, g = out[v, 0], out[v, 1], dst[v, 0], dst[v, 1], grad[v, 0]
        d_gamma[:] = 0
        d_beta[:] = 0
        for e in range(indptr[v], indptr[v + 1]):
            other = src[indices[e], 0]
            scale = one if weight is None else weight[e]
            below = scale * slope
            for f in range(len(g)):
                rate = scale if gamma[f] * other[f] + beta[f] > 0 else below
                d_gamma[f] += rate * other[f]
                d_beta[f] += rate
        for f in range(len(g)):
            d_gamma[f] *= g[f]
            d_beta[f] *= g[f]


@kernel
def _to_sources(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    edge: NDArray[Any],
    src: NDArray[Any],
    dst: NDArray[Any],
    weight: NDArray[Any] | None,
    slope: Any,
    grad: NDArray[Any],
    out: NDArray[Any],
) -> None:
    one = out.dtype.type(1)
    for u in prange(out.shape[0]):
        row, mine = out[u, 0], src[u, 0]
        row[:] = 0
        for i in range(indptr[u], indptr[u + 1]):
            v = indices[i]
            gamma, beta, g = dst[v, 0], dst[v, 1], grad[v, 0]
            scale = one if weight is None else weight[edge[i]]
            below = scale * slope
            for f in range(len(row)):
                rate = scale if gamma[f] * mine[f] + beta[f] > 0 else below
                row[f] += rate * gamma[f] * g[f]
