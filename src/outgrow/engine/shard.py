"""Shards: a worker's part of a graph, with the nodes that it owns and all their in-edges.

The *halo* of a shard consists of the other workers' nodes with edges into its own nodes.
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
from outgrow.core.errors import InputError
from outgrow.core.graph_types import RowWidths
from outgrow.core.ledger import Kind
from outgrow.engine.row_exchange import RowFetchPlan
from outgrow.graph.graph_part import GraphPart
from outgrow.graph.halo import LocalGraph, build_local_graph
from outgrow.graph.partition.partition_cache import load_or_make_partition
from outgrow.graph.partition.partitioner import Partitioner
from outgrow.graph.topology import GraphView, Topology
from outgrow.nn.layer import Features, Layer
from outgrow.nn.model import Model
from outgrow.ops.owned_rows import NodeFeatures, OwnedRows
from outgrow.ops.sparse import index_rows, slice_rows
from outgrow.ops.subgraph import are_consecutive
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.comm import Comm, ExchangeHandle, SingleProcessComm


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerView:
    """The edges of a shard, with or without self-loops.

    Attributes:
        block: All in-edges of the own nodes. Own rows are the first source rows, those of the halo follow.
        local_graph: The same with edges divided by source, own or halo; None on a single worker.
    """

    block: Block
    local_graph: LocalGraph | None = None


@renamed_members(mine="filter_owned")
class GraphShard(ABC):
    """A worker's part of a graph. Blocks are on the worker's device, tensors of nodes in memory.

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
        """Return the edges as a layer needs them: as they are, or with one self-loop per node."""

    @abstractmethod
    def select_owned(self, values: NodeFeatures) -> Features:
        """Return the own rows of ``[V, ...]`` values."""

    @abstractmethod
    def filter_owned(self, nodes: Tensor) -> Tensor:
        """Return the nodes that the worker owns among these, in the given order."""

    @abstractmethod
    def local_index(self, nodes: Tensor) -> Tensor:
        """Return the own rows of the nodes that the worker owns among these, in the given order."""

    @abstractmethod
    def fetch_halo(self, rows: Tensor, kind: Kind, widths: RowWidths | None = None) -> ExchangeHandle:
        """Start fetching the rows of the halo, ``[h, ...]``. All workers together. Differentiable.

        The first call also exchanges which rows each worker needs: see `RowFetchPlan`.

        Args:
            rows: ``[n, ...]`` of the own nodes.
            kind: Kind of the rows, for the ledger.
            widths: Columns that each type of nodes uses; None for all.
        """

    def with_halo(self, rows: Tensor, kind: Kind, widths: RowWidths | None = None) -> Tensor:
        """Return the own rows, then those of the halo, ``[n + h, ...]``."""
        # Concatenated even if empty, so that the backward pass takes part in the exchange on every worker.
        return torch.cat([rows, self.fetch_halo(rows, kind, widths).wait()])

    @abstractmethod
    def plan_fetch(self, nodes: Tensor) -> RowFetchPlan:
        """Plan fetching rows of ascending, distinct nodes of other workers. All workers together."""

    @abstractmethod
    def gather_to_rank_zero(self, rows: Tensor) -> Tensor | None:
        """Gather ``[V, ...]`` from all workers' own rows, on rank 0; return None on the others."""


class FullGraphShard(GraphShard):
    """The whole graph, on a single worker. Final.

    Args:
        topology: In-edges of all nodes.
        comm: Communicator of the single worker; None for a new one.
    """

    def __init__(self, topology: Topology, comm: Comm | None = None) -> None:
        self.topology = topology
        self.comm = comm or SingleProcessComm()
        self.owned_nodes = topology.nodes
        # By whether there are self-loops, as all other needs of layers are equal.
        self._device_blocks: dict[bool, Block] = {}

    def layer_view(self, layer: Layer) -> LayerView:
        """Return all edges."""
        self_loops = layer.spec.self_loops
        if self_loops not in self._device_blocks:
            self._device_blocks[self_loops] = layer_topology(self.topology, layer).block.to(self.comm.device)
        return LayerView(block=self._device_blocks[self_loops])

    def select_owned(self, values: NodeFeatures) -> Features:
        """Return all rows."""
        # A single worker owns all nodes, so no part of a graph gets here.
        assert not isinstance(values, OwnedRows)
        return values

    def filter_owned(self, nodes: Tensor) -> Tensor:
        """Return all of the nodes."""
        return nodes

    def local_index(self, nodes: Tensor) -> Tensor:
        """Return all of the nodes."""
        return nodes

    def fetch_halo(self, rows: Tensor, kind: Kind, widths: RowWidths | None = None) -> ExchangeHandle:
        """Fetch no rows."""
        return self.comm.all_to_all(rows[:0], SplitSizes((0,), (0,)), kind)

    def with_halo(self, rows: Tensor, kind: Kind, widths: RowWidths | None = None) -> Tensor:
        """Return the rows as they are, since there is no halo."""
        return rows

    def plan_fetch(self, nodes: Tensor) -> RowFetchPlan:
        """Plan fetching no rows."""
        assert not len(nodes)
        return RowFetchPlan(self.comm, self.owned_nodes, nodes, (0,))

    def gather_to_rank_zero(self, rows: Tensor) -> Tensor | None:
        """Return the rows as they are."""
        return rows


class PartitionShard(GraphShard):
    """The nodes of one part of a partition. Final.

    Own nodes are known at once. Edges are loaded when a view or the halo is first used, so strategies that
    stream edges need not hold them.

    Args:
        topology: In-edges of all nodes, memory-mapped where they are many.
        owner: ``[V]`` integer, the worker of each node.
        comm: Communicator of the workers.
        self_loops: Which view to build first if any serves: the one that layers need. The other is built on
            demand.
    """

    def __init__(self, topology: Topology, owner: Tensor, comm: Comm, *, self_loops: bool = False) -> None:
        self.topology = topology
        self.comm = comm
        self.owner = owner
        self.self_loops = self_loops
        self.owned_nodes = (owner == comm.rank).nonzero()[:, 0]
        first = int(self.owned_nodes[0]) if len(self.owned_nodes) else 0
        # Consecutive nodes permit slices of mapped features instead of copies.
        self._range = (first, first + len(self.owned_nodes)) if are_consecutive(self.owned_nodes) else None
        self._views: dict[bool, LayerView] = {}

    def layer_view(self, layer: Layer) -> LayerView:
        """Return the in-edges of own nodes, without communication."""
        return self._make_view(self_loops=layer.spec.self_loops)

    @property
    def halo_nodes(self) -> Tensor:
        """Nodes of other workers with an edge to an own node, ``[h]`` int64; by owner, then ascending."""
        return self._any_local_graph.halo

    @cached_property
    def _halo_fetch_plan(self) -> RowFetchPlan:
        return RowFetchPlan(self.comm, self.owned_nodes, self.halo_nodes, self._any_local_graph.halo_counts)

    @property
    def _any_local_graph(self) -> LocalGraph:
        """The edges in either view: the halo is the same in both."""
        local_graph = self._make_view(self_loops=next(iter(self._views), self.self_loops)).local_graph
        assert local_graph is not None
        return local_graph

    def _make_view(self, *, self_loops: bool) -> LayerView:
        # Layers with equal needs share a view, and with it the transpose and weights that its edges cache.
        if self_loops not in self._views:
            comm = self.comm
            local_graph = build_local_graph(self.topology, self.owner, comm.rank, comm.size, self_loops=self_loops).to(
                comm.device
            )
            self._views[self_loops] = LayerView(block=local_graph.block, local_graph=local_graph)
        return self._views[self_loops]

    def select_owned(self, values: NodeFeatures) -> Features:
        """Return the own rows, without a copy if the own nodes are consecutive, or the only ones with rows."""
        if isinstance(values, OwnedRows):
            return values.index_rows(self.owned_nodes)
        if self._range is not None:
            first, last = self._range
            return slice_rows(values, first, last)
        return index_rows(values, self.owned_nodes)

    def filter_owned(self, nodes: Tensor) -> Tensor:
        """Return the own nodes among these."""
        return nodes[self.owner[nodes] == self.comm.rank]

    def local_index(self, nodes: Tensor) -> Tensor:
        """Return the own rows of the own nodes among these."""
        # Own nodes ascend, so a search replaces a table for all nodes of the graph.
        return torch.searchsorted(self.owned_nodes, self.filter_owned(nodes))

    def fetch_halo(self, rows: Tensor, kind: Kind, widths: RowWidths | None = None) -> ExchangeHandle:
        """Start fetching the rows of the halo from their owners."""
        return self._halo_fetch_plan.fetch_rows(rows, kind, widths)

    def plan_fetch(self, nodes: Tensor) -> RowFetchPlan:
        """Plan fetching rows of these nodes from their owners."""
        owner = self.owner[nodes]
        counts = torch.bincount(owner, minlength=self.comm.size).tolist()
        # A stable sort keeps nodes of an owner ascending, as the plan of the halo has them.
        return RowFetchPlan(self.comm, self.owned_nodes, nodes[owner.argsort(stable=True)], tuple(counts))

    def gather_to_rank_zero(self, rows: Tensor) -> Tensor | None:
        """Gather the rows of all workers on rank 0."""
        nodes, found = gather_node_rows(self.comm, self.owned_nodes, rows, Kind.ACTIVATIONS)
        if not self.comm.is_rank_zero:
            return None
        out = found.new_empty((self.topology.num_nodes, *rows.shape[1:]))
        out[nodes] = found
        return out


def gather_node_rows(comm: Comm, nodes: Tensor, rows: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Return the nodes and the rows of all workers on rank 0, worker by worker; none on the others.

    Args:
        comm: Communicator of the workers.
        nodes: ``[n]`` int64, nodes of this worker.
        rows: ``[n, ...]``, their rows.
        kind: Kind of the rows, for the ledger.
    """
    counts = comm.all_gather_object(len(nodes))
    sizes = SplitSizes(
        tuple(len(nodes) if peer == 0 else 0 for peer in range(comm.size)),
        tuple(counts) if comm.is_rank_zero else (0,) * comm.size,
    )
    # Only rank 0 needs the order, but all take part in the exchange of ids.
    found = comm.all_to_all(nodes, sizes, Kind.IDS).wait()
    return found, comm.all_to_all(rows, sizes, kind).wait()


def make_shard(
    topology: Topology,
    comm: Comm,
    method: Partitioner,
    store: Path | None,
    *,
    self_loops: bool,
    part: GraphPart | None = None,
) -> GraphShard:
    """Return a worker's shard: the whole graph, or one part of the partition that rank 0 loads or makes.

    Args:
        topology: In-edges of all nodes.
        comm: Communicator of the workers.
        method: The partitioner.
        store: The store of the graph, where partitions are cached; None if it has none.
        self_loops: Whether layers need self-loops, whose view is then built first.
        part: The part of the graph whose features this worker has, of a partition made before; None for all of it.

    Raises:
        InputError: The parts of the workers are not those of one partition, each once.
    """
    if part is not None:
        return _make_part_shard(topology, part, comm, self_loops=self_loops)
    if comm.size == 1:
        return FullGraphShard(topology, comm)
    # One worker partitions, so that all agree and the graph is not partitioned once for each.
    owner = load_or_make_partition(topology, method, comm.size, store=store).part if comm.is_rank_zero else None
    return PartitionShard(topology, comm.broadcast(owner, Kind.TOPOLOGY), comm, self_loops=self_loops)


def _make_part_shard(topology: Topology, part: GraphPart, comm: Comm, *, self_loops: bool) -> GraphShard:
    """Return the shard of a worker that has the features of one part of a graph, whichever part that is."""
    opened = comm.all_gather_object((part.number, part.num_parts, part.key))
    numbers, keys = [number for number, *_ in opened], {key for *_, key in opened}
    if sorted(numbers) != list(range(part.num_parts)) or len(keys) > 1:
        raise InputError(
            "the workers do not have the parts of one partition",
            needed=f"parts 0 to {part.num_parts - 1} of one graph, a part for each of {part.num_parts} workers",
            got=f"{comm.size} workers with parts {', '.join(map(str, numbers))} of {len(keys)} partitions",
            repair="give each worker a part of its own, of stores that one `outgrow partition` has written",
        )
    # Launchers number workers as they come: a host may have another part than that of its rank.
    worker = torch.empty(part.num_parts, dtype=part.node_part.dtype)
    worker[torch.tensor(numbers)] = torch.arange(comm.size, dtype=part.node_part.dtype)
    return PartitionShard(topology, worker[part.node_part.long()], comm, self_loops=self_loops)


def model_topology(topology: Topology, model: Model) -> Topology:
    """Return the graph as a model needs it: without the features of edges if no layer reads them."""
    reads = any(layer.conv.edge_dim for layer in model.layers_list())
    return topology if reads else topology.without_edge_features


def layer_topology(topology: Topology, layer: Layer) -> Topology:
    """Return the graph as a layer needs it: as it is, or with one self-loop per node."""
    return topology.view(self_loops=layer.spec.self_loops)


def sampling_view(topology: Topology, layer: Layer) -> GraphView:
    """Return the graph as a layer needs it, for samplers: self-loops are added to what is drawn.

    Features of edges are gathered for layers that read them only.
    """
    graph = topology if layer.conv.edge_dim else topology.without_edge_features
    return graph.sampling_view(self_loops=layer.spec.self_loops)
