"""A worker's share of a graph: the nodes that it owns with all their in-edges, and what it needs of the others.

The *halo* of a share are the nodes of other workers that edges into its own nodes come from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.deprecation import renamed_members
from outgrow.core.ledger import Kind
from outgrow.engine.row_exchange import RowFetchPlan
from outgrow.graph.halo import LocalGraph, build_local_graph
from outgrow.graph.partition.methods import Partitioner
from outgrow.graph.partition.partition_cache import load_or_make_partition
from outgrow.graph.topology import Topology
from outgrow.nn.layer import Features, Layer
from outgrow.ops.sparse import index_rows, slice_rows
from outgrow.ops.subgraph import are_consecutive
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.comm import Comm, ExchangeHandle, SingleProcessComm


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerView:
    """The edges of a share as a layer wants them.

    Attributes:
        block: All in-edges of the share's own nodes. Their rows are the first source rows, those of the halo
            follow.
        local_graph: The same with its edges in two parts, from own nodes and from the halo; None on the only
            worker.
    """

    block: Block
    local_graph: LocalGraph | None = None


@renamed_members(mine="filter_owned")
class GraphShard(ABC):
    """What one worker holds of a graph. Blocks are on the worker's device, all that is said of nodes in memory.

    Attributes:
        topology: In-edges of all nodes of the graph.
        comm: Communicator of the workers.
        owned_nodes: ``[n]`` int64, the nodes that the worker owns, ascending.
    """

    topology: Topology
    comm: Comm
    owned_nodes: Tensor

    @abstractmethod
    def layer_view(self, layer: Layer) -> LayerView:
        """The edges as a layer wants them: as they are, or with one self-loop per node."""

    @abstractmethod
    def select_owned(self, values: Features) -> Features:
        """The own rows of ``[V, ...]`` values."""

    @abstractmethod
    def filter_owned(self, nodes: Tensor) -> Tensor:
        """Those of these nodes that the worker owns, in the order given."""

    @abstractmethod
    def local_index(self, nodes: Tensor) -> Tensor:
        """Rows, among the own ones, of those of these nodes that the worker owns; in the order given."""

    @abstractmethod
    def fetch_halo(self, rows: Tensor, kind: Kind) -> ExchangeHandle:
        """Rows of the halo, ``[h, ...]``, under way from their owners. All workers give their own rows. Differentiable.

        The first time workers also tell each other which rows they need: see `RowFetchPlan`.

        Args:
            rows: ``[n, ...]`` of the own nodes.
            kind: What they are.
        """

    def with_halo(self, rows: Tensor, kind: Kind) -> Tensor:
        """``[n + h, ...]``: the own rows, then those of the halo.

        Also where the halo is empty its rows are part of the result, so that their gradient travels on all
        workers.
        """
        return torch.cat([rows, self.fetch_halo(rows, kind).wait()])

    @abstractmethod
    def plan_fetch(self, nodes: Tensor) -> RowFetchPlan:
        """Rows of nodes of other workers, any of them, ascending, none twice. All workers together."""

    @abstractmethod
    def gather_to_rank_zero(self, rows: Tensor) -> Tensor | None:
        """``[V, ...]`` from all workers' own rows, on the worker that leads; None on the others."""


class FullGraphShard(GraphShard):
    """The whole graph, on the only worker. Final.

    Args:
        topology: In-edges of all nodes.
        comm: The line to nobody; None for a new one.
    """

    def __init__(self, topology: Topology, comm: Comm | None = None) -> None:
        self.topology = topology
        self.comm = comm or SingleProcessComm()
        self.owned_nodes = topology.nodes
        self._device_blocks: dict[bool, Block] = {}

    def layer_view(self, layer: Layer) -> LayerView:
        """See `GraphShard.layer_view`."""
        self_loops = layer.spec.self_loops
        if self_loops not in self._device_blocks:
            self._device_blocks[self_loops] = layer_topology(self.topology, layer).block.to(self.comm.device)
        return LayerView(block=self._device_blocks[self_loops])

    def select_owned(self, values: Features) -> Features:
        """All rows."""
        return values

    def filter_owned(self, nodes: Tensor) -> Tensor:
        """All of them."""
        return nodes

    def local_index(self, nodes: Tensor) -> Tensor:
        """All of them."""
        return nodes

    def fetch_halo(self, rows: Tensor, kind: Kind) -> ExchangeHandle:
        """No rows."""
        return self.comm.all_to_all(rows[:0], SplitSizes((0,), (0,)), kind)

    def with_halo(self, rows: Tensor, kind: Kind) -> Tensor:
        """The same rows: there is no halo."""
        return rows

    def plan_fetch(self, nodes: Tensor) -> RowFetchPlan:
        """There are none."""
        assert not len(nodes)
        return RowFetchPlan(self.comm, self.owned_nodes, nodes, (0,))

    def gather_to_rank_zero(self, rows: Tensor) -> Tensor | None:
        """The same rows."""
        return rows


class PartitionShard(GraphShard):
    """The nodes of one part of a partition. Final.

    Own nodes are known at once. Edges are held from the time when a view, the halo or rows of the halo are
    first asked for: whoever streams them need not hold them.

    Args:
        topology: In-edges of all nodes, memory-mapped where they are many.
        owner: ``[V]`` integer, the worker of each node.
        comm: Communicator of the workers.
        self_loops: Which view to make where any will do, the one that layers want; the other is made when one
            wants it.
    """

    def __init__(self, topology: Topology, owner: Tensor, comm: Comm, *, self_loops: bool = False) -> None:
        self.topology = topology
        self.comm = comm
        self.owner = owner
        self.self_loops = self_loops
        self.owned_nodes = (owner == comm.rank).nonzero()[:, 0]
        first = int(self.owned_nodes[0]) if len(self.owned_nodes) else 0
        self._range = (first, first + len(self.owned_nodes)) if are_consecutive(self.owned_nodes) else None
        self._views: dict[bool, LayerView] = {}

    def layer_view(self, layer: Layer) -> LayerView:
        """See `GraphShard.layer_view`. Needs no other worker."""
        return self._make_view(self_loops=layer.spec.self_loops)

    @property
    def halo_nodes(self) -> Tensor:
        """``[h]`` int64, nodes of other workers with an edge to an own node; by owner, then ascending."""
        return self._any_local_graph.halo

    @cached_property
    def _halo_fetch_plan(self) -> RowFetchPlan:
        return RowFetchPlan(self.comm, self.owned_nodes, self.halo_nodes, self._any_local_graph.halo_counts)

    @property
    def _any_local_graph(self) -> LocalGraph:
        """The edges in some view: the halo is the same in both."""
        held = self._make_view(self_loops=next(iter(self._views), self.self_loops)).local_graph
        assert held is not None
        return held

    def _make_view(self, *, self_loops: bool) -> LayerView:
        if self_loops not in self._views:
            comm = self.comm
            held = build_local_graph(self.topology, self.owner, comm.rank, comm.size, self_loops=self_loops).to(
                comm.device
            )
            self._views[self_loops] = LayerView(block=held.block, local_graph=held)
        return self._views[self_loops]

    def select_owned(self, values: Features) -> Features:
        """See `GraphShard.select_owned`: without a copy where the own nodes are consecutive."""
        if self._range is not None:
            first, last = self._range
            return slice_rows(values, first, last)
        return index_rows(values, self.owned_nodes)

    def filter_owned(self, nodes: Tensor) -> Tensor:
        """See `GraphShard.filter_owned`."""
        return nodes[self.owner[nodes] == self.comm.rank]

    def local_index(self, nodes: Tensor) -> Tensor:
        """See `GraphShard.local_index`."""
        return torch.searchsorted(self.owned_nodes, self.filter_owned(nodes))

    def fetch_halo(self, rows: Tensor, kind: Kind) -> ExchangeHandle:
        """See `GraphShard.fetch_halo`."""
        return self._halo_fetch_plan.fetch_rows(rows, kind)

    def plan_fetch(self, nodes: Tensor) -> RowFetchPlan:
        """See `GraphShard.plan_fetch`."""
        owner = self.owner[nodes]
        counts = torch.bincount(owner, minlength=self.comm.size).tolist()
        return RowFetchPlan(self.comm, self.owned_nodes, nodes[owner.argsort(stable=True)], tuple(counts))

    def gather_to_rank_zero(self, rows: Tensor) -> Tensor | None:
        """See `GraphShard.gather_to_rank_zero`."""
        comm = self.comm
        counts = comm.all_gather_object(len(self.owned_nodes))
        route = SplitSizes(
            tuple(len(self.owned_nodes) if peer == 0 else 0 for peer in range(comm.size)),
            tuple(counts) if comm.is_rank_zero else (0,) * comm.size,
        )
        nodes = comm.all_to_all(self.owned_nodes, route, Kind.IDS).wait()
        found = comm.all_to_all(rows, route, Kind.ACTIVATIONS).wait()
        if not comm.is_rank_zero:
            return None
        out = found.new_empty((self.topology.num_nodes, *rows.shape[1:]))
        out[nodes] = found
        return out


def make_shard(
    topology: Topology, comm: Comm, method: Partitioner, store: Path | None, *, self_loops: bool
) -> GraphShard:
    """What a worker holds of a graph: all of it, or one part. The worker that leads makes the partition.

    Args:
        topology: In-edges of all nodes.
        comm: Communicator of the workers.
        method: How nodes are dealt out.
        store: The store of the graph, where partitions are kept; None if it has none.
        self_loops: Whether layers want self-loops.
    """
    if comm.size == 1:
        return FullGraphShard(topology, comm)
    owner = load_or_make_partition(topology, method, comm.size, store=store).part if comm.is_rank_zero else None
    return PartitionShard(topology, comm.broadcast(owner, Kind.TOPOLOGY), comm, self_loops=self_loops)


def layer_topology(topology: Topology, layer: Layer) -> Topology:
    """The graph as a layer wants it: as it is, or with one self-loop per node."""
    return topology.view(self_loops=layer.spec.self_loops)
