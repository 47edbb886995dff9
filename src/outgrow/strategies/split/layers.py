"""Layers that all workers compute together, and partial sums.

Every node is computed by the worker that owns it. The rows of its sources come from the workers that own
them, in one message for each pair of workers, and their gradients go back in one: the source-to-destination
scatter of GSplit (Polisetty et al. 2023, section 3.3).

If the graph fixes the weights of a sum, a worker may send partial sums instead of the sources: one row for
each destination that has in-edges from its nodes (section 3.3.2). For each pair of workers and each layer,
the choice that takes fewer bytes wins, counting both directions and the request that partial sums need.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.graph_types import RowWidths
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
    """Bytes of a row of sources.

    Attributes:
        dtype: Type of its numbers; not half precision, whose sums are wider than the rows.
        columns: Numbers of a row.
        has_gradient: Whether its gradient is sent back.
    """

    dtype: torch.dtype
    columns: int
    has_gradient: bool

    @property
    def round_trip_bytes(self) -> int:
        """Bytes of a row and its gradient, if it has one."""
        return self.columns * self.dtype.itemsize * (2 if self.has_gradient else 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class PartialSumBlock:
    """A worker's part of a layer that is a sum with fixed weights.

    Attributes:
        local_block: In-edges of own destinations from own sources.
        local_weight: ``[E_own, 1]``; None if all are 1.
        remote_block: In-edges from the rows that others send: sources and partial sums.
        remote_weight: ``[E_far, 1]``, 1 for a partial sum; None if all are 1.
        sent_block: In-edges of the rows sent to others, from own sources.
        sent_weight: ``[E_sent, 1]``, 1 for a source that is sent as it is.
        split_sizes: Number of rows sent to and received from each worker.
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
        """Number of rows received from other workers."""
        return sum(self.split_sizes.receive)

    def to(self, device: torch.device) -> PartialSumBlock:
        """Return the block on a device; itself if it is there already."""
        if self.local_block.dst_nodes.device == device:
            return self
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Block | Tensor)
        }
        return replace(self, **moved)

    def aggregate(self, columns: Tensor, comm: Comm, kind: Kind) -> Tensor:
        """Return the sum over all in-edges, ``[Vd, 1, F]``. All workers together. Differentiable.

        Args:
            columns: ``[num_own, 1, F]`` rows of the own sources.
            comm: Communicator of the workers.
            kind: Kind of the rows, for the ledger.
        """
        sum_ = WeightedSum()
        # Rows for others first: they are exchanged while the sum over own sources is computed.
        others = comm.all_to_all(sum_(self.sent_block, columns, None, self.sent_weight), self.split_sizes, kind)
        local = sum_(self.local_block, columns, None, self.local_weight)
        return local + sum_(self.remote_block, others.wait(), None, self.remote_weight)


def supports_partial_sums(layer: Layer) -> bool:
    """Whether a layer is a sum of one channel with weights that the graph fixes."""
    widths = layer.spec
    return has_fixed_weights(layer) and widths.source == widths.aggregate and widths.source[0] == 1


def plan_partial_sums(
    layer: Layer, sampled: SampledSplitBlock, row: RowBytes, comm: Comm, *, partial_sums: bool = True
) -> PartialSumBlock:
    """Decide which workers send partial sums, and request these. All workers together, in the same order.

    Sends three counts of 8 bytes to each other worker (``ids``), and to a worker that will send sums 4 bytes
    for each sum and for each of its edges, and the weights of these edges (``topology``).

    Args:
        layer: The layer; `supports_partial_sums` holds for it.
        sampled: The worker's part of the sampled layer.
        row: Bytes of a row of sources.
        comm: Communicator that no other thread uses.
        partial_sums: Whether partial sums are permitted.
    """
    block = sampled.block
    wanted = sampled.recv_counts
    weight = layer.conv.edge_weight(block, NodeMessages(torch.empty(0, 1, row.columns, dtype=row.dtype), None), _NONE)
    found = count_remote_edges(block.edges, sampled.num_owned, wanted)
    summed = _partial_is_cheaper(found.edges, found.destinations, torch.tensor(wanted), row, weight)
    summed &= partial_sums
    sums = split_in_edges(block.edges, sampled.num_owned, wanted, found, tuple(summed.tolist()))
    weighed = torch.zeros_like(found.edges) if weight is None else found.edges
    # The receivers must know the lengths of the lists that follow. A count of 0 sums asks for the rows as
    # they are; a count of 0 weights says that all are 1.
    requested = torch.stack([found.destinations, found.edges, weighed]) * summed
    theirs = comm.all_to_all_counts(requested.T.contiguous(), Kind.IDS).T
    numbers = SplitSizes(tuple(requested[:2].sum(0).tolist()), tuple(theirs[:2].sum(0).tolist()))
    requests = comm.all_to_all(sums.sum_requests, numbers, Kind.TOPOLOGY).wait()
    requested_weights = (
        torch.empty(0, 1, dtype=accumulate_dtype(row.dtype)) if weight is None else weight[sums.sum_request_edge_ids]
    )
    weights = comm.all_to_all(
        requested_weights, SplitSizes(tuple(requested[2].tolist()), tuple(theirs[2].tolist())), Kind.TOPOLOGY
    ).wait()
    # From here on, the sums that others want of this worker.
    num_sums = tuple(theirs[0].tolist())
    sent, has_weight = pack_partial_sums(sampled.send_index, sampled.send_counts, theirs, requests, sampled.num_owned)
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
    """Return for each worker whether its partial sums take fewer bytes than the sources, ``[P]`` bool."""
    # The request: an int32 for each sum and each of its edges, and the weight of each edge.
    requested = 4 * destinations + (4 + (0 if weight is None else weight.itemsize)) * edges
    # At least one destination, since 0 sums means the rows themselves.
    return (destinations * row.round_trip_bytes + requested < sources * row.round_trip_bytes) & (destinations > 0)


def _weights_or_one(weight: Tensor, edge: Tensor) -> Tensor:
    """Return the weights of edges, and 1 for an edge of -1."""
    # Indexing with -1 below reads the last weight, which has to exist although it is replaced.
    if not len(weight):
        return weight.new_ones(len(edge), 1)
    return torch.where(edge[:, None] < 0, weight.new_ones(()), weight[edge])


class SplitBlock(NamedTuple):
    """A worker's part of one layer of a batch.

    Attributes:
        sampled: The sampled part.
        partial_sums: Plan of the partial sums; None if the owner of a destination computes the whole sum.
    """

    sampled: SampledSplitBlock
    partial_sums: PartialSumBlock | None = None

    @property
    def remote_rows(self) -> int:
        """Number of rows received from other workers."""
        return sum(self.sampled.recv_counts) if self.partial_sums is None else self.partial_sums.remote_rows

    def to(self, device: torch.device) -> SplitBlock:
        """Return the block on a device."""
        return SplitBlock(self.sampled.to(device), None if self.partial_sums is None else self.partial_sums.to(device))


def forward_cooperatively(
    layer: Layer, split_block: SplitBlock, x: Features, key: int | None, comm: Comm, kind: Kind
) -> Tensor:
    """Return a layer's output for own destinations, ``[Vd, O]``. All workers together. Differentiable.

    Args:
        layer: The layer.
        split_block: The worker's part of the layer, on its device.
        x: ``[num_own, D]`` input of its own nodes.
        key: Random key of this layer in this step; None for no random draws.
        comm: Communicator of the workers.
        kind: Kind of the rows of sources, for the ledger.
    """
    block = split_block.sampled.block.with_rng_key(key)
    x, x_dst = src_and_dst_rows(x, len(block.dst_nodes))
    source, target = layer.source_and_target(x, x_dst, split_block.sampled.own_nodes, block.dst_nodes)
    if split_block.partial_sums is not None:
        assert source.values is not None
        return layer.update(x_dst, split_block.partial_sums.aggregate(source.values, comm, kind), block)
    if comm.size > 1:
        sampled = split_block.sampled
        nodes = sampled.block.src_nodes
        send_plan = RowSendPlan(
            comm,
            SplitSizes(sampled.send_counts, sampled.recv_counts),
            sampled.send_index,
            sampled.num_owned,
            (nodes[sampled.send_index], nodes[sampled.num_owned :]),
        )
        source = _concat_remote_sources(source, send_plan, kind, layer.row_widths())
    return layer.update(x_dst, layer.aggregate(block, source, target), block)


def _concat_remote_sources(
    source: NodeMessages, send_plan: RowSendPlan, kind: Kind, widths: RowWidths | None
) -> NodeMessages:
    """Return the messages of own sources, then those of others, which are received as one matrix."""
    columns, score = source
    assert columns is not None
    if score is None:
        return NodeMessages(torch.cat([columns, send_plan.send_rows(columns, kind, widths).wait()]), None)
    # Columns and scores in one matrix: one message for each pair of workers instead of two.
    width = columns.shape[1] * columns.shape[2]
    others = send_plan.send_rows(torch.cat([columns.flatten(1), score], 1), kind, widths).wait()
    theirs = others[:, :width].reshape(-1, *columns.shape[1:])
    return NodeMessages(torch.cat([columns, theirs]), torch.cat([score, others[:, width:]]))
