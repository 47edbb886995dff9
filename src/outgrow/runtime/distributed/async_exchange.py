"""`AsyncAllToAll`: a differentiable all-to-all that overlaps with computation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.core.timeline import Timeline


class CommunicationError(RuntimeError):
    """A peer could not be reached: its process has ended or the network has failed."""


class SplitSizes(NamedTuple):
    """Row counts of an all-to-all.

    Attributes:
        send: Number of rows for each worker; the rows lie in this order.
        receive: Number of rows from each worker.
    """

    send: tuple[int, ...]
    receive: tuple[int, ...]

    @property
    def reverse(self) -> SplitSizes:
        """Sizes of the exchange that returns the gradient."""
        return SplitSizes(self.receive, self.send)


class RowTransport(Protocol):
    """Backend that sends rows."""

    @property
    def timeline(self) -> Timeline:
        """Record of the time spent waiting for rows."""

    def start_exchange(self, rows: Tensor, split_sizes: SplitSizes, kind: Kind) -> tuple[list[Any], Tensor]:
        """Start sending rows; return the works to wait for and the receive buffer."""


class AsyncAllToAll:
    """Exchange in flight, of rows in forward and of their gradient in backward.

    Autograd sees two functions, linked by a one-element token: `start` and `wait`, with other work in
    between. In backward the second sends the gradient and the first waits for it, so that this overlaps too.

    Args:
        transport: Backend that sends the rows.
        split_sizes: Row counts.
        rows: Rows that will be sent; only their dtype and device are used here.
        kind: Ledger kind of the rows.
        grad_kind: Ledger kind of their gradient.
    """

    def __init__(
        self, transport: RowTransport, split_sizes: SplitSizes, rows: Tensor, kind: Kind, grad_kind: Kind
    ) -> None:
        self.transport = transport
        self.split_sizes = split_sizes
        self.kinds = (kind, grad_kind)
        self.works: list[Any] = []
        self.send_buffer = rows.new_empty(0)
        self.receive_buffer = rows.new_empty(0)
        self.token = rows.new_empty(0)

    def start(self, rows: Tensor) -> AsyncAllToAll:
        """Start sending the rows; return this handle."""
        self.token = _StartExchange.apply(rows, self)  # type: ignore[no-untyped-call]
        return self

    def wait(self) -> Tensor:
        """Return the received rows, ``[R, ...]``, ordered by sending rank."""
        # Drop the token: its autograd node's context holds this object, which would be a reference cycle.
        token, self.token = self.token, self.token.new_empty(0)
        return _FinishExchange.apply(token, self)  # type: ignore[no-any-return, no-untyped-call]

    def send_rows(self, rows: Tensor, *, is_gradient: bool) -> None:
        """Start sending the rows, or the gradient of the received rows in the reverse direction."""
        sizes = self.split_sizes.reverse if is_gradient else self.split_sizes
        # A reference must stay alive: the backend reads this memory until the works are done.
        self.send_buffer = rows.contiguous()
        self.works, self.receive_buffer = self.transport.start_exchange(
            self.send_buffer, sizes, self.kinds[is_gradient]
        )

    def receive(self) -> Tensor:
        """Wait for the exchange in flight; return the received rows."""
        with self.transport.timeline.span("wait for rows"), communication_errors():
            for work in self.works:
                work.wait()
        received = self.receive_buffer
        empty = self.receive_buffer.new_empty(0)
        # This object lives until backward is done; the buffers of the forward exchange must not.
        self.works = []
        self.send_buffer = empty
        self.receive_buffer = empty
        return received


class _StartExchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, exchange: AsyncAllToAll) -> Tensor:
        ctx.exchange = exchange
        exchange.send_rows(rows, is_gradient=False)
        # The token carries no data: it only makes autograd run the other backward before this one.
        return rows.new_zeros(1)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.exchange.receive(), None


class _FinishExchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: Tensor, exchange: AsyncAllToAll) -> Tensor:
        ctx.exchange = exchange
        return exchange.receive()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.exchange.send_rows(grad, is_gradient=True)
        return grad.new_zeros(1), None


@contextmanager
def communication_errors() -> Iterator[None]:
    """Turn torch's error for an unreachable peer into a `CommunicationError`."""
    try:
        yield
    except RuntimeError as error:
        # torch's own message when memory for a buffer runs out: no peer is involved.
        if "can't allocate memory" in str(error):
            raise
        raise CommunicationError(str(error)) from error
