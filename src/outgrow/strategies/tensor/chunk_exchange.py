"""Exchanges of the rows of chunks: splits before a chunk is aggregated, gathers behind it, in flight meanwhile.

Every worker takes the chunks in the same order. Ai et al.: NeutronTP, PVLDB 18(2), 2024, algorithm 1.

Letters: ``n`` own nodes, ``V`` all nodes, ``k`` nodes of a group, ``C`` channels, ``F`` columns, ``f`` those of the
worker's slice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.core.timeline import Timeline
from outgrow.ops.memory_pool import pooled_empty
from outgrow.runtime.distributed.comm import Comm, ExchangeHandle
from outgrow.strategies.tensor.all_to_all import (
    ColumnRanges,
    column_ranges,
    merge_slices,
    slice_split_sizes,
    split_slices,
)
from outgrow.strategies.tensor.chunk_schedule import NodeGroup
from outgrow.strategies.tensor.device_copies import DeviceCopies
from outgrow.strategies.tensor.mapped_graph import MappedGraph

_AHEAD = 1
"""Chunks whose rows are exchanged ahead of the one being aggregated, where memory is short."""


class PendingRows(NamedTuple):
    """An exchange of rows in progress.

    Attributes:
        arrival: Handle of the exchange.
        label: Its name in the timeline.
        start: When it was started, in seconds of ``time.monotonic``.
        kind: Kind of the rows, for the ledger.
    """

    arrival: ExchangeHandle
    label: str
    start: float
    kind: Kind


class ChunkExchange:
    """Splits and gathers of the rows of chunks. All workers make and call it together, in the same order. Final.

    Args:
        comm: Communicator of the workers.
        num_nodes: ``V``.
        timeline: Records the spans.
        mapped_graph: Files of slices, which bounds the chunks exchanged at a time; None for slices in memory.
        row_device: Device of whole rows, from which they are sent; None for the worker's device.
    """

    def __init__(
        self,
        comm: Comm,
        num_nodes: int,
        timeline: Timeline,
        mapped_graph: MappedGraph | None = None,
        row_device: torch.device | None = None,
    ) -> None:
        self.comm = comm
        self.num_nodes = num_nodes
        self.timeline = timeline
        self.mapped_graph = mapped_graph
        self.row_device = row_device or comm.device
        self.copies = DeviceCopies(comm)
        # Each exchange holds a copy of its rows, so with edges in files only a few may be in progress.
        self.max_pending = None if mapped_graph is None else _AHEAD

    def start_splits(
        self, rows_nCF: Tensor, groups: Iterable[tuple[str, NodeGroup]], kind: Kind
    ) -> Iterator[PendingRows]:
        """Send the columns of the own rows of groups, and yield the exchanges in their order.

        Args:
            rows_nCF: Rows of the own nodes.
            groups: Groups with the names of their exchanges in the timeline.
            kind: Kind of the rows, for the ledger.
        """
        cut = self.column_ranges(rows_nCF.shape[2])
        pending = deque[PendingRows]()
        for label, group in groups:
            route = slice_split_sizes(group.sizes, self.comm.rank, rows_nCF.shape[1], cut)
            sent = split_slices(rows_nCF.index_select(0, group.own_rows), cut)
            pending.append(PendingRows(self.comm.all_to_all(sent, route, kind), label, time.monotonic(), kind))
            if self.max_pending is not None and len(pending) > self.max_pending:
                yield pending.popleft()
        yield from pending

    def receive_slices(self, pending: PendingRows, group: NodeGroup, slices_VCf: Tensor, channels: int) -> None:
        """Wait for a split, of as many channels or of one for all, and write it to the rows of its nodes."""
        with self.timeline.span("wait for split"):
            rows = pending.arrival.wait()
        self.timeline.record_since("split", pending.label, pending.start)
        rows = rows.view(len(group.nodes), channels, slices_VCf.shape[2])
        rows = self.copies.move_rows(rows, slices_VCf.device, pending.kind)
        slices_VCf.index_copy_(0, group.nodes, rows.expand(-1, slices_VCf.shape[1], -1))

    def start_gathers(self, shape: tuple[int, int, int], like: Tensor, kind: Kind) -> RowGather:
        """Return the gathers of the rows of own nodes, ``[n, C, F]``, none of them started yet."""
        return RowGather(self, pooled_empty(shape, like.new_empty(0, device=self.row_device)), kind)

    def allocate_slices(self, channels: int, columns: int, like: Tensor) -> Tensor:
        """Return uninitialised memory for the worker's slice of rows of all nodes, without padding between rows."""
        first, last = self.column_ranges(columns)[self.comm.rank]
        shape = self.num_nodes, channels, last - first
        like = like.new_empty(0, device=self.comm.device)
        return (
            pooled_empty(shape, like) if self.mapped_graph is None else self.mapped_graph.allocate_slices(shape, like)
        )

    def column_ranges(self, columns: int) -> ColumnRanges:
        """Return the column range of each worker."""
        return column_ranges(columns, self.comm.size)


class RowGather:
    """Gathers that put the rows of own nodes together, group by group. Final.

    Args:
        exchange: Gives the workers.
        rows_nCF: Is filled.
        kind: Kind of the rows, for the ledger.
    """

    def __init__(self, exchange: ChunkExchange, rows_nCF: Tensor, kind: Kind) -> None:
        self.exchange = exchange
        self.rows_nCF = rows_nCF
        self.kind = kind
        self._pending = deque[tuple[PendingRows, NodeGroup]]()

    def send(
        self, slices: Tensor, group: NodeGroup, label: str, *, first: int = 0, sums_channels: bool = False
    ) -> None:
        """Start the gather of a group.

        Args:
            slices: ``[.., C, f]`` rows of consecutive nodes, those of the group among them.
            group: The nodes.
            label: Name of the exchange in the timeline.
            first: Node of the first row.
            sums_channels: Whether to send sums over channels.
        """
        exchange = self.exchange
        # A copy in the order of the workers; it is sent while the next chunk is summed.
        nodes = group.nodes.to(slices.device)
        rows = slices.index_select(0, nodes - first if first else nodes)
        rows = rows.sum(1, keepdim=True) if sums_channels else rows
        cut = exchange.column_ranges(self.rows_nCF.shape[2])
        route = slice_split_sizes(group.sizes, exchange.comm.rank, rows.shape[1], cut).reverse
        flat = exchange.copies.move_rows(rows.view(-1), exchange.row_device, self.kind)
        sent = exchange.comm.all_to_all(flat, route, self.kind)
        self._pending.append((PendingRows(sent, label, time.monotonic(), self.kind), group))
        while exchange.max_pending is not None and len(self._pending) > exchange.max_pending + 1:
            self._receive_next()

    def receive_all(self) -> Tensor:
        """Wait for all gathers and return the rows."""
        while self._pending:
            self._receive_next()
        return self.rows_nCF

    def _receive_next(self) -> None:
        pending, group = self._pending.popleft()
        exchange = self.exchange
        with exchange.timeline.span("wait for gather"):
            flat = pending.arrival.wait()
        exchange.timeline.record_since("gather", pending.label, pending.start)
        mine = group.own_rows
        cut = exchange.column_ranges(self.rows_nCF.shape[2])
        rows = merge_slices(flat, (len(mine), *self.rows_nCF.shape[1:]), cut)
        self.rows_nCF.index_copy_(0, mine, rows)
