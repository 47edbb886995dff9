"""Interface of aggregations, and differentiable sums over pairs of source and destination rows.

Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``C`` channels, ``F`` columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.ops.backend import once_differentiable
from outgrow.ops.csc import cached_transpose

Aggregate = Callable[[Block, Tensor, Tensor | None, Tensor | None], Tensor]
"""Signature of a call of an `Aggregation`."""


class Aggregation(ABC):
    """Combination of the source rows of the in-edges of each destination.

    Attributes:
        sliceable: Columns do not mix, so a slice of the columns can be aggregated alone.
        additive: The result over all in-edges is the sum of the results over parts of them.
        has_parameters: The result depends on parameters of modules that are not its own.
        sums_pairs: Rows are summed by pairs of relation and row first (`outgrow.ops.aggregation.pair_edges`).
        reads_sources: Results depend on the rows of sources at all.
        empty: Result for a destination without in-edges.
    """

    sliceable: bool
    additive: bool
    has_parameters: bool = False
    sums_pairs: bool = False
    reads_sources: bool = True
    empty: float = 0.0

    @abstractmethod
    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate the in-edges of each destination.

        Args:
            block: Edges from ``Vs`` sources to ``Vd`` destinations.
            src_VsCF: ``[Vs, C, F]`` rows of the sources.
            dst_VdCF: ``[Vd, C, F]`` rows of the destinations; None if the aggregation reads none.
            weight_EK: ``[E, K]`` weight of each edge; None if all are 1.

        Returns:
            ``[Vd, C', F]``; `empty` for a destination without in-edges.
        """

    def restrict_to_columns(self, first: int, last: int) -> Aggregate:
        """Return the aggregation of rows with columns ``first`` to ``last - 1`` only; needs `sliceable`."""
        assert self.sliceable
        return self


class PairKernels(NamedTuple):
    """Kernels of a sum over pairs and of its gradients; each writes its last argument.

    Attributes:
        forward_sum: Takes ``indptr, indices, src [Vs, C, F], dst [Vd, C, F], weight [E] or None``, the
            options and ``out [Vd, 1, F]``.
        grad_dst: Takes also ``grad [Vd, 1, F]`` before ``out``, which has the shape of ``dst``.
        grad_src: Takes the transposed edges, their ``edge`` after ``indices``, and ``grad`` before ``out``,
            which has the shape of ``src``.
    """

    forward_sum: Callable[..., None]
    grad_dst: Callable[..., None]
    grad_src: Callable[..., None]


def pair_sum(
    kernels: PairKernels, edges: Edges, src_VsCF: Tensor, dst_VdCF: Tensor, weight_EK: Tensor | None, *options: object
) -> Tensor:
    """Return ``[Vd, 1, F]``: the sum that ``kernels`` computes, differentiable in both ends.

    Args:
        kernels: The sum and its gradients.
        edges: In-edges of a block.
        src_VsCF: ``[Vs, C, F]``.
        dst_VdCF: ``[Vd, C, F]``.
        weight_EK: ``[E, 1]`` constant; None if all are 1.
        options: Constants that are passed on to the kernels.
    """
    assert weight_EK is None or (weight_EK.shape[1] == 1 and not weight_EK.requires_grad)
    return _PairSum.apply(kernels, edges, options, src_VsCF, dst_VdCF, weight_EK)  # type: ignore[no-any-return, no-untyped-call]


class _PairSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernels: PairKernels,
        edges: Edges,
        options: tuple[object, ...],
        src_VsCF: Tensor,
        dst_VdCF: Tensor,
        weight_EK: Tensor | None,
    ) -> Tensor:
        ctx.kernels = kernels
        ctx.edges = edges
        ctx.options = options
        weight_E = None if weight_EK is None else weight_EK.view(-1)
        ctx.save_for_backward(src_VsCF, dst_VdCF, weight_E)
        out = src_VsCF.new_empty(edges.num_dst, 1, src_VsCF.shape[2])
        kernels.forward_sum(edges.indptr, edges.indices, src_VsCF, dst_VdCF, weight_E, *options, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_VdCF: Tensor) -> tuple[Tensor | None, ...]:
        edges: Edges = ctx.edges
        src_VsCF, dst_VdCF, weight_E = ctx.saved_tensors
        given = src_VsCF, dst_VdCF, weight_E, *ctx.options, grad_VdCF
        d_src = d_dst = None
        if ctx.needs_input_grad[3]:
            # Over the transposed edges each source belongs to one thread; built only if a gradient is wanted.
            back = cached_transpose(edges)
            d_src = src_VsCF.new_empty(src_VsCF.shape)
            ctx.kernels.grad_src(back.indptr, back.indices, back.edge, *given, d_src)
        if ctx.needs_input_grad[4]:
            d_dst = dst_VdCF.new_empty(dst_VdCF.shape)
            ctx.kernels.grad_dst(edges.indptr, edges.indices, *given, d_dst)
        return None, None, None, d_src, d_dst, None
