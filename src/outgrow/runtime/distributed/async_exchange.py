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


class Route(NamedTuple):
    """How many rows go where.

    Attributes:
        send: Rows for each worker; they lie in this order.
        receive: Rows from each worker.
    """

    send: tuple[int, ...]
    receive: tuple[int, ...]

    @property
    def back(self) -> Route:
        """The way back."""
        return Route(self.receive, self.send)


class Sender(Protocol):
    """Whoever sends rows."""

    @property
    def timeline(self) -> Timeline:
        """Told how long rows were waited for."""

    def send(self, rows: Tensor, route: Route, kind: Kind) -> tuple[list[Any], Tensor]:
        """Send rows; gives what is to be waited for, and where rows will lie."""


class Voyage:
    """Rows under way, and later their gradient. Autograd carries a token from departure to arrival.

    Args:
        group: Sends them.
        route: How many go where.
        rows: What will depart, for its type.
        kind: What the rows are.
        back: What their gradient is.
    """

    def __init__(self, group: Sender, route: Route, rows: Tensor, kind: Kind, back: Kind) -> None:
        self.group, self.route, self.kinds = group, route, (kind, back)
        self.works: list[Any] = []
        self.sent = rows.new_empty(0)
        self.cargo = rows.new_empty(0)
        self.token = rows.new_empty(0)

    def depart(self, rows: Tensor) -> Voyage:
        """Send the rows."""
        self.token = _Depart.apply(rows, self)  # type: ignore[no-untyped-call]
        return self

    def wait(self) -> Tensor:
        """``[R, ...]``: the rows, those of worker 0 first."""
        token, self.token = self.token, self.token.new_empty(0)
        return _Arrive.apply(token, self)  # type: ignore[no-any-return, no-untyped-call]

    def send(self, rows: Tensor, *, back: bool) -> None:
        """Send rows, or the gradient of what came, back."""
        route = self.route.back if back else self.route
        self.sent = rows.contiguous()  # is read until all has arrived
        self.works, self.cargo = self.group.send(self.sent, route, self.kinds[back])

    def unload(self) -> Tensor:
        """What was sent here last, once it has come."""
        with self.group.timeline.span("wait for rows"), talking():
            for work in self.works:
                work.wait()
        cargo, nothing = self.cargo, self.cargo.new_empty(0)
        self.works, self.sent, self.cargo = [], nothing, nothing
        return cargo


class _Depart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, voyage: Voyage) -> Tensor:
        ctx.voyage = voyage
        voyage.send(rows, back=False)
        return rows.new_zeros(1)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.voyage.unload(), None


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: Tensor, voyage: Voyage) -> Tensor:
        ctx.voyage = voyage
        return voyage.unload()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.voyage.send(grad, back=True)
        return grad.new_zeros(1), None


@contextmanager
def talking() -> Iterator[None]:
    """Turn what torch raises when a peer is gone into a `CommunicationError`."""
    try:
        yield
    except RuntimeError as error:
        if "can't allocate memory" in str(error):
            raise
        raise CommunicationError(str(error)) from error
