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
from outgrow.engine.layer_plan import has_fixed_weights
from outgrow.engine.row_exchange import RowSendPlan
from outgrow.nn.layer import Features, Layer, NodeMessages
from outgrow.nn.model import src_and_dst_rows
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.kernels.numerics import accumulate_dtype
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.split.partial_sum_kernels import count_remote_edges, pack_partial_sums, split_in_edges
from outgrow.strategies.split.sampler import SampledSplitBlock

_NONE = NodeMessages(None, None)


@dataclass(frozen=True, kw_only=True)
class RowBytes:
    """What a row of sources costs.

    Attributes:
        dtype: Type of its numbers; not of half precision, of which sums are no longer.
        columns: How many there are.
        has_gradient: Whether its gradient travels back.
    """

    dtype: torch.dtype
    columns: int
    has_gradient: bool

    @property
    def round_trip_bytes(self) -> int:
        """Bytes of a row and its gradient."""
        return self.columns * self.dtype.itemsize * (2 if self.has_gradient else 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class PartialSumBlock:
    """A worker's part of a layer that is a sum with fixed weights.

    Attributes:
        local_block: In-edges of its destinations from its own sources.
        local_weight: ``[E_own, 1]``, or None if all are 1.
        remote_block: In-edges from the rows that come of others: sources, and parts of sums.
        remote_weight: ``[E_far, 1]``, that of a part is 1; or None.
        sent_block: In-edges of the rows that go to others, from own sources.
        sent_weight: ``[E_sent, 1]``, that of a source is 1.
        split_sizes: How many rows go where.
    """

    local_block: Block
    local_weight: Tensor | None
    remote_block: Block
    remote_weight: Tensor | None
    sent_block: Block
    sent_weight: Tensor
    split_sizes: SplitSizes

    @property
    def remote_rows(self) -> int:
        """Rows that come from others."""
        return sum(self.split_sizes.receive)

    def to(self, device: torch.device) -> PartialSumBlock:
        """The same on a device; itself if it is there."""
        if self.local_block.dst_nodes.device == device:
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
        others = comm.all_to_all(sum_(self.sent_block, columns, None, self.sent_weight), self.split_sizes, kind)
        mine = sum_(self.local_block, columns, None, self.local_weight)
        return mine + sum_(self.remote_block, others.wait(), None, self.remote_weight)


def supports_partial_sums(layer: Layer) -> bool:
    """Whether a layer is a sum with weights that the graph fixes."""
    widths = layer.spec
    return has_fixed_weights(layer) and widths.source == widths.aggregate and widths.source[0] == 1


def plan_partial_sums(
    layer: Layer, sampled: SampledSplitBlock, row: RowBytes, comm: Comm, *, partial_sums: bool = True
) -> PartialSumBlock:
    """Find out who takes which sums, and tell them. All workers together, in the same order.

    Three counts of 8 bytes for each other worker (``ids``); for a worker that sends sums 4 bytes for each sum and for
    each edge of it, and the weights of these edges (``topology``).

    Args:
        layer: The layer, which `supports_partial_sums`.
        sampled: The worker's part of it.
        row: What a row of sources costs.
        comm: A line to the other workers that nobody else uses.
        partial_sums: Whether sums may be sent.
    """
    block, wanted = sampled.block, sampled.recv_counts
    weight = layer.conv.edge_weight(block, NodeMessages(torch.empty(0, 1, row.columns, dtype=row.dtype), None), _NONE)
    found = count_remote_edges(block.edges, sampled.num_owned, wanted)
    summed = _partial_is_cheaper(found.edges, found.destinations, torch.tensor(wanted), row, weight)
    summed &= partial_sums
    sums = split_in_edges(block.edges, sampled.num_owned, wanted, found, tuple(summed.tolist()))
    weighed = torch.zeros_like(found.edges) if weight is None else found.edges
    told = torch.stack([found.destinations, found.edges, weighed]) * summed
    theirs = comm.all_to_all_counts(told.T.contiguous(), Kind.IDS).T
    numbers = SplitSizes(tuple(told[:2].sum(0).tolist()), tuple(theirs[:2].sum(0).tolist()))
    asked_for = comm.all_to_all(sums.sum_requests, numbers, Kind.TOPOLOGY).wait()
    mine = torch.empty(0, 1, dtype=accumulate_dtype(row.dtype)) if weight is None else weight[sums.sum_request_edge_ids]
    weights = comm.all_to_all(
        mine, SplitSizes(tuple(told[2].tolist()), tuple(theirs[2].tolist())), Kind.TOPOLOGY
    ).wait()
    num_sums = tuple(theirs[0].tolist())
    sent, has_weight = pack_partial_sums(sampled.send_index, sampled.send_counts, theirs, asked_for, sampled.num_owned)
    return PartialSumBlock(
        local_block=replace(block, edges=sums.local),
        local_weight=None if weight is None else weight[sums.local_edge_ids],
        remote_block=replace(block, edges=sums.remote),
        remote_weight=None if weight is None else _weights_or_one(weight, sums.remote_edge_ids),
        sent_block=replace(block, edges=sent),
        sent_weight=_weights_or_one(weights, torch.where(has_weight, has_weight.cumsum(0) - 1, -1)),
        split_sizes=SplitSizes(
            tuple(n or size for n, size in zip(num_sums, sampled.send_counts, strict=True)), sums.remote_row_counts
        ),
    )


def _partial_is_cheaper(
    edges: Tensor, destinations: Tensor, sources: Tensor, row: RowBytes, weight: Tensor | None
) -> Tensor:
    """``[P]`` bool: for each worker, whether the parts of the sums are fewer bytes than the sources."""
    told = 4 * destinations + (4 + (0 if weight is None else weight.itemsize)) * edges
    return (destinations * row.round_trip_bytes + told < sources * row.round_trip_bytes) & (destinations > 0)


def _weights_or_one(weight: Tensor, edge: Tensor) -> Tensor:
    """The weights of edges, and 1 where an edge is -1."""
    if not len(weight):
        return weight.new_ones(len(edge), 1)
    return torch.where(edge[:, None] < 0, weight.new_ones(()), weight[edge])


class SplitBlock(NamedTuple):
    """A worker's part of one layer of a batch.

    Attributes:
        sampled: As it was drawn.
        partial_sums: Who takes which parts of its sums; None where they are taken where the destinations are.
    """

    sampled: SampledSplitBlock
    partial_sums: PartialSumBlock | None = None

    @property
    def remote_rows(self) -> int:
        """Rows that come from others."""
        return sum(self.sampled.recv_counts) if self.partial_sums is None else self.partial_sums.remote_rows

    def to(self, device: torch.device) -> SplitBlock:
        """The same on a device."""
        return SplitBlock(self.sampled.to(device), None if self.partial_sums is None else self.partial_sums.to(device))


def forward_cooperatively(
    layer: Layer, split_block: SplitBlock, x: Features, key: int | None, comm: Comm, kind: Kind
) -> Tensor:
    """``[Vd, O]``: a layer's output for a worker's own destinations. All workers together. Differentiable.

    Args:
        layer: The layer.
        split_block: The worker's part of it, on its device.
        x: ``[num_own, D]`` input of its own nodes.
        key: Key of the draws of this layer in this step; None draws nothing.
        comm: The line to the other workers.
        kind: What the rows of sources are.
    """
    block = split_block.sampled.block.with_rng_key(key)
    x, x_dst = src_and_dst_rows(x, len(block.dst_nodes))
    source, target = layer.source_and_target(x, x_dst)
    if split_block.partial_sums is not None:
        assert source.values is not None
        return layer.update(x_dst, split_block.partial_sums.aggregate(source.values, comm, kind), block)
    if comm.size > 1:
        drawn = split_block.sampled
        delivery = RowSendPlan(
            comm, SplitSizes(drawn.send_counts, drawn.recv_counts), drawn.send_index, drawn.num_owned
        )
        source = _concat_remote_sources(source, delivery, kind)
    return layer.update(x_dst, layer.aggregate(block, source, target), block)


def _concat_remote_sources(source: NodeMessages, send_plan: RowSendPlan, kind: Kind) -> NodeMessages:
    """The rows of own sources, then those of others, which come as one matrix."""
    columns, score = source
    assert columns is not None
    if score is None:
        return NodeMessages(torch.cat([columns, send_plan.send_rows(columns, kind).wait()]), None)
    width = columns.shape[1] * columns.shape[2]
    others = send_plan.send_rows(torch.cat([columns.flatten(1), score], 1), kind).wait()
    theirs = others[:, :width].reshape(-1, *columns.shape[1:])
    return NodeMessages(torch.cat([columns, theirs]), torch.cat([score, others[:, width:]]))
