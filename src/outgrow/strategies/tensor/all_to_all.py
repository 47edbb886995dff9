"""Rows of own nodes into slices of the columns of all nodes, and back.

*Split* gives every worker its columns of the rows of all nodes, *gather* gives every worker the whole rows of its own
nodes. Both are an all-to-all, and each is the other's backward. Of ``sum_i rows_i * D`` numbers all cross but those
that stay with their worker: ``sum_i rows_i * (D - D_i)``. Ai et al.: NeutronTP, PVLDB 18(2), 2024, section 3.1.

Letters: ``n`` own nodes, ``V`` all nodes, ``C`` channels, ``F`` columns, ``f`` those of the worker's slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.ops.backend import once
from outgrow.ops.memory_pool import empty
from outgrow.ops.subgraph import consecutive
from outgrow.runtime.distributed.async_exchange import Route
from outgrow.runtime.distributed.comm import Arrival, Comm

Cut = Sequence[tuple[int, int]]
"""First and last column (plus 1) of each worker."""


def cut_of(columns: int, workers: int) -> Cut:
    """Columns dealt out evenly: slices differ by one column at most, and some are empty if there are too few."""
    ends = [columns * worker // workers for worker in range(workers + 1)]
    return list(pairwise(ends))


def split_route(nodes: Sequence[int], rank: int, channels: int, cut: Cut) -> Route:
    """How many numbers a split sends where; a gather of the same rows goes the way back.

    Args:
        nodes: Rows that each worker has whole.
        rank: The worker.
        channels: ``C``.
        cut: Columns of each worker.
    """
    first, last = cut[rank]
    send = tuple(nodes[rank] * channels * (end - begin) for begin, end in cut)
    return Route(send, tuple(count * channels * (last - first) for count in nodes))


class Order(NamedTuple):
    """Where rows are, as they lie in the order of their workers, and of nodes.

    Attributes:
        node: ``[V]`` int64, the node of each row by worker.
        row: ``[V]`` int64, the row by worker of each node.
    """

    node: Tensor
    row: Tensor


class Under(NamedTuple):
    """Slices under way.

    Attributes:
        arrival: Their numbers.
        shape: ``(V, C, f)``.
        order: How they come; None for in the order of nodes.
        device: Where they are wanted.
    """

    arrival: Arrival
    shape: tuple[int, int, int]
    order: Order | None
    device: torch.device

    def wait(self) -> Tensor:
        """``[V, C, f]``, in the order of nodes."""
        rows = self.arrival.wait().view(self.shape)
        rows = rows if self.order is None else _moved(rows, self.order.row, self.order.node)
        return rows.to(self.device)


class Deal:
    """How nodes and columns are dealt out. All workers make and call it together, in the same order. Final.

    Whole rows are at *home*, slices on the worker's device.

    Args:
        comm: The line to the other workers.
        own: ``[n]`` int64, the nodes of this worker; all nodes belong to one worker each.
        home: Where whole rows are, and travel; None for the worker's device.
    """

    def __init__(self, comm: Comm, own: Tensor, home: torch.device | None = None) -> None:
        self.comm, self.home = comm, home or comm.device
        first = int(own[0]) if len(own) else -1
        ranges = comm.gather((first, len(own), consecutive(own)))
        self.nodes = [count for _, count, _ in ranges]
        before = [sum(self.nodes[:rank]) for rank in range(comm.size)]
        in_order = all(
            together and (not count or begin == place)
            for (begin, count, together), place in zip(ranges, before, strict=True)
        )
        self.order = None if in_order else self._order(own)

    def _order(self, own: Tensor) -> Order:
        node = self._from_all(own[:, None], Kind.IDS)[:, 0]
        row = torch.empty_like(node)
        row[node] = torch.arange(len(node))
        return Order(node.to(self.home), row.to(self.home))

    def mine(self, columns: int) -> tuple[int, int]:
        """First and last column (plus 1) of this worker's slice."""
        return cut_of(columns, self.comm.size)[self.comm.rank]

    def split(self, rows_nCF: Tensor, kind: Kind) -> Under:
        """The worker's columns of all nodes, under way. Differentiable."""
        _, channels, columns = rows_nCF.shape
        cut, rank = cut_of(columns, self.comm.size), self.comm.rank
        first, last = cut[rank]
        shape = sum(self.nodes), channels, last - first
        route = split_route(self.nodes, rank, channels, cut)
        return Under(self.comm.rows(_cut_up(rows_nCF, cut), route, kind), shape, self.order, self.comm.device)

    def gather(self, slices_VCf: Tensor, columns: int, kind: Kind) -> Tensor:
        """``[n, C, F]``: whole rows of the own nodes. Differentiable.

        Args:
            slices_VCf: The worker's columns of all nodes.
            columns: ``F``.
            kind: What they are.
        """
        channels, rank = slices_VCf.shape[1], self.comm.rank
        cut = cut_of(columns, self.comm.size)
        route = split_route(self.nodes, rank, channels, cut).back
        slices_VCf = slices_VCf.to(self.home)
        if self.order is not None:
            slices_VCf = _moved(slices_VCf, self.order.node, self.order.row)
        flat = self.comm.rows(slices_VCf.reshape(-1), route, kind).wait()
        return _join(flat, (self.nodes[rank], channels, columns), cut)

    def everywhere(self, rows_nK: Tensor, kind: Kind) -> Tensor:
        """``[V, K]``: narrow rows of all nodes. Differentiable: gradients are summed in the order of the workers."""
        rows = self._from_all(rows_nK.to(self.home), kind)
        rows = rows if self.order is None else _moved(rows, self.order.row, self.order.node)
        return rows.to(self.comm.device)

    def _from_all(self, rows_nK: Tensor, kind: Kind) -> Tensor:
        size, own = self.comm.size, len(rows_nK)
        if size == 1:
            return rows_nK
        copies = rows_nK.expand(size, *rows_nK.shape).flatten(0, 1)
        return self.comm.rows(copies, Route((own,) * size, tuple(self.nodes)), kind).wait()


def _moved(rows: Tensor, to: Tensor, back: Tensor) -> Tensor:
    """The rows ``to``, a permutation whose inverse is ``back``."""
    return _Move.apply(rows, to, back)  # type: ignore[no-any-return, no-untyped-call]


def _cut_up(rows_nCF: Tensor, cut: Cut) -> Tensor:
    if len(cut) == 1:
        return rows_nCF.reshape(-1)
    return _CutUp.apply(rows_nCF, cut)  # type: ignore[no-any-return, no-untyped-call]


def _join(flat: Tensor, shape: tuple[int, int, int], cut: Cut) -> Tensor:
    if len(cut) == 1:
        return flat.view(shape)
    return _Join.apply(flat, shape, cut)  # type: ignore[no-any-return, no-untyped-call]


def _pieces(flat: Tensor, shape: Sequence[int], cut: Cut) -> list[Tensor]:
    """The slices of ``[n, C, F]`` rows that lie one after the other."""
    own, channels, _ = shape
    sizes = [own * channels * (end - begin) for begin, end in cut]
    pairs = zip(torch.split(flat, sizes), cut, strict=True)
    return [piece.view(own, channels, end - begin) for piece, (begin, end) in pairs]


def flattened(rows_nCF: Tensor, cut: Cut) -> Tensor:
    """``[n * C * F]``: the slices of all workers, one after the other."""
    flat = empty((rows_nCF.numel(),), rows_nCF)
    for piece, (begin, end) in zip(_pieces(flat, rows_nCF.shape, cut), cut, strict=True):
        piece.copy_(rows_nCF[:, :, begin:end])
    return flat


def joined(flat: Tensor, shape: tuple[int, int, int], cut: Cut) -> Tensor:
    """``[n, C, F]``: rows of which the slices lie one after the other."""
    rows_nCF = empty(shape, flat)
    for piece, (begin, end) in zip(_pieces(flat, shape, cut), cut, strict=True):
        rows_nCF[:, :, begin:end] = piece
    return rows_nCF


class _Move(torch.autograd.Function):
    """Rows in another order."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, to: Tensor, back: Tensor) -> Tensor:
        ctx.back = back
        return rows.index_select(0, to)

    @staticmethod
    @once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.index_select(0, ctx.back), None, None


class _CutUp(torch.autograd.Function):
    """Rows as the slices of all workers, one after the other."""

    @staticmethod
    def forward(ctx: Any, rows_nCF: Tensor, cut: Cut) -> Tensor:
        ctx.shape, ctx.cut = tuple(rows_nCF.shape), cut
        return flattened(rows_nCF, cut)

    @staticmethod
    @once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return joined(grad, ctx.shape, ctx.cut), None


class _Join(torch.autograd.Function):
    """Slices of all workers, one after the other, as rows."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, shape: tuple[int, int, int], cut: Cut) -> Tensor:
        ctx.cut = cut
        return joined(flat, shape, cut)

    @staticmethod
    @once
    def backward(ctx: Any, grad_nCF: Tensor) -> tuple[Tensor, None, None]:
        return flattened(grad_nCF, ctx.cut), None, None
