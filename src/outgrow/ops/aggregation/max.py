"""Maximum over in-edges, column by column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.ops.aggregation.base import Aggregation
from outgrow.ops.backend import (
    as_numpy,
    gpu_dispatch,
    kernel_factory,
    once_differentiable,
    parallel_kernel,
    prange,
    serial_kernel,
)
from outgrow.ops.csc import cached_transpose
from outgrow.ops.kernels.work_split import (
    END_ROW,
    ROW,
    add_split_rows,
    as_kernel_array,
    balanced_work,
    continues_row,
    launch_balanced,
    row_span,
    specialised_width,
    store_row,
)

Array = NDArray[Any]


class Max(Aggregation):
    """``out[v, c, f] = max over in-edges e of src[source of e, c, f]``; a tie goes to the first edge.

    Args:
        empty: Result for a destination without in-edges.
    """

    sliceable = True
    additive = False

    def __init__(self, *, empty: float = 0.0) -> None:
        self.empty = empty

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate without weights; see `Aggregation`."""
        assert weight_EK is None
        out: Tensor = _SegmentMax.apply(src_VsCF, block.edges)  # type: ignore[no-untyped-call]
        if self.empty == 0:
            return out
        indptr = block.edges.indptr
        return out.masked_fill((indptr[1:] == indptr[:-1])[:, None, None], self.empty)


@gpu_dispatch
def segment_max(indptr: Tensor, indices: Tensor, src_VsF: Tensor, out_VdF: Tensor, winner_VdF: Tensor) -> None:
    """Compute the maximum into ``out_VdF`` and its edge into ``winner_VdF``: -1 without in-edges."""
    ends = as_numpy(indptr)
    columns = out_VdF.shape[1]
    parts = balanced_work(ends)
    out = as_kernel_array(out_VdF)
    winner = as_kernel_array(winner_VdF)
    cut, cut_winner = (np.empty((len(parts), columns), rows.dtype) for rows in (out, winner))
    run = _make_max_kernel(specialised_width(len(indices), columns))
    run(parts, ends, as_numpy(indices), as_kernel_array(src_VsF), columns, out, winner, cut, cut_winner)


@gpu_dispatch
def segment_max_backward(
    indptr: Tensor, dst: Tensor, edge: Tensor, winner_VdF: Tensor, grad_VdF: Tensor, out_VsF: Tensor
) -> None:
    """Compute the gradient of the sources, over the transposed edges, into ``out_VsF``."""
    launch_balanced(_make_max_backward_kernel, indptr, dst, edge, winner_VdF, grad_VdF, out=out_VsF)


class _SegmentMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, src_VsCF: Tensor, edges: Edges) -> Tensor:
        shape = (edges.num_dst, *src_VsCF.shape[1:])
        out = src_VsCF.new_empty(shape)
        narrow = torch.int32 if edges.num_edges < 2**31 else torch.int64
        ctx.edges = edges
        ctx.num_src = len(src_VsCF)
        # The backward pass needs the edge that gave each maximum, not the sources: they are not kept alive.
        ctx.winner = src_VsCF.new_empty(shape, dtype=narrow)
        segment_max(edges.indptr, edges.indices, src_VsCF.flatten(1), out.flatten(1), ctx.winner.flatten(1))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_VdCF: Tensor) -> tuple[Tensor, None]:
        back = cached_transpose(ctx.edges)
        out = grad_VdCF.new_empty(ctx.num_src, *grad_VdCF.shape[1:])
        rows = ctx.winner.flatten(1), grad_VdCF.flatten(1), out.flatten(1)
        segment_max_backward(back.indptr, back.indices, back.edge, *rows)
        return out, None


@kernel_factory
def _make_max_kernel(fixed: int | None) -> Callable[..., None]:
    @parallel_kernel
    def max_kernel(
        parts: Array,
        indptr: Array,
        indices: Array,
        src: Array,
        columns: int,
        out: Array,
        winner: Array,
        cut: Array,
        cut_winner: Array,
    ) -> None:
        width = columns if fixed is None else fixed
        for part in prange(len(parts)):
            best, best_edge = np.empty(width, out.dtype), np.empty(width, winner.dtype)
            for v in range(parts[part, ROW], parts[part, END_ROW]):
                first, last = row_span(parts, part, indptr, v)
                # Start from the row's first edge, so that a NaN or -inf there has a winner. A later piece of
                # a cut row starts from -inf without a winner, and can only win a column with a value of its
                # own.
                if first == indptr[v] and first < last:
                    for f in range(width):
                        best[f], best_edge[f] = src[indices[first], f], first
                else:
                    for f in range(width):
                        best[f], best_edge[f] = -np.inf if last > indptr[v] else 0, -1
                for e in range(first, last):
                    u = indices[e]
                    at = winner.dtype.type(e)
                    for f in range(width):
                        value, least, edge = src[u, f], best[f], best_edge[f]
                        # Selections instead of a branch let the compiler vectorise; strictly larger, so that
                        # a tie goes to the first edge.
                        best[f] = value if value > least else least
                        best_edge[f] = at if value > least else edge
                store_row(parts, part, indptr, v, best, out, cut)
                store_row(parts, part, indptr, v, best_edge, winner, cut_winner)
        _merge_split_rows(parts, indptr, out, winner, cut, cut_winner)

    return max_kernel


@serial_kernel
def _merge_split_rows(parts: Array, indptr: Array, out: Array, winner: Array, cut: Array, cut_winner: Array) -> None:
    """Let a later piece of a cut row win where its value is strictly larger."""
    # In the order of the parts, so that a tie goes to the first edge here too.
    for part in range(1, len(parts)):
        v = parts[part, ROW]
        if continues_row(parts, part, indptr, v):
            for f in range(cut.shape[1]):
                if cut[part, f] > out[v, f]:
                    out[v, f] = cut[part, f]
                    winner[v, f] = cut_winner[part, f]


@kernel_factory
def _make_max_backward_kernel(fixed: int | None) -> Callable[..., None]:
    @parallel_kernel
    def max_backward_kernel(
        parts: Array,
        indptr: Array,
        dst: Array,
        edge: Array,
        winner: Array,
        grad: Array,
        columns: int,
        out: Array,
        cut: Array,
    ) -> None:
        width = columns if fixed is None else fixed
        zero = out.dtype.type(0)
        for part in prange(len(parts)):
            total = np.empty(width, out.dtype)
            for u in range(parts[part, ROW], parts[part, END_ROW]):
                for f in range(len(total)):
                    total[f] = 0
                for i in range(*row_span(parts, part, indptr, u)):
                    e = edge[i]
                    v = dst[i]
                    # Each source gathers from the edges that it won: scattering from destinations would need
                    # atomics.
                    for f in range(width):
                        total[f] += grad[v, f] if winner[v, f] == e else zero
                store_row(parts, part, indptr, u, total, out, cut)
        add_split_rows(parts, indptr, out, cut)

    return max_backward_kernel
