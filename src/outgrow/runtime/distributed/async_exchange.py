"""Rows under way from worker to worker, and their gradient on the way back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.core.timeline import Timeline


class CommunicationError(RuntimeError):
    """A peer could not be reached: it has ended, or the network has."""


class SplitSizes(NamedTuple):
    """How many rows go where.

    Attributes:
        send: Rows for each worker; they lie in this order.
        receive: Rows from each worker.
    """

    send: tuple[int, ...]
    receive: tuple[int, ...]

    @property
    def reverse(self) -> SplitSizes:
        """The way back."""
        return SplitSizes(self.receive, self.send)


class RowTransport(Protocol):
    """Whoever sends rows."""

    @property
    def timeline(self) -> Timeline:
        """Told how long rows were waited for."""

    def start_exchange(self, rows: Tensor, split_sizes: SplitSizes, kind: Kind) -> tuple[list[Any], Tensor]:
        """Send rows; gives what is to be waited for, and where rows will lie."""


class AsyncAllToAll:
    """Rows under way, and later their gradient. Autograd carries a token from departure to arrival.

    Args:
        transport: Sends them.
        route: How many go where.
        rows: What will depart, for its type.
        kind: What the rows are.
        grad_kind: What their gradient is.
    """

    def __init__(
        self, transport: RowTransport, split_sizes: SplitSizes, rows: Tensor, kind: Kind, grad_kind: Kind
    ) -> None:
        self.transport, self.split_sizes, self.kinds = transport, split_sizes, (kind, grad_kind)
        self.works: list[Any] = []
        self.send_buffer = rows.new_empty(0)
        self.receive_buffer = rows.new_empty(0)
        self.token = rows.new_empty(0)

    def start(self, rows: Tensor) -> AsyncAllToAll:
        """Send the rows."""
        self.token = _StartExchange.apply(rows, self)  # type: ignore[no-untyped-call]
        return self

    def wait(self) -> Tensor:
        """``[R, ...]``: the rows, those of worker 0 first."""
        token, self.token = self.token, self.token.new_empty(0)
        return _FinishExchange.apply(token, self)  # type: ignore[no-any-return, no-untyped-call]

    def send_rows(self, rows: Tensor, *, is_gradient: bool) -> None:
        """Send rows, or the gradient of what came, back."""
        route = self.split_sizes.reverse if is_gradient else self.split_sizes
        self.send_buffer = rows.contiguous()  # is read until all has arrived
        self.works, self.receive_buffer = self.transport.start_exchange(
            self.send_buffer, route, self.kinds[is_gradient]
        )

    def receive(self) -> Tensor:
        """What was sent here last, once it has come."""
        with self.transport.timeline.span("wait for rows"), communication_errors():
            for work in self.works:
                work.wait()
        cargo, nothing = self.receive_buffer, self.receive_buffer.new_empty(0)
        self.works, self.send_buffer, self.receive_buffer = [], nothing, nothing
        return cargo


class _StartExchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, exchange: AsyncAllToAll) -> Tensor:
        ctx.voyage = exchange
        exchange.send_rows(rows, is_gradient=False)
        return rows.new_zeros(1)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.voyage.unload(), None


class _FinishExchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: Tensor, exchange: AsyncAllToAll) -> Tensor:
        ctx.voyage = exchange
        return exchange.receive()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.voyage.send(grad, back=True)
        return grad.new_zeros(1), None


@contextmanager
def communication_errors() -> Iterator[None]:
    """Turn what torch raises when a peer is gone into a `CommunicationError`."""
    try:
        yield
    except RuntimeError as error:
        if "can't allocate memory" in str(error):
            raise
        raise CommunicationError(str(error)) from error
