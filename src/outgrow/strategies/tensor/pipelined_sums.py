"""Rounds of weighted sums on slices, chunk by chunk, overlapped with the exchange of other chunks' rows.

The split of the rows that a chunk is the first to read overlaps with the aggregation of earlier chunks, the
gather of its results with that of later ones. Every worker processes the chunks in the same order. The
backward pass does the same over sources and their out-edges, so that the gradient of a source is complete
when it is gathered. Ai et al.: NeutronTP, PVLDB 18(2), 2024, algorithm 1.

Letters: ``n`` own nodes, ``V`` all nodes, ``E`` edges, ``C`` channels, ``K`` weights of an edge, ``F``
columns, ``f`` those of the worker's slice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.ops.aggregation.spmm import spmm, spmm_backward_fused
from outgrow.ops.backend import once_differentiable
from outgrow.ops.memory_pool import pooled_empty
from outgrow.strategies.tensor.chunk_exchange import ChunkExchange
from outgrow.strategies.tensor.chunk_schedule import AggregationChunk, ChunkSchedules, read_groups


class PipelinedSum:
    """Weighted sums over all nodes, from and to whole rows of own nodes. All workers call it together. Final.

    Args:
        exchange: Splits and gathers the rows of chunks.
        schedules: The chunks of both directions.
    """

    def __init__(self, exchange: ChunkExchange, schedules: ChunkSchedules) -> None:
        self.exchange = exchange
        self.schedules = schedules
        self.num_edges = sum(len(chunk.indices) for chunk in schedules.forward)
        self._transposed_weights: tuple[Tensor, Tensor] | None = None

    def __call__(
        self,
        rows_nCF: Tensor,
        weight_EC: Tensor | None,
        count: int,
        kind: Kind,
        *,
        sums_channels: bool = False,
        alpha: float = 0.0,
    ) -> Tensor:
        """Return the own rows after some rounds, ``[n, C, F]``. Differentiable in rows and weights.

        Args:
            rows_nCF: Rows of the own nodes.
            weight_EC: Weight of each edge in every round; None if all are 1.
            count: Number of rounds, at least 1.
            kind: Kind of the rows, for the ledger.
            sums_channels: Whether to return the sum over channels, ``[n, 1, F]``, which is taken before it is sent.
            alpha: What each round adds of the given rows, where every node has a self-loop.
        """
        return _PipelinedSumFunction.apply(rows_nCF, weight_EC, self, count, kind, sums_channels, alpha)  # type: ignore[no-any-return, no-untyped-call]

    def transpose_weights(self, weight_EC: Tensor) -> Tensor:
        """Return constant weights in the order of out-edges, ``[E, C]``; cached for the following passes."""
        # By identity: comparing values would read all weights in every pass.
        if self._transposed_weights is None or self._transposed_weights[0] is not weight_EC:
            self._transposed_weights = weight_EC, self._compute_transposed(weight_EC)
        return self._transposed_weights[1]

    def sum_chunk(self, chunk: AggregationChunk, weight_EC: Tensor | None, slices_VCf: Tensor, out_VCf: Tensor) -> None:
        """Compute one round of a chunk's rows; weights are in the order of the chunks' edges."""
        weight = None if weight_EC is None else weight_EC[chunk.first_edge : chunk.first_edge + len(chunk.indices)]
        given = chunk.indptr, chunk.indices, None, weight, slices_VCf
        with self.exchange.timeline.span("aggregate"):
            spmm(*given, out_VCf[chunk.first : chunk.last], num_edges=self.num_edges)

    def _compute_transposed(self, weight_EC: Tensor) -> Tensor:
        edges = [_edge_numbers(chunk) for chunk in self.schedules.backward]
        mapped = self.exchange.mapped_graph
        if mapped is None:
            return torch.cat([weight_EC[edge] for edge in edges])
        return mapped.transpose_weights(weight_EC, edges)


class _PipelinedSumFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows_nCF: Tensor,
        weight_EC: Tensor | None,
        pipeline: PipelinedSum,
        count: int,
        kind: Kind,
        sums_channels: bool,
        alpha: float,
    ) -> Tensor:
        exchange = pipeline.exchange
        chunks = pipeline.schedules.forward
        num_rows, channels, columns = rows_nCF.shape
        pending = exchange.start_splits(rows_nCF, read_groups(chunks), kind)
        shape = num_rows, 1 if sums_channels else channels, columns
        gather = exchange.start_gathers(shape, rows_nCF, Kind.ACTIVATIONS)
        kept = list[Tensor]()
        slices = initial = exchange.allocate_slices(channels, columns, rows_nCF)
        for number in range(count):
            made = exchange.allocate_slices(channels, columns, rows_nCF)
            for place, chunk in enumerate(chunks):
                if number == 0:
                    exchange.receive_slices(next(pending), chunk.read_group, slices, channels)
                pipeline.sum_chunk(chunk, weight_EC, slices, made)
                # Its self-loops make a chunk read its own nodes, so that their rows are there in the first round too.
                _add_chunk(chunk, made, initial, alpha)
                # Rows that this chunk has completed leave while the following chunks are summed.
                if number == count - 1:
                    gather.send(made, chunk.output_group, f"gather {place}", sums_channels=sums_channels)
            if ctx.needs_input_grad[1]:
                # The gradient of the weights needs every round's input; that of the rows needs none.
                kept.append(slices)
            slices = made
        ctx.pipeline = pipeline
        ctx.count = count
        ctx.alpha = alpha
        ctx.kept = kept
        ctx.weight = weight_EC
        ctx.channels = channels
        return gather.receive_all()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_nCF: Tensor) -> tuple[Tensor | None, ...]:
        weight_EC = ctx.weight
        pipeline: PipelinedSum = ctx.pipeline
        exchange = pipeline.exchange
        kept = ctx.kept
        wants_rows, wants_weight = ctx.needs_input_grad[:2]
        chunks = pipeline.schedules.backward
        num_rows, sent_channels, columns = grad_nCF.shape
        pending = exchange.start_splits(grad_nCF, read_groups(chunks), Kind.GRADIENTS)
        shape = num_rows, ctx.channels, columns
        gather = exchange.start_gathers(shape, grad_nCF, Kind.GRADIENTS) if wants_rows else None
        # The gradient of a sum over channels is that of each of them.
        slices = initial = exchange.allocate_slices(ctx.channels, columns, grad_nCF)
        # With fixed weights the gradient is the same polynomial with all edges reversed. The gradient of weights needs
        # that of each round, so what the rounds add to the gradient of the given rows is then summed apart.
        apart = ctx.alpha and wants_weight
        restarts = exchange.allocate_slices(ctx.channels, columns, grad_nCF).zero_() if apart else None
        total = None
        # Fixed weights are sorted once so that every pass reads them in sequence. Trained ones change with
        # each step, so the fused kernel reads them by edge number instead.
        transposed = None if weight_EC is None or wants_weight else pipeline.transpose_weights(weight_EC)
        for number in range(ctx.count):
            made = exchange.allocate_slices(ctx.channels, columns, grad_nCF)
            d_weight = _empty_like(weight_EC) if wants_weight else None
            for place, chunk in enumerate(chunks):
                if number == 0:
                    exchange.receive_slices(next(pending), chunk.read_group, slices, sent_channels)
                if d_weight is None:
                    pipeline.sum_chunk(chunk, transposed, slices, made)
                    _add_chunk(chunk, made, initial, ctx.alpha)
                else:
                    with exchange.timeline.span("aggregate"):
                        _backward_chunk(chunk, weight_EC, slices, kept[-1], made, d_weight)
                if restarts is not None:
                    _add_chunk(chunk, restarts, slices, ctx.alpha)
                    _add_chunk(chunk, made, restarts, float(number == ctx.count - 1))
                if number == ctx.count - 1 and gather is not None:
                    gather.send(made, chunk.output_group, f"gather {place}")
            if d_weight is not None:
                # All rounds share one tensor of weights, so their gradients add up.
                total = d_weight if total is None else total.add_(d_weight)
                # Rounds run backwards: the input of the last one is no longer needed.
                kept.pop()
            slices = made
        return None if gather is None else gather.receive_all(), total, None, None, None, None, None


def _edge_numbers(chunk: AggregationChunk) -> Tensor:
    """Return the numbers of a chunk's edges, ``[e]``."""
    if chunk.edge is not None:
        return chunk.edge
    return torch.arange(chunk.first_edge, chunk.first_edge + len(chunk.indices), device=chunk.indices.device)


def _empty_like(like: Tensor) -> Tensor:
    return pooled_empty(tuple(like.shape), like)


def _add_chunk(chunk: AggregationChunk, into_VCf: Tensor, rows_VCf: Tensor, factor: float) -> None:
    """Add the rows of a chunk's nodes, times a factor."""
    if factor:
        here = slice(chunk.first, chunk.last)
        into_VCf[here].add_(rows_VCf[here], alpha=factor)


def _backward_chunk(
    chunk: AggregationChunk, weight_EC: Tensor, grad_VCf: Tensor, own_VCf: Tensor, out_VCf: Tensor, d_weight_EC: Tensor
) -> None:
    """Compute the gradients of a chunk's rows and of its edges' weights."""
    assert chunk.edge is not None
    here = slice(chunk.first, chunk.last)
    given = chunk.indptr, chunk.indices, chunk.edge, weight_EC, grad_VCf
    spmm_backward_fused(*given, own_VCf[here], out_VCf[here], d_weight_EC)
