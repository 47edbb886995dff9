"""The largest value over in-edges, column by column."""

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


class Max(Aggregation):
    """``out[v, c, f] = max over in-edges e of src[source of e, c, f]``; a tie goes to the first edge."""

    sliceable = True
    additive = False

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate; see `Aggregation`. Takes no weights."""
        assert weight_EK is None
        return _Max.apply(src_VsCF, block.edges)  # type: ignore[no-any-return, no-untyped-call]


class _Max(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, src_VsCF: Tensor, edges: Edges) -> Tensor:
        shape = (edges.num_dst, *src_VsCF.shape[1:])
        out = torch.empty(shape, dtype=src_VsCF.dtype)
        narrow = torch.int32 if edges.num_edges < 2**31 else torch.int64
        ctx.edges, ctx.num_src, ctx.winner = edges, len(src_VsCF), torch.empty(shape, dtype=narrow)
        _largest(
            array(edges.indptr),
            array(edges.indices),
            array(src_VsCF.flatten(1)),
            out.flatten(1).numpy(),
            ctx.winner.flatten(1).numpy(),
        )
        return out

    @staticmethod
    def backward(ctx: Any, grad_VdCF: Tensor) -> tuple[Tensor, None]:
        back = transpose(ctx.edges)
        out = torch.empty(ctx.num_src, *grad_VdCF.shape[1:], dtype=grad_VdCF.dtype)
        _to_winners(
            array(back.indptr),
            array(back.indices),
            array(back.edge),
            array(ctx.winner.flatten(1)),
            array(grad_VdCF.flatten(1)),
            out.flatten(1).numpy(),
        )
        return out, None


@kernel
def _largest(
    indptr: NDArray[np.int64], indices: NDArray[Any], src: NDArray[Any], out: NDArray[Any], winner: NDArray[Any]
) -> None:
    for v in prange(out.shape[0]):
        first, last = indptr[v], indptr[v + 1]
        if first == last:
            out[v] = 0
            winner[v] = -1
            continue
        out[v] = src[indices[first]]
        winner[v] = first
        for e in range(first + 1, last):
            other = src[indices[e]]
            for f in range(out.shape[1]):
                if other[f] > out[v, f]:
                    out[v, f] = other[f]
                    winner[v, f] = e


@kernel
def _to_winners(
    indptr: NDArray[np.int64],
    dst: NDArray[Any],
    edge: NDArray[Any],
    winner: NDArray[Any],
    grad: NDArray[Any],
    out: NDArray[Any],
) -> None:
    for u in prange(out.shape[0]):
        out[u] = 0
        for i in range(indptr[u], indptr[u + 1]):
            e, v = edge[i], dst[i]
            for f in range(out.shape[1]):
                if winner[v, f] == e:
                    out[u, f] += grad[v, f]
