"""Graphs that are dealt out and cut, what their chunks read by Python's sets, and workers that are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.ledger import Kind, Ledger, Link
from outgrow.engine.shard import FullGraphShard, GraphShard, PartitionShard
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.graph.topology import Topology
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.comm import Comm, ExchangeHandle
from outgrow.strategies.offload.wave import Wave
from outgrow.strategies.offload.wave_plan import (
    RowRange,
    SlotAllocator,
    TransferOptions,
    WaveLayout,
    WaveRequirements,
    assign_slots,
    build_wave,
    cut_chunks,
    exchange_requirements,
)
from support import topologies, with_edge_features, with_relations

R = TypeVar("R")
Sets = list[list[set[int]]]
"""Nodes of each worker in each wave."""


class Here(NamedTuple):
    """Rows that have come."""

    here: Tensor

    def wait(self) -> Tensor:
        return self.here


class Meeting:
    """Where threads wait for one another; only one of them runs at a time."""

    def __init__(self, size: int) -> None:
        self.slots: list[Any] = [None] * size
        self.barrier, self.turn = threading.Barrier(size, timeout=60), threading.Lock()


class ThreadComm(Comm):
    """The line of a worker that is a thread of this process."""

    def __init__(self, rank: int, size: int, meeting: Meeting) -> None:
        self.rank, self.size, self.hosts, self.ledger = rank, size, ("here",) * size, Ledger()
        self._meeting = meeting

    def all_gather_object(self, value: Any) -> list[Any]:
        self._meeting.slots[self.rank] = value
        self.barrier()
        found = list(self._meeting.slots)
        self.barrier()
        return found

    def all_to_all(
        self, rows: Tensor, split_sizes: SplitSizes, kind: Kind, *, grad_kind: Kind = Kind.GRADIENTS
    ) -> ExchangeHandle:
        parts = rows.split_with_sizes(split_sizes.send)
        self.ledger.add_bytes(Link.PEER, kind, rows.nbytes - parts[self.rank].nbytes)
        came = [given[self.rank] for given in self.all_gather_object(parts)]
        assert tuple(len(part) for part in came) == tuple(split_sizes.receive)
        return Here(torch.cat(came))

    def all_reduce(self, values: Tensor, kind: Kind = Kind.METRICS) -> Tensor:
        return values.copy_(torch.stack(self.all_gather_object(values.clone())).sum(0))

    def broadcast(self, value: Any, kind: Kind = Kind.METRICS, *, root: int = 0) -> Any:
        return self.all_gather_object(value)[root]

    def background_comms(self, count: int) -> Sequence[Comm]:
        raise NotImplementedError

    def barrier(self) -> None:
        self._meeting.turn.release()
        try:
            self._meeting.barrier.wait()
        finally:
            self._meeting.turn.acquire()

    def close(self) -> None:
        """Nothing to end."""


def together(size: int, work: Callable[[Comm], R]) -> list[R]:
    """What some work gives on each of several workers."""
    meeting = Meeting(size)

    def run(rank: int) -> R:
        with meeting.turn:
            try:
                return work(ThreadComm(rank, size, meeting))
            except BaseException:
                meeting.barrier.abort()
                raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]


def dressed(topology: Topology, *, weights: bool, relations: int) -> Topology:
    """The same graph with weights or relations of its edges."""
    if weights:
        weight = 0.5 + np.random.default_rng(3).random(topology.num_edges, dtype=np.float32)
        topology = replace(topology, weight=torch.from_numpy(weight))
    return with_relations(topology, relations) if relations else topology


@st.composite
def multigraphs(draw: st.DrawFn, most: int = 12) -> Topology:
    """Any small multi-graph with loops, with or without weights, relations and features, ids of either width."""
    topology = draw(topologies(most))
    topology = replace(topology, indices=topology.indices.to(draw(st.sampled_from([torch.int32, torch.int64]))))
    features = draw(st.sampled_from([None, torch.float32, torch.bfloat16, torch.int8]))
    topology = topology if features is None else with_edge_features(topology, dtype=features)
    return dressed(topology, weights=draw(st.booleans()), relations=draw(st.sampled_from([0, 3])))


class Cut(NamedTuple):
    """A graph that workers cut into chunks: one chunk of each is a wave. Worker ``i`` begins with its chunk ``i``."""

    topology: Topology
    owner: Tensor
    size: int
    count: int
    self_loops: bool

    @property
    def view(self) -> Topology:
        """The graph as layers see it."""
        return self.topology.with_self_loops if self.self_loops else self.topology

    def share(self, comm: Comm) -> GraphShard:
        """What a worker owns."""
        return PartitionShard(self.topology, self.owner, comm) if self.size > 1 else FullGraphShard(self.topology, comm)

    @property
    def graph(self) -> ChunkGraph:
        """What chunks are taken from."""
        return ChunkGraph(self.topology, self_loops=self.self_loops)

    def order(self, rank: int) -> list[int]:
        """The chunk of a worker in each wave."""
        return [(rank + wave) % self.count for wave in range(self.count)]

    def chunks(self, rank: int) -> list[RowRange]:
        """Those of a worker, wave by wave."""
        ranges = cut_chunks(self.graph, ids(self.own(rank)), self.count)
        return [ranges[chunk] for chunk in self.order(rank)]

    def own(self, rank: int) -> list[int]:
        """Nodes of a worker."""
        return [v for v, owner in enumerate(self.owner.tolist()) if owner == rank]

    def reads(self) -> Sets:
        """``N_ij``: what each worker reads in each wave."""
        return [
            [set(sources_of(self.view, self.own(rank)[first:last])) for first, last in self.chunks(rank)]
            for rank in range(self.size)
        ]

    def needs(self, share: GraphShard, *, sharing: bool) -> WaveRequirements:
        """What `estimate_memory_needs` finds on a worker."""
        chunks = self.chunks(share.comm.rank)
        sources = [self.graph.source_ids(share.owned_nodes[first:last]) for first, last in chunks]
        return exchange_requirements(share, chunks, sources, sharing=sharing)

    def waves(self, share: GraphShard, techniques: TransferOptions) -> tuple[list[Wave], int]:
        """The waves of a worker, and the places of its buffer."""
        found, graph = list[Wave](), self.graph
        needs = self.needs(share, sharing=techniques.sharing)

        def take(number: int, draft: WaveLayout, places: SlotAllocator) -> None:
            found.append(
                build_wave(graph, share.owned_nodes, needs.chunks[number], draft, places.slot_V, places.num_slots)
            )

        return found, assign_slots(share, needs, techniques, take)


@st.composite
def cuts(draw: st.DrawFn, workers: int = 3) -> Cut:
    """Any cut of a small graph: workers may own nothing, and have more chunks than nodes."""
    topology, size = draw(multigraphs()), draw(st.integers(1, workers))
    owners = st.integers(0, size - 1)
    owner = draw(st.lists(owners, min_size=topology.num_nodes, max_size=topology.num_nodes))
    return Cut(topology, torch.tensor(owner, dtype=torch.int16), size, draw(st.integers(1, 5)), draw(st.booleans()))


def in_edges(topology: Topology, node: int) -> list[int]:
    """Ids of the in-edges of a node."""
    return list(range(int(topology.indptr[node]), int(topology.indptr[node + 1])))


def sources_of(topology: Topology, nodes: Sequence[int]) -> list[int]:
    """Sources of all in-edges of some nodes, ascending."""
    return sorted({int(topology.indices[e]) for node in nodes for e in in_edges(topology, node)})


class Edge(NamedTuple):
    """All that is known of an in-edge."""

    number: int
    src: int
    relation: int
    weight: float


def edges_of(topology: Topology, node: int) -> list[Edge]:
    """The in-edges of a node, in order."""
    relation, weight = topology.relation, topology.weight
    return [
        Edge(
            e,
            int(topology.indices[e]),
            0 if relation is None else int(relation[e]),
            1.0 if weight is None else float(weight[e]),
        )
        for e in in_edges(topology, node)
    ]


def edges_in(block: Block) -> list[list[Edge]]:
    """The in-edges of each destination of a block, in order."""
    edges, numbers = block.edges, block.edge_ids
    numbers = torch.arange(edges.num_edges) + block.first_edge if numbers is None else numbers
    src = block.src_nodes[edges.indices.long()]
    relation = torch.zeros(len(src)) if edges.relation is None else edges.relation
    weight = torch.ones(len(src)) if edges.weight is None else edges.weight
    columns = (numbers.tolist(), src.tolist(), relation.int().tolist(), weight.tolist())
    every = [Edge(*values) for values in zip(*columns, strict=True)]
    return [every[first:last] for first, last in pairwise(edges.indptr.tolist())]


def ids(nodes: Sequence[int] | set[int]) -> Tensor:
    """Nodes as a tensor, ascending."""
    return torch.tensor(sorted(nodes), dtype=torch.int64)
