"""Cooperative layer; partial sums.

Where the weights of a sum are fixed by the graph, a worker may send, for each destination that has in-edges from its
nodes, their part of the sum instead of the sources themselves (GSplit, section 3.3.2). For each pair of workers and
each layer that goes which is fewer bytes, forward and backward and what the worker must be told for it.

Every node is computed by the worker that owns it. The rows of its sources come from the workers that own these, in one
message for each pair of workers, and their gradients go back in one: the source-to-destination scatter of GSplit
(Polisetty et al. 2023, section 3.3). Of a sum with fixed weights parts may come instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.ledger import Kind
from outgrow.engine.layer_plan import without_parameters
from outgrow.engine.row_exchange import Delivery
from outgrow.nn.layer import Features, Layer, Rows
from outgrow.nn.model import both_sides
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.kernels.numerics import computed
from outgrow.runtime.distributed.async_exchange import Route
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.split.partial_sum_kernels import crossing, dealt, packed
from outgrow.strategies.split.sampler import SplitHop

_NONE = Rows(None, None)


@dataclass(frozen=True, kw_only=True)
class RowBytes:
    """What a row of sources costs.

    Attributes:
        dtype: Type of its numbers; not of half precision, of which sums are no longer.
        columns: How many there are.
        gradient: Whether its gradient travels back.
    """

    dtype: torch.dtype
    columns: int
    gradient: bool

    @property
    def both_ways(self) -> int:
        """Bytes of a row and its gradient."""
        return self.columns * self.dtype.itemsize * (2 if self.gradient else 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class SummedHop:
    """A worker's part of a layer that is a sum with fixed weights.

    Attributes:
        own: In-edges of its destinations from its own sources.
        own_weight: ``[E_own, 1]``, or None if all are 1.
        far: In-edges from the rows that come of others: sources, and parts of sums.
        far_weight: ``[E_far, 1]``, that of a part is 1; or None.
        sent: In-edges of the rows that go to others, from own sources.
        sent_weight: ``[E_sent, 1]``, that of a source is 1.
        route: How many rows go where.
    """

    own: Block
    own_weight: Tensor | None
    far: Block
    far_weight: Tensor | None
    sent: Block
    sent_weight: Tensor
    route: Route

    @property
    def remote_rows(self) -> int:
        """Rows that come from others."""
        return sum(self.route.receive)

    def to(self, device: torch.device) -> SummedHop:
        """The same on a device; itself if it is there."""
        if self.own.dst_nodes.device == device:
            return self
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Block | Tensor)
        }
        return replace(self, **moved)

    def aggregate(self, columns: Tensor, comm: Comm, kind: Kind) -> Tensor:
        """``[Vd, 1, F]``: the sum over all in-edges. All workers together. Differentiable.

        Args:
            columns: ``[num_own, 1, F]`` rows of the own sources.
            comm: The line to the other workers.
            kind: What the rows are.
        """
        sum_ = WeightedSum()
        others = comm.rows(sum_(self.sent, columns, None, self.sent_weight), self.route, kind)
        mine = sum_(self.own, columns, None, self.own_weight)
        return mine + sum_(self.far, others.wait(), None, self.far_weight)


def is_summed(layer: Layer) -> bool:
    """Whether a layer is a sum with weights that the graph fixes."""
    widths = layer.widths
    return without_parameters(layer) and widths.source == widths.aggregate and widths.source[0] == 1


def summed_hop(layer: Layer, hop: SplitHop, row: RowBytes, line: Comm, *, partial: bool = True) -> SummedHop:
    """Find out who takes which sums, and tell them. All workers together, in the same order.

    Three counts of 8 bytes for each other worker (``ids``); for a worker that sends sums 4 bytes for each sum and for
    each edge of it, and the weights of these edges (``topology``).

    Args:
        layer: The layer, which `is_summed`.
        hop: The worker's part of it.
        row: What a row of sources costs.
        line: A line to the other workers that nobody else uses.
        partial: Whether sums may be sent.
    """
    block, wanted = hop.block, hop.wanted
    weight = layer.conv.weigh(block, Rows(torch.empty(0, 1, row.columns, dtype=row.dtype), None), _NONE)
    found = crossing(block.edges, hop.num_own, wanted)
    summed = _worth_it(found.edges, found.destinations, torch.tensor(wanted), row, weight)
    summed &= partial
    sums = dealt(block.edges, hop.num_own, wanted, found, tuple(summed.tolist()))
    weighed = torch.zeros_like(found.edges) if weight is None else found.edges
    told = torch.stack([found.destinations, found.edges, weighed]) * summed
    theirs = line.swapped(told.T.contiguous(), Kind.IDS).T
    numbers = Route(tuple(told[:2].sum(0).tolist()), tuple(theirs[:2].sum(0).tolist()))
    asked_for = line.rows(sums.told, numbers, Kind.TOPOLOGY).wait()
    mine = torch.empty(0, 1, dtype=computed(row.dtype)) if weight is None else weight[sums.told_edge]
    weights = line.rows(mine, Route(tuple(told[2].tolist()), tuple(theirs[2].tolist())), Kind.TOPOLOGY).wait()
    num_sums = tuple(theirs[0].tolist())
    sent, has_weight = packed(hop.asked, hop.asked_sizes, theirs, asked_for, hop.num_own)
    return SummedHop(
        own=replace(block, edges=sums.own),
        own_weight=None if weight is None else weight[sums.own_edge],
        far=replace(block, edges=sums.far),
        far_weight=None if weight is None else _or_one(weight, sums.far_edge),
        sent=replace(block, edges=sent),
        sent_weight=_or_one(weights, torch.where(has_weight, has_weight.cumsum(0) - 1, -1)),
        route=Route(tuple(n or size for n, size in zip(num_sums, hop.asked_sizes, strict=True)), sums.rows),
    )


def _worth_it(edges: Tensor, destinations: Tensor, sources: Tensor, row: RowBytes, weight: Tensor | None) -> Tensor:
    """``[P]`` bool: for each worker, whether the parts of the sums are fewer bytes than the sources."""
    told = 4 * destinations + (4 + (0 if weight is None else weight.itemsize)) * edges
    return (destinations * row.both_ways + told < sources * row.both_ways) & (destinations > 0)


def _or_one(weight: Tensor, edge: Tensor) -> Tensor:
    """The weights of edges, and 1 where an edge is -1."""
    if not len(weight):
        return weight.new_ones(len(edge), 1)
    return torch.where(edge[:, None] < 0, weight.new_ones(()), weight[edge])


class Hop(NamedTuple):
    """A worker's part of one layer of a batch.

    Attributes:
        drawn: As it was drawn.
        summed: Who takes which parts of its sums; None where they are taken where the destinations are.
    """

    drawn: SplitHop
    summed: SummedHop | None = None

    @property
    def remote_rows(self) -> int:
        """Rows that come from others."""
        return sum(self.drawn.wanted) if self.summed is None else self.summed.remote_rows

    def to(self, device: torch.device) -> Hop:
        """The same on a device."""
        return Hop(self.drawn.to(device), None if self.summed is None else self.summed.to(device))


def cooperative(layer: Layer, hop: Hop, x: Features, key: int | None, comm: Comm, kind: Kind) -> Tensor:
    """``[Vd, O]``: a layer's output for a worker's own destinations. All workers together. Differentiable.

    Args:
        layer: The layer.
        hop: The worker's part of it, on its device.
        x: ``[num_own, D]`` input of its own nodes.
        key: Key of the draws of this layer in this step; None draws nothing.
        comm: The line to the other workers.
        kind: What the rows of sources are.
    """
    block = hop.drawn.block.keyed(key)
    x, x_dst = both_sides(x, len(block.dst_nodes))
    source, target = layer.ends(x, x_dst)
    if hop.summed is not None:
        assert source.columns is not None
        return layer.update(x_dst, hop.summed.aggregate(source.columns, comm, kind), block)
    if comm.size > 1:
        drawn = hop.drawn
        delivery = Delivery(comm, Route(drawn.asked_sizes, drawn.wanted), drawn.asked, drawn.num_own)
        source = _beside(source, delivery, kind)
    return layer.update(x_dst, layer.aggregate(block, source, target), block)


def _beside(source: Rows, delivery: Delivery, kind: Kind) -> Rows:
    """The rows of own sources, then those of others, which come as one matrix."""
    columns, score = source
    assert columns is not None
    if score is None:
        return Rows(torch.cat([columns, delivery.send(columns, kind).wait()]), None)
    width = columns.shape[1] * columns.shape[2]
    others = delivery.send(torch.cat([columns.flatten(1), score], 1), kind).wait()
    theirs = others[:, :width].reshape(-1, *columns.shape[1:])
    return Rows(torch.cat([columns, theirs]), torch.cat([score, others[:, width:]]))
