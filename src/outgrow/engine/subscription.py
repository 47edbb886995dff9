"""Rows of other workers' nodes, fetched as often as wanted, and their gradients on the way back."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.delivery import Delivery
from outgrow.runtime.comm import Arrival, Comm
from outgrow.runtime.voyage import Route


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
