"""Rounds of weighted sums on slices, chunk by chunk, while the rows of other chunks travel.

The split of what a chunk is the first to read is under way while those before it are aggregated, the gather of what it
has made while those after it are. Every worker takes the chunks in the same order. The gradient takes the same course
backward, over sources and their out-edges, so that the gradient of a source is complete when it is gathered. Ai et al.:
NeutronTP, PVLDB 18(2), 2024, algorithm 1.

Letters: ``n`` own nodes, ``V`` all nodes, ``E`` edges, ``C`` channels, ``K`` weights of an edge, ``F`` columns, ``f``
those of the worker's slice.
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
from outgrow.ops.aggregation.spmm import gather_rows, spread_rows
from outgrow.ops.backend import once
from outgrow.ops.memory_pool import empty
from outgrow.runtime.distributed.comm import Arrival, Comm
from outgrow.strategies.tensor.all_to_all import Cut, cut_of, flattened, joined, split_route
from outgrow.strategies.tensor.chunk_schedule import Chunk, Lanes, Party
from outgrow.strategies.tensor.mapped_graph import Files

_AHEAD = 1
"""Chunks whose rows are under way beside that which is aggregated, where memory is short."""


class Trip(NamedTuple):
    """Rows under way.

    Attributes:
        arrival: What comes.
        lane: What to call it beside others.
        start: When it departed, on the clock of the host.
    """

    arrival: Arrival
    lane: str
    start: float


class Rounds:
    """Weighted sums over all nodes, of which each worker has some rows whole. All workers call it together. Final.

    Args:
        comm: The line to the other workers.
        lanes: The chunks.
        num_nodes: ``V``.
        timeline: Told when what was done.
        files: Where edges are, if not in memory: then the rows of few chunks are under way at a time.
        home: Where whole rows are, and travel; None for the worker's device.
    """

    def __init__(
        self,
        comm: Comm,
        lanes: Lanes,
        num_nodes: int,
        timeline: Timeline,
        files: Files | None = None,
        home: torch.device | None = None,
    ) -> None:
        self.home = home or comm.device
        self.comm, self.lanes, self.num_nodes, self.timeline = comm, lanes, num_nodes, timeline
        self.files, self.ahead = files, None if files is None else _AHEAD
        self.num_edges = sum(len(chunk.indices) for chunk in lanes.forward)
        self._turned: tuple[Tensor, Tensor] | None = None

    def __call__(self, rows_nCF: Tensor, weight_EC: Tensor | None, count: int, kind: Kind) -> Tensor:
        """``[n, C, F]``: the rows of the own nodes after some rounds. Differentiable in rows and weights.

        Args:
            rows_nCF: Rows of the own nodes.
            weight_EC: Weight of each edge in every round; None if all are 1.
            count: Number of rounds, at least 1.
            kind: What the rows are.
        """
        return _Rounds.apply(rows_nCF, weight_EC, self, count, kind)  # type: ignore[no-any-return, no-untyped-call]

    def turned(self, weight_EC: Tensor) -> Tensor:
        """``[E, C]``: constant weights in the order of out-edges; kept, since they are the same in every pass."""
        if self._turned is None or self._turned[0] is not weight_EC:
            self._turned = weight_EC, self._turn(weight_EC)
        return self._turned[1]

    def sum_of(self, chunk: Chunk, weight_EC: Tensor | None, slices_VCf: Tensor, out_VCf: Tensor) -> None:
        """The sums of a chunk's rows, from one round to the next; weights are in the order of the chunks' edges."""
        weight = None if weight_EC is None else weight_EC[chunk.first_edge : chunk.first_edge + len(chunk.indices)]
        given = chunk.indptr, chunk.indices, None, weight, slices_VCf
        with self.timeline.span("aggregate"):
            gather_rows(*given, out_VCf[chunk.first : chunk.last], num_edges=self.num_edges)

    def _turn(self, weight_EC: Tensor) -> Tensor:
        edges = [_numbers(chunk) for chunk in self.lanes.backward]
        if self.files is None:
            return torch.cat([weight_EC[edge] for edge in edges])
        return self.files.turned(weight_EC, edges)

    def departures(self, rows_nCF: Tensor, chunks: Sequence[Chunk], kind: Kind) -> Iterator[Trip]:
        """The splits of all that chunks read, in their order; those that follow are under way."""
        cut, under = self.cut(rows_nCF), deque[Trip]()
        for number, chunk in enumerate(chunks):
            arrival = self._split(rows_nCF, chunk.reads, cut, kind)
            under.append(Trip(arrival, f"split {number}", time.monotonic()))
            if self.ahead is not None and len(under) > self.ahead:
                yield under.popleft()
        yield from under

    def arrive(self, trip: Trip, party: Party, slices_VCf: Tensor) -> None:
        """Wait for a split, and put it where it belongs."""
        with self.timeline.span("wait for split"):
            rows = trip.arrival.wait()
        self.timeline.since("split", trip.lane, trip.start)
        rows = rows.view(len(party.nodes), *slices_VCf.shape[1:])
        slices_VCf.index_copy_(0, party.nodes, rows.to(self.comm.device))

    def depart(self, slices_VCf: Tensor, party: Party, cut: Cut, kind: Kind, number: int) -> Trip:
        """The gather of the rows of chunk ``number``, under way."""
        route = split_route(party.sizes, self.comm.rank, slices_VCf.shape[1], cut).back
        rows = slices_VCf.index_select(0, party.nodes).view(-1).to(self.home)
        return Trip(self.comm.rows(rows, route, kind), f"gather {number}", time.monotonic())

    def collect(self, trips: Sequence[Trip], chunks: Sequence[Chunk], rows_nCF: Tensor) -> Tensor:
        """Wait for all gathers; gives the rows."""
        cut = self.cut(rows_nCF)
        for trip, chunk in zip(trips, chunks, strict=True):
            with self.timeline.span("wait for gather"):
                flat = trip.arrival.wait()
            self.timeline.since("gather", trip.lane, trip.start)
            mine = chunk.makes.mine
            rows_nCF.index_copy_(0, mine, joined(flat, (len(mine), *rows_nCF.shape[1:]), cut))
        return rows_nCF

    def slices(self, rows_nCF: Tensor) -> Tensor:
        """Room for the worker's columns of all nodes: without padding, since chunks of it are written."""
        first, last = self.cut(rows_nCF)[self.comm.rank]
        shape = self.num_nodes, rows_nCF.shape[1], last - first
        like = rows_nCF.new_empty(0, device=self.comm.device)
        return empty(shape, like) if self.files is None else self.files.slices(shape, like)

    def cut(self, rows_nCF: Tensor) -> Cut:
        """The columns of each worker."""
        return cut_of(rows_nCF.shape[2], self.comm.size)

    def _split(self, rows_nCF: Tensor, party: Party, cut: Cut, kind: Kind) -> Arrival:
        route = split_route(party.sizes, self.comm.rank, rows_nCF.shape[1], cut)
        return self.comm.rows(flattened(rows_nCF.index_select(0, party.mine), cut), route, kind)


class _Rounds(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_nCF: Tensor, weight_EC: Tensor | None, rounds: Rounds, count: int, kind: Kind) -> Tensor:
        chunks, cut = rounds.lanes.forward, rounds.cut(rows_nCF)
        under, gathers, kept = rounds.departures(rows_nCF, chunks, kind), list[Trip](), list[Tensor]()
        slices = rounds.slices(rows_nCF)
        for number in range(count):
            made = rounds.slices(rows_nCF)
            for place, chunk in enumerate(chunks):
                if number == 0:
                    rounds.arrive(next(under), chunk.reads, slices)
                rounds.sum_of(chunk, weight_EC, slices, made)
                if number == count - 1:
                    gathers.append(rounds.depart(made, chunk.makes, cut, Kind.ACTIVATIONS, place))
            if ctx.needs_input_grad[1]:
                kept.append(slices)
            slices = made
        ctx.rounds, ctx.count, ctx.kept = rounds, count, kept
        ctx.weight = weight_EC
        return rounds.collect(gathers, chunks, empty(tuple(rows_nCF.shape), rows_nCF))

    @staticmethod
    @once
    def backward(ctx: Any, grad_nCF: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        weight_EC, rounds, kept = ctx.weight, ctx.rounds, ctx.kept
        wants_rows, wants_weight = ctx.needs_input_grad[:2]
        chunks, cut = rounds.lanes.backward, rounds.cut(grad_nCF)
        under, gathers = rounds.departures(grad_nCF, chunks, Kind.GRADIENTS), list[Trip]()
        slices, total = rounds.slices(grad_nCF), None
        turned = None if weight_EC is None or wants_weight else rounds.turned(weight_EC)
        for number in range(ctx.count):
            made, d_weight = rounds.slices(grad_nCF), _like(weight_EC) if wants_weight else None
            for place, chunk in enumerate(chunks):
                if number == 0:
                    rounds.arrive(next(under), chunk.reads, slices)
                if d_weight is None:
                    rounds.sum_of(chunk, turned, slices, made)
                else:
                    with rounds.timeline.span("aggregate"):
                        _spread(chunk, weight_EC, slices, kept[-1], made, d_weight)
                if number == ctx.count - 1 and wants_rows:
                    gathers.append(rounds.depart(made, chunk.makes, cut, Kind.GRADIENTS, place))
            if d_weight is not None:
                total = d_weight if total is None else total.add_(d_weight)
                kept.pop()
            slices = made
        grad = rounds.collect(gathers, chunks, _like(grad_nCF)) if wants_rows else None
        return grad, total, None, None, None


def _numbers(chunk: Chunk) -> Tensor:
    """``[e]``: the numbers of a chunk's edges."""
    if chunk.edge is not None:
        return chunk.edge
    return torch.arange(chunk.first_edge, chunk.first_edge + len(chunk.indices), device=chunk.indices.device)


def _like(given: Tensor) -> Tensor:
    return empty(tuple(given.shape), given)


def _spread(
    chunk: Chunk, weight_EC: Tensor, grad_VCf: Tensor, own_VCf: Tensor, out_VCf: Tensor, d_weight_EC: Tensor
) -> None:
    """The gradients of a chunk's rows and of its edges' weights."""
    assert chunk.edge is not None
    here = slice(chunk.first, chunk.last)
    given = chunk.indptr, chunk.indices, chunk.edge, weight_EC, grad_VCf
    spread_rows(*given, own_VCf[here], out_VCf[here], d_weight_EC)
