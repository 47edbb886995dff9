"""Repeated exchange of the same rows between workers, with gradients in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.core.graph_types import RowWidths
from outgrow.core.ledger import Kind
from outgrow.engine.packed_rows import RowPacking
from outgrow.ops.aggregation.spmm import spmm
from outgrow.ops.backend import once_differentiable
from outgrow.ops.csc import cached_transpose
from outgrow.ops.memory_pool import pooled_empty, pooled_empty_rows
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.comm import Comm, ExchangeHandle


class RowSendPlan:
    """A plan to send the same rows to the same workers repeatedly. All workers send together. Final.

    Args:
        comm: Communicator of the workers.
        split_sizes: Number of rows sent to and received from each worker.
        rows: ``[s]`` int64, own rows to send, ordered by receiver.
        num_rows: Number of own rows.
        nodes: ``[s]`` and ``[h]`` int64, nodes of the rows sent and received; needed to send the used columns only.
    """

    def __init__(
        self,
        comm: Comm,
        split_sizes: SplitSizes,
        rows: Tensor,
        num_rows: int,
        nodes: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.comm = comm
        self.split_sizes = split_sizes
        self._nodes = nodes
        self._packings: dict[RowWidths, tuple[RowPacking, RowPacking]] = {}
        self._send_edges = Edges(indptr=torch.arange(len(rows) + 1), indices=rows, num_src=num_rows)
        """One edge from each sent row, in the order of sending."""
        self._edges_by_device: dict[torch.device, Edges] = {}

    def send_rows(self, rows: Tensor, kind: Kind, widths: RowWidths | None = None) -> ExchangeHandle:
        """Start the exchange that gives the rows of others, ``[h, ...]``. Differentiable.

        Args:
            rows: ``[n, ...]`` own rows.
            kind: Kind of the rows, for the ledger.
            widths: Columns of flat rows that each type of nodes uses; the others are zeros. None for all columns.
        """
        if rows.device not in self._edges_by_device:
            self._edges_by_device[rows.device] = self._send_edges.to(rows.device)
        packed: Tensor = _GatherForPeers.apply(rows, self._edges_by_device[rows.device])  # type: ignore[no-untyped-call]
        if widths is None:
            return self.comm.all_to_all(packed, self.split_sizes, kind)
        sent, received = self._packings_of(widths)
        vector = sent.pack(packed.flatten(1))
        exchange = self.comm.all_to_all(vector, SplitSizes(sent.sizes, received.sizes), kind)
        shape = (sum(self.split_sizes.receive), *rows.shape[1:])
        return _PackedExchange(exchange, lambda vector: received.unpack(vector).view(shape))

    def _packings_of(self, widths: RowWidths) -> tuple[RowPacking, RowPacking]:
        if widths not in self._packings:
            assert self._nodes is not None
            sent, received = self._nodes
            self._packings[widths] = (
                RowPacking(widths, sent, self.split_sizes.send),
                RowPacking(widths, received, self.split_sizes.receive),
            )
        return self._packings[widths]


class _PackedExchange(NamedTuple):
    """An exchange in flight whose rows are unpacked when they have come."""

    exchange: ExchangeHandle
    unpack: Callable[[Tensor], Tensor]

    def wait(self) -> Tensor:
        """Return the received rows."""
        return self.unpack(self.exchange.wait())


class _GatherForPeers(torch.autograd.Function):
    """Gather rows for others, once for each receiver; a row's gradients are added in the order of workers."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, send_edges: Edges) -> Tensor:
        ctx.sent = send_edges
        ctx.shape = rows.shape
        out = pooled_empty((send_edges.num_dst, *rows.shape[1:]), rows)
        return torch.index_select(rows, 0, send_edges.indices, out=out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        # A sum over the transposed edges: its order is fixed, where a scatter-add of threads would not be.
        back = cached_transpose(ctx.sent)
        # The sum takes channels and columns; rows of scores have one channel.
        wide = grad if grad.ndim == 3 else grad[:, None]
        out = pooled_empty_rows(ctx.shape[0], tuple(wide.shape[1:]), grad)
        spmm(back.indptr, back.edge, None, None, wide, out)
        return out.view(ctx.shape) if grad.ndim == 3 else out[:, 0], None


class RowFetchPlan:
    """A plan to fetch rows of the same nodes repeatedly. All workers create it and fetch together. Final.

    Args:
        comm: Communicator of the workers.
        own: ``[n]`` int64, the nodes that the worker owns, ascending.
        nodes: ``[h]`` int64, nodes of other workers, ordered by owner.
        counts: Number of these nodes that each worker owns.
    """

    def __init__(self, comm: Comm, own: Tensor, nodes: Tensor, counts: tuple[int, ...]) -> None:
        self.comm = comm
        self.owned_nodes = own
        self.nodes = nodes
        self.counts = counts

    @cached_property
    def split_sizes(self) -> SplitSizes:
        """Numbers of rows sent and received; exchanged on first access, by all workers together."""
        wanted = self.comm.all_gather_object(self.counts)
        return SplitSizes(tuple(counts[self.comm.rank] for counts in wanted), self.counts)

    @cached_property
    def asked_nodes(self) -> Tensor:
        """``[s]`` int64: own nodes that others fetch; exchanged on first access, by all workers together."""
        return self.comm.all_to_all(self.nodes, self.split_sizes.reverse, Kind.IDS).wait()

    @cached_property
    def _send_plan(self) -> RowSendPlan:
        # Owners learn once which rows to send; every later fetch exchanges rows only.
        asked = self.asked_nodes
        rows = torch.searchsorted(self.owned_nodes, asked)
        return RowSendPlan(self.comm, self.split_sizes, rows, len(self.owned_nodes), (asked, self.nodes))

    def of_rows(self, nodes: Tensor) -> RowFetchPlan:
        """Return the same plan where this worker has rows of some own nodes alone.

        Args:
            nodes: ``[n]`` int64, ascending own nodes, among them all ``asked_nodes``.
        """
        plan = RowFetchPlan(self.comm, nodes, self.nodes, self.counts)
        plan.split_sizes, plan.asked_nodes = self.split_sizes, self.asked_nodes
        return plan

    def fetch_rows(self, rows: Tensor, kind: Kind, widths: RowWidths | None = None) -> ExchangeHandle:
        """Start fetching the rows from their owners, ``[h, ...]``. All workers together. Differentiable.

        Args:
            rows: ``[n, ...]`` of the own nodes.
            kind: Kind of the rows, for the ledger.
            widths: See `RowSendPlan.send_rows`.
        """
        return self._send_plan.send_rows(rows, kind, widths)
