"""Repeated exchange of the same rows, gradients back."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.core.ledger import Kind
from outgrow.ops.aggregation.spmm import spmm
from outgrow.ops.backend import once_differentiable
from outgrow.ops.csc import cached_transpose
from outgrow.ops.memory_pool import pooled_empty, pooled_empty_rows
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.comm import Comm, ExchangeHandle


class RowSendPlan:
    """The same rows to the same workers, as often as wanted. All workers send together. Final.

    Args:
        comm: Communicator of the workers.
        split_sizes: How many rows go where.
        rows: ``[s]`` int64, which of the own rows go, those to worker 0 first.
        num_rows: Number of own rows.
    """

    def __init__(self, comm: Comm, split_sizes: SplitSizes, rows: Tensor, num_rows: int) -> None:
        self.comm = comm
        self.split_sizes = split_sizes
        self._send_edges = Edges(indptr=torch.arange(len(rows) + 1), indices=rows, num_src=num_rows)
        """One edge from each row that goes, in the order in which they go."""
        self._edges_by_device: dict[torch.device, Edges] = {}

    def send_rows(self, rows: Tensor, kind: Kind) -> ExchangeHandle:
        """``[h, ...]``: rows of others, under way. Differentiable.

        Args:
            rows: ``[n, ...]`` own ones.
            kind: What they are.
        """
        if rows.device not in self._edges_by_device:
            self._edges_by_device[rows.device] = self._send_edges.to(rows.device)
        packed: Tensor = _GatherForPeers.apply(rows, self._edges_by_device[rows.device])  # type: ignore[no-untyped-call]
        return self.comm.all_to_all(packed, self.split_sizes, kind)


class _GatherForPeers(torch.autograd.Function):
    """Rows for others, once for each worker that wants them; the gradients of a row are added in the workers' order."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, send_edges: Edges) -> Tensor:
        ctx.sent = send_edges
        ctx.shape = rows.shape
        out = pooled_empty((send_edges.num_dst, *rows.shape[1:]), rows)
        return torch.index_select(rows, 0, send_edges.indices, out=out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        back = cached_transpose(ctx.sent)
        wide = grad if grad.ndim == 3 else grad[:, None]
        out = pooled_empty_rows(ctx.shape[0], tuple(wide.shape[1:]), grad)
        spmm(back.indptr, back.edge, None, None, wide, out)
        return out.view(ctx.shape) if grad.ndim == 3 else out[:, 0], None


class RowFetchPlan:
    """Rows of the same nodes of other workers, as often as wanted. All workers subscribe and fetch together. Final.

    Args:
        comm: Communicator of the workers.
        own: ``[n]`` int64, the nodes that the worker owns, ascending.
        nodes: ``[h]`` int64, nodes of others, those of worker 0 first.
        counts: How many of them each worker owns.
    """

    def __init__(self, comm: Comm, own: Tensor, nodes: Tensor, counts: tuple[int, ...]) -> None:
        self.comm = comm
        self.owned_nodes = own
        self.nodes = nodes
        self.counts = counts

    @cached_property
    def split_sizes(self) -> SplitSizes:
        """How many rows go where. Made when first asked for, which all workers do together."""
        wanted = self.comm.all_gather_object(self.counts)
        return SplitSizes(tuple(counts[self.comm.rank] for counts in wanted), self.counts)

    @cached_property
    def _send_plan(self) -> RowSendPlan:
        """Made by all together."""
        asked = self.comm.all_to_all(self.nodes, self.split_sizes.reverse, Kind.IDS).wait()
        return RowSendPlan(
            self.comm, self.split_sizes, torch.searchsorted(self.owned_nodes, asked), len(self.owned_nodes)
        )

    def fetch_rows(self, rows: Tensor, kind: Kind) -> ExchangeHandle:
        """``[h, ...]``, under way from their owners. All workers give their own rows. Differentiable.

        Args:
            rows: ``[n, ...]`` of the own nodes.
            kind: What they are.
        """
        return self._send_plan.send_rows(rows, kind)
