"""Repeated exchange of the same rows, gradients back."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.core.ledger import Kind
from outgrow.ops.aggregation.spmm import gather_rows
from outgrow.ops.backend import once
from outgrow.ops.csc import transpose
from outgrow.ops.memory_pool import empty, empty_rows
from outgrow.runtime.distributed.async_exchange import Route
from outgrow.runtime.distributed.comm import Arrival, Comm


class Delivery:
    """The same rows to the same workers, as often as wanted. All workers send together. Final.

    Args:
        comm: The line to the other workers.
        route: How many rows go where.
        rows: ``[s]`` int64, which of the own rows go, those to worker 0 first.
        num_rows: Number of own rows.
    """

    def __init__(self, comm: Comm, route: Route, rows: Tensor, num_rows: int) -> None:
        self.comm, self.route = comm, route
        self._sent = Edges(indptr=torch.arange(len(rows) + 1), indices=rows, num_src=num_rows)
        """One edge from each row that goes, in the order in which they go."""
        self._moved: dict[torch.device, Edges] = {}

    def send(self, rows: Tensor, kind: Kind) -> Arrival:
        """``[h, ...]``: rows of others, under way. Differentiable.

        Args:
            rows: ``[n, ...]`` own ones.
            kind: What they are.
        """
        if rows.device not in self._moved:
            self._moved[rows.device] = self._sent.to(rows.device)
        packed: Tensor = _Pack.apply(rows, self._moved[rows.device])  # type: ignore[no-untyped-call]
        return self.comm.rows(packed, self.route, kind)


class _Pack(torch.autograd.Function):
    """Rows for others, once for each worker that wants them; the gradients of a row are added in the workers' order."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: Edges) -> Tensor:
        ctx.sent, ctx.shape = sent, rows.shape
        out = empty((sent.num_dst, *rows.shape[1:]), rows)
        return torch.index_select(rows, 0, sent.indices, out=out)

    @staticmethod
    @once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        back = transpose(ctx.sent)
        wide = grad if grad.ndim == 3 else grad[:, None]
        out = empty_rows(ctx.shape[0], tuple(wide.shape[1:]), grad)
        gather_rows(back.indptr, back.edge, None, None, wide, out)
        return out.view(ctx.shape) if grad.ndim == 3 else out[:, 0], None


class Subscription:
    """Rows of the same nodes of other workers, as often as wanted. All workers subscribe and fetch together. Final.

    Args:
        comm: The line to the other workers.
        own: ``[n]`` int64, the nodes that the worker owns, ascending.
        nodes: ``[h]`` int64, nodes of others, those of worker 0 first.
        counts: How many of them each worker owns.
    """

    def __init__(self, comm: Comm, own: Tensor, nodes: Tensor, counts: tuple[int, ...]) -> None:
        self.comm, self.own, self.nodes, self.counts = comm, own, nodes, counts

    @cached_property
    def route(self) -> Route:
        """How many rows go where. Made when first asked for, which all workers do together."""
        wanted = self.comm.gather(self.counts)
        return Route(tuple(counts[self.comm.rank] for counts in wanted), self.counts)

    @cached_property
    def _delivery(self) -> Delivery:
        """Made by all together."""
        asked = self.comm.rows(self.nodes, self.route.back, Kind.IDS).wait()
        return Delivery(self.comm, self.route, torch.searchsorted(self.own, asked), len(self.own))

    def fetch(self, rows: Tensor, kind: Kind) -> Arrival:
        """``[h, ...]``, under way from their owners. All workers give their own rows. Differentiable.

        Args:
            rows: ``[n, ...]`` of the own nodes.
            kind: What they are.
        """
        return self._delivery.send(rows, kind)
