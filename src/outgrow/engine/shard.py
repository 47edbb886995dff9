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
from outgrow.core.ledger import Kind
from outgrow.engine.row_exchange import Subscription
from outgrow.graph.halo import LocalGraph, local_graph
from outgrow.graph.partition.methods import Method
from outgrow.graph.partition.partition_cache import partition_of
from outgrow.graph.topology import Topology
from outgrow.nn.layer import Features, Layer
from outgrow.ops.sparse import rows_at, rows_between
from outgrow.ops.subgraph import consecutive
from outgrow.runtime.distributed.async_exchange import Route
from outgrow.runtime.distributed.comm import Alone, Arrival, Comm


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """The edges of a share as a layer wants them.

    Attributes:
        block: All in-edges of the share's own nodes. Their rows are the first source rows, those of the halo follow.
        local: The same with its edges in two parts, from own nodes and from the halo; None on the only worker.
    """

    block: Block
    local: LocalGraph | None = None


class Share(ABC):
    """What one worker holds of a graph. Blocks are on the worker's device, all that is said of nodes in memory.

    Attributes:
        topology: In-edges of all nodes of the graph.
        comm: The line to the other workers.
        own: ``[n]`` int64, the nodes that the worker owns, ascending.
    """

    topology: Topology
    comm: Comm
    own: Tensor

    @abstractmethod
    def view(self, layer: Layer) -> View:
        """The edges as a layer wants them: as they are, or with one self-loop per node."""

    @abstractmethod
    def rows(self, values: Features) -> Features:
        """The own rows of ``[V, ...]`` values."""

    @abstractmethod
    def mine(self, nodes: Tensor) -> Tensor:
        """Those of these nodes that the worker owns, in the order given."""

    @abstractmethod
    def places(self, nodes: Tensor) -> Tensor:
        """Rows, among the own ones, of those of these nodes that the worker owns; in the order given."""

    @abstractmethod
    def fetch(self, rows: Tensor, kind: Kind) -> Arrival:
        """Rows of the halo, ``[h, ...]``, under way from their owners. All workers give their own rows. Differentiable.

        The first time workers also tell each other which rows they need: see `Subscription`.

        Args:
            rows: ``[n, ...]`` of the own nodes.
            kind: What they are.
        """

    def beside(self, rows: Tensor, kind: Kind) -> Tensor:
        """``[n + h, ...]``: the own rows, then those of the halo.

        Also where the halo is empty its rows are part of the result, so that their gradient travels on all workers.
        """
        return torch.cat([rows, self.fetch(rows, kind).wait()])

    @abstractmethod
    def subscribe(self, nodes: Tensor) -> Subscription:
        """Rows of nodes of other workers, any of them, ascending, none twice. All workers together."""

    @abstractmethod
    def to_leader(self, rows: Tensor) -> Tensor | None:
        """``[V, ...]`` from all workers' own rows, on the worker that leads; None on the others."""


class Whole(Share):
    """The whole graph, on the only worker. Final.

    Args:
        topology: In-edges of all nodes.
        comm: The line to nobody; None for a new one.
    """

    def __init__(self, topology: Topology, comm: Comm | None = None) -> None:
        self.topology, self.comm, self.own = topology, comm or Alone(), topology.nodes
        self._moved: dict[bool, Block] = {}

    def view(self, layer: Layer) -> View:
        """See `Share.view`."""
        self_loops = layer.widths.self_loops
        if self_loops not in self._moved:
            self._moved[self_loops] = view_of(self.topology, layer).block.to(self.comm.device)
        return View(block=self._moved[self_loops])

    def rows(self, values: Features) -> Features:
        """All rows."""
        return values

    def mine(self, nodes: Tensor) -> Tensor:
        """All of them."""
        return nodes

    def places(self, nodes: Tensor) -> Tensor:
        """All of them."""
        return nodes

    def fetch(self, rows: Tensor, kind: Kind) -> Arrival:
        """No rows."""
        return self.comm.rows(rows[:0], Route((0,), (0,)), kind)

    def beside(self, rows: Tensor, kind: Kind) -> Tensor:
        """The same rows: there is no halo."""
        return rows

    def subscribe(self, nodes: Tensor) -> Subscription:
        """There are none."""
        assert not len(nodes)
        return Subscription(self.comm, self.own, nodes, (0,))

    def to_leader(self, rows: Tensor) -> Tensor | None:
        """The same rows."""
        return rows


class Part(Share):
    """The nodes of one part of a partition. Final.

    Own nodes are known at once. Edges are held from the time when a view, the halo or rows of the halo are first asked
    for: whoever streams them need not hold them.

    Args:
        topology: In-edges of all nodes, memory-mapped where they are many.
        owner: ``[V]`` integer, the worker of each node.
        comm: The line to the other workers.
        self_loops: Which view to make where any will do, the one that layers want; the other is made when one wants it.
    """

    def __init__(self, topology: Topology, owner: Tensor, comm: Comm, *, self_loops: bool = False) -> None:
        self.topology, self.comm, self.owner, self.self_loops = topology, comm, owner, self_loops
        self.own = (owner == comm.rank).nonzero()[:, 0]
        first = int(self.own[0]) if len(self.own) else 0
        self._range = (first, first + len(self.own)) if consecutive(self.own) else None
        self._views: dict[bool, View] = {}

    def view(self, layer: Layer) -> View:
        """See `Share.view`. Needs no other worker."""
        return self._view(self_loops=layer.widths.self_loops)

    @property
    def halo(self) -> Tensor:
        """``[h]`` int64, nodes of other workers with an edge to an own node; by owner, then ascending."""
        return self._any.halo

    @cached_property
    def _halo_rows(self) -> Subscription:
        return Subscription(self.comm, self.own, self.halo, self._any.halo_counts)

    @property
    def _any(self) -> LocalGraph:
        """The edges in some view: the halo is the same in both."""
        held = self._view(self_loops=next(iter(self._views), self.self_loops)).local
        assert held is not None
        return held

    def _view(self, *, self_loops: bool) -> View:
        if self_loops not in self._views:
            comm = self.comm
            held = local_graph(self.topology, self.owner, comm.rank, comm.size, self_loops=self_loops).to(comm.device)
            self._views[self_loops] = View(block=held.block, local=held)
        return self._views[self_loops]

    def rows(self, values: Features) -> Features:
        """See `Share.rows`: without a copy where the own nodes are consecutive."""
        if self._range is not None:
            first, last = self._range
            return rows_between(values, first, last)
        return rows_at(values, self.own)

    def mine(self, nodes: Tensor) -> Tensor:
        """See `Share.mine`."""
        return nodes[self.owner[nodes] == self.comm.rank]

    def places(self, nodes: Tensor) -> Tensor:
        """See `Share.places`."""
        return torch.searchsorted(self.own, self.mine(nodes))

    def fetch(self, rows: Tensor, kind: Kind) -> Arrival:
        """See `Share.fetch`."""
        return self._halo_rows.fetch(rows, kind)

    def subscribe(self, nodes: Tensor) -> Subscription:
        """See `Share.subscribe`."""
        owner = self.owner[nodes]
        counts = torch.bincount(owner, minlength=self.comm.size).tolist()
        return Subscription(self.comm, self.own, nodes[owner.argsort(stable=True)], tuple(counts))

    def to_leader(self, rows: Tensor) -> Tensor | None:
        """See `Share.to_leader`."""
        comm = self.comm
        counts = comm.gather(len(self.own))
        route = Route(
            tuple(len(self.own) if peer == 0 else 0 for peer in range(comm.size)),
            tuple(counts) if comm.leads else (0,) * comm.size,
        )
        nodes = comm.rows(self.own, route, Kind.IDS).wait()
        found = comm.rows(rows, route, Kind.ACTIVATIONS).wait()
        if not comm.leads:
            return None
        out = found.new_empty((self.topology.num_nodes, *rows.shape[1:]))
        out[nodes] = found
        return out


def share_of(topology: Topology, comm: Comm, parts: Method, store: Path | None, *, self_loops: bool) -> Share:
    """What a worker holds of a graph: all of it, or one part. The worker that leads makes the partition.

    Args:
        topology: In-edges of all nodes.
        comm: The line to the other workers.
        parts: How nodes are dealt out.
        store: The store of the graph, where partitions are kept; None if it has none.
        self_loops: Whether layers want self-loops.
    """
    if comm.size == 1:
        return Whole(topology, comm)
    owner = partition_of(topology, parts, comm.size, store=store).part if comm.leads else None
    return Part(topology, comm.broadcast(owner, Kind.TOPOLOGY), comm, self_loops=self_loops)


def view_of(topology: Topology, layer: Layer) -> Topology:
    """The graph as a layer wants it: as it is, or with one self-loop per node."""
    return topology.view(self_loops=layer.widths.self_loops)
