"""Rounds of weighted sums on slices, chunk by chunk, overlapped with the exchange of other chunks' rows.

The split of the rows that a chunk is the first to read overlaps with the aggregation of earlier chunks, the
gather of its results with that of later ones. Every worker processes the chunks in the same order. The
backward pass does the same over sources and their out-edges, so that the gradient of a source is complete
when it is gathered. Ai et al.: NeutronTP, PVLDB 18(2), 2024, algorithm 1.

Letters: ``n`` own nodes, ``V`` all nodes, ``E`` edges, ``C`` channels, ``K`` weights of an edge, ``F``
columns, ``f`` those of the worker's slice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.core.timeline import Timeline
from outgrow.ops.aggregation.spmm import spmm, spmm_backward_fused
from outgrow.ops.backend import once_differentiable
from outgrow.ops.memory_pool import pooled_empty
from outgrow.runtime.distributed.comm import Comm, ExchangeHandle
from outgrow.strategies.tensor.all_to_all import (
    ColumnRanges,
    column_ranges,
    merge_slices,
    slice_split_sizes,
    split_slices,
)
from outgrow.strategies.tensor.chunk_schedule import AggregationChunk, ChunkSchedules, NodeGroup
from outgrow.strategies.tensor.mapped_graph import MappedGraph

_AHEAD = 1
"""Chunks whose rows are exchanged ahead of the one being aggregated, where memory is short."""


class PendingRows(NamedTuple):
    """An exchange of rows in progress.

    Attributes:
        arrival: Handle of the exchange.
        label: Its name in the timeline.
        start: When it was started, in seconds of ``time.monotonic``.
    """

    arrival: ExchangeHandle
    label: str
    start: float


class PipelinedSum:
    """Weighted sums over all nodes, from and to whole rows of own nodes. All workers call it together. Final.

    Args:
        comm: Communicator of the workers.
        schedules: The chunks of both directions.
        num_nodes: ``V``.
        timeline: Records the spans.
        mapped_graph: Files with the edges, which bounds the chunks exchanged at a time; None for edges in
            memory.
        row_device: Device of whole rows, from which they are sent; None for the worker's device.
    """

    def __init__(
        self,
        comm: Comm,
        schedules: ChunkSchedules,
        num_nodes: int,
        timeline: Timeline,
        mapped_graph: MappedGraph | None = None,
        row_device: torch.device | None = None,
    ) -> None:
        self.row_device = row_device or comm.device
        self.comm = comm
        self.schedules = schedules
        self.num_nodes = num_nodes
        self.timeline = timeline
        self.mapped_graph = mapped_graph
        self.max_pending = None if mapped_graph is None else _AHEAD
        self.num_edges = sum(len(chunk.indices) for chunk in schedules.forward)
        self._transposed_weights: tuple[Tensor, Tensor] | None = None

    def __call__(
        self, rows_nCF: Tensor, weight_EC: Tensor | None, count: int, kind: Kind, *, sums_channels: bool = False
    ) -> Tensor:
        """Return the own rows after some rounds, ``[n, C, F]``. Differentiable in rows and weights.

        Args:
            rows_nCF: Rows of the own nodes.
            weight_EC: Weight of each edge in every round; None if all are 1.
            count: Number of rounds, at least 1.
            kind: Kind of the rows, for the ledger.
            sums_channels: Whether to return the sum over channels, ``[n, 1, F]``, which is taken before it is sent.
        """
        return _PipelinedSumFunction.apply(rows_nCF, weight_EC, self, count, kind, sums_channels)  # type: ignore[no-any-return, no-untyped-call]

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
        with self.timeline.span("aggregate"):
            spmm(*given, out_VCf[chunk.first : chunk.last], num_edges=self.num_edges)

    def _compute_transposed(self, weight_EC: Tensor) -> Tensor:
        edges = [_edge_numbers(chunk) for chunk in self.schedules.backward]
        if self.mapped_graph is None:
            return torch.cat([weight_EC[edge] for edge in edges])
        return self.mapped_graph.transpose_weights(weight_EC, edges)

    def pending_slices(self, rows_nCF: Tensor, chunks: Sequence[AggregationChunk], kind: Kind) -> Iterator[PendingRows]:
        """Send what chunks read, and yield the exchanges in the order of the chunks."""
        cut = self.column_ranges(rows_nCF)
        pending = deque[PendingRows]()
        for number, chunk in enumerate(chunks):
            arrival = self._send_columns(rows_nCF, chunk.read_group, cut, kind)
            pending.append(PendingRows(arrival, f"split {number}", time.monotonic()))
            # Each exchange holds a copy of its rows, so with edges in files only a few may be in progress.
            if self.max_pending is not None and len(pending) > self.max_pending:
                yield pending.popleft()
        yield from pending

    def receive_slices(self, pending: PendingRows, group: NodeGroup, slices_VCf: Tensor, channels: int) -> None:
        """Wait for a split, of as many channels or of one for all, and write it to the rows of its nodes."""
        with self.timeline.span("wait for split"):
            rows = pending.arrival.wait()
        self.timeline.record_since("split", pending.label, pending.start)
        rows = rows.view(len(group.nodes), channels, slices_VCf.shape[2]).to(self.comm.device)
        slices_VCf.index_copy_(0, group.nodes, rows.expand(-1, slices_VCf.shape[1], -1))

    def send_rows(
        self,
        slices_VCf: Tensor,
        group: NodeGroup,
        columns: int,
        kind: Kind,
        number: int,
        *,
        sums_channels: bool = False,
    ) -> PendingRows:
        """Start the gather of ``columns`` columns of the rows of chunk ``number``, or of their sums over channels."""
        # A copy in the order of the workers; it is sent while the next chunk is summed.
        rows = slices_VCf.index_select(0, group.nodes)
        rows = rows.sum(1, keepdim=True) if sums_channels else rows
        cut = column_ranges(columns, self.comm.size)
        route = slice_split_sizes(group.sizes, self.comm.rank, rows.shape[1], cut).reverse
        sent = rows.view(-1).to(self.row_device)
        return PendingRows(self.comm.all_to_all(sent, route, kind), f"gather {number}", time.monotonic())

    def receive_rows(
        self, pending: Sequence[PendingRows], chunks: Sequence[AggregationChunk], rows_nCF: Tensor
    ) -> Tensor:
        """Wait for all gathers and return the rows."""
        cut = self.column_ranges(rows_nCF)
        for gather, chunk in zip(pending, chunks, strict=True):
            with self.timeline.span("wait for gather"):
                flat = gather.arrival.wait()
            self.timeline.record_since("gather", gather.label, gather.start)
            mine = chunk.output_group.own_rows
            rows_nCF.index_copy_(0, mine, merge_slices(flat, (len(mine), *rows_nCF.shape[1:]), cut))
        return rows_nCF

    def allocate_slices(self, rows_nCF: Tensor, channels: int) -> Tensor:
        """Return uninitialised memory for the worker's columns of all nodes, without padding between rows."""
        first, last = self.column_ranges(rows_nCF)[self.comm.rank]
        shape = self.num_nodes, channels, last - first
        like = rows_nCF.new_empty(0, device=self.comm.device)
        return (
            pooled_empty(shape, like) if self.mapped_graph is None else self.mapped_graph.allocate_slices(shape, like)
        )

    def column_ranges(self, rows_nCF: Tensor) -> ColumnRanges:
        """Return the column range of each worker."""
        return column_ranges(rows_nCF.shape[2], self.comm.size)

    def _send_columns(self, rows_nCF: Tensor, group: NodeGroup, ranges: ColumnRanges, kind: Kind) -> ExchangeHandle:
        route = slice_split_sizes(group.sizes, self.comm.rank, rows_nCF.shape[1], ranges)
        return self.comm.all_to_all(split_slices(rows_nCF.index_select(0, group.own_rows), ranges), route, kind)


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
    ) -> Tensor:
        chunks = pipeline.schedules.forward
        num_rows, channels, columns = rows_nCF.shape
        pending = pipeline.pending_slices(rows_nCF, chunks, kind)
        gathers = list[PendingRows]()
        kept = list[Tensor]()
        slices = pipeline.allocate_slices(rows_nCF, channels)
        for number in range(count):
            made = pipeline.allocate_slices(rows_nCF, channels)
            for place, chunk in enumerate(chunks):
                if number == 0:
                    pipeline.receive_slices(next(pending), chunk.read_group, slices, channels)
                pipeline.sum_chunk(chunk, weight_EC, slices, made)
                # Rows that this chunk has completed leave while the following chunks are summed.
                if number == count - 1:
                    given = chunk.output_group, columns, Kind.ACTIVATIONS, place
                    gathers.append(pipeline.send_rows(made, *given, sums_channels=sums_channels))
            if ctx.needs_input_grad[1]:
                # The gradient of the weights needs every round's input; that of the rows needs none.
                kept.append(slices)
            slices = made
        ctx.pipeline = pipeline
        ctx.count = count
        ctx.kept = kept
        ctx.weight = weight_EC
        ctx.channels = channels
        shape = num_rows, 1 if sums_channels else channels, columns
        # Every gather was started before the first is waited for.
        return pipeline.receive_rows(gathers, chunks, pooled_empty(shape, rows_nCF))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_nCF: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        weight_EC = ctx.weight
        pipeline: PipelinedSum = ctx.pipeline
        kept = ctx.kept
        wants_rows, wants_weight = ctx.needs_input_grad[:2]
        chunks = pipeline.schedules.backward
        num_rows, sent_channels, columns = grad_nCF.shape
        pending = pipeline.pending_slices(grad_nCF, chunks, Kind.GRADIENTS)
        gathers = list[PendingRows]()
        # The gradient of a sum over channels is that of each of them.
        slices = pipeline.allocate_slices(grad_nCF, ctx.channels)
        total = None
        # Fixed weights are sorted once so that every pass reads them in sequence. Trained ones change with
        # each step, so the fused kernel reads them by edge number instead.
        transposed = None if weight_EC is None or wants_weight else pipeline.transpose_weights(weight_EC)
        for number in range(ctx.count):
            made = pipeline.allocate_slices(grad_nCF, ctx.channels)
            d_weight = _empty_like(weight_EC) if wants_weight else None
            for place, chunk in enumerate(chunks):
                if number == 0:
                    pipeline.receive_slices(next(pending), chunk.read_group, slices, sent_channels)
                if d_weight is None:
                    pipeline.sum_chunk(chunk, transposed, slices, made)
                else:
                    with pipeline.timeline.span("aggregate"):
                        _backward_chunk(chunk, weight_EC, slices, kept[-1], made, d_weight)
                if number == ctx.count - 1 and wants_rows:
                    gathers.append(pipeline.send_rows(made, chunk.output_group, columns, Kind.GRADIENTS, place))
            if d_weight is not None:
                # All rounds share one tensor of weights, so their gradients add up.
                total = d_weight if total is None else total.add_(d_weight)
                # Rounds run backwards: the input of the last one is no longer needed.
                kept.pop()
            slices = made
        shape = num_rows, ctx.channels, columns
        grad = pipeline.receive_rows(gathers, chunks, pooled_empty(shape, grad_nCF)) if wants_rows else None
        return grad, total, None, None, None, None


def _edge_numbers(chunk: AggregationChunk) -> Tensor:
    """Return the numbers of a chunk's edges, ``[e]``."""
    if chunk.edge is not None:
        return chunk.edge
    return torch.arange(chunk.first_edge, chunk.first_edge + len(chunk.indices), device=chunk.indices.device)


def _empty_like(like: Tensor) -> Tensor:
    return pooled_empty(tuple(like.shape), like)


def _backward_chunk(
    chunk: AggregationChunk, weight_EC: Tensor, grad_VCf: Tensor, own_VCf: Tensor, out_VCf: Tensor, d_weight_EC: Tensor
) -> None:
    """Compute the gradients of a chunk's rows and of its edges' weights."""
    assert chunk.edge is not None
    here = slice(chunk.first, chunk.last)
    given = chunk.indptr, chunk.indices, chunk.edge, weight_EC, grad_VCf
    spmm_backward_fused(*given, own_VCf[here], out_VCf[here], d_weight_EC)
