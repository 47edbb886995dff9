"""The statistics of a loaded graph: counted whole, or estimated from degrees and a sample of a large graph."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from outgrow.engine.batches import FULL_GRAPH, BatchConfig
from outgrow.engine.link_options import LinkOptions
from outgrow.engine.shard import model_topology
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.graph.graph import Graph
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.graph.partition.metis import estimate_metis_input_bytes
from outgrow.graph.partition.partition_cache import has_partition, load_or_make_partition
from outgrow.graph.partition.partitioner import Partitioner
from outgrow.graph.partition.presampled import PresampledMetis
from outgrow.graph.topology import Topology
from outgrow.nn.model import Model
from outgrow.ops.sampling.neighborhood import with_in_neighbors
from outgrow.planning.batch_stats import (
    BatchStats,
    LinkStepStats,
    OrchestrateStats,
    SamplingSpec,
    ScoredNeighborhood,
    SplitBatchStats,
)
from outgrow.planning.dataset_sizes import DatasetSizes, dataset_sizes
from outgrow.planning.graph_stats.analytic import AnalyticGraph
from outgrow.planning.graph_stats.chunk_waves import ChunkingSpec, ChunkWaveCounter, Matrix
from outgrow.planning.graph_stats.degree_distribution import DegreeDistribution
from outgrow.planning.graph_stats.link_steps import MOST_PAIRS, DrawnSteps, expect_link_steps
from outgrow.planning.graph_stats.partition_counts import (
    count_partition,
    estimate_neighbours,
    single_worker_stats,
)
from outgrow.planning.graph_stats.sampled_batches import SampledBatches
from outgrow.planning.graph_stats.super_batches import SampledSuperBatches
from outgrow.planning.model_sizes import model_sizes
from outgrow.planning.workload import ChunkStats, OwnerStats, PartitionStats, Workload
from outgrow.runtime.distributed.serialization import serialize
from outgrow.strategies.offload.wave_plan import TransferOptions
from outgrow.strategies.split.presampling import make_partition_presampled_for_links, make_presampled_partition
from outgrow.strategies.tensor.chunk_schedule import assign_owners

_BALL, _MOST_EDGES = 30_000, 2_000_000
_SEED = 0
_MEASURED_PARTS = (1, 2, 3)
"""Numbers of parts below four that METIS runs for, as for powers of four."""
_ROUNDING = 1e-9
"""So that the logarithm of a power of four is not below its exponent."""


def make_workload(graph: Graph, model: Model, batches: BatchConfig = FULL_GRAPH, seed: int = 0) -> Workload:
    """What is to be trained at hand; partitions are made, and batches are drawn, when they are asked for.

    Args:
        graph: It has features and labels.
        model: For this graph.
        batches: What batches are made of.
        seed: Seed of the run.
    """
    graph = replace(graph, topology=model_topology(graph.topology, model))
    counted, sizes = CountedGraph(graph), model_sizes(model, graph)
    return Workload(
        graph=dataset_sizes(graph), model=sizes, partitioning=counted, sampling=counted, batches=batches, seed=seed
    )


class CountedGraph:
    """A graph at hand; see `PartitionStatsSource` and `BatchStatsSource`. What was asked for is kept. Final.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.partition_stats, self.owner_stats = cache(self._partition_stats), cache(self._owner_stats)
        self.chunk_stats, self.batch_stats, self.split_batch_stats = (
            cache(self._chunk_stats),
            cache(self._batch_stats),
            cache(self._split_batch_stats),
        )
        self.orchestrate_stats = cache(self._orchestrate_stats)
        self.scored_neighborhood = cache(self._scored_neighborhood)
        self.link_step_stats = cache(self._link_step_stats)
        self._drawn_steps = cache(lambda spec: DrawnSteps(self.graph.topology, spec))
        # Batches differ in what is cached more often than in who owns what: METIS runs once for all of them.
        self.owners = cache(self._make_owners)

    def _node_owners(self, method: str, parts: int, spec: SamplingSpec | None = None) -> Tensor:
        if method != PresampledMetis.name:
            # Links are in-edges, which parts have equally many of: nodes to train on are not balanced.
            return self.owners(method, parts, spec is not None and spec.links is None, None)
        assert spec is not None
        return self.owners(method, parts, True, (spec.views, spec.batches, spec.links))

    def _make_owners(
        self,
        method: str,
        parts: int,
        seeded: bool,
        presampled: tuple[tuple[bool, ...], BatchConfig, LinkOptions | None] | None,
    ) -> Tensor:
        topology, train = self.graph.topology, self.graph.split.train
        if presampled is not None:
            looped, batches, links = presampled
            views = [topology.sampling_view(self_loops=each) for each in looped]
            found: Partitioner = (
                make_presampled_partition(views, train, batches)
                if links is None
                else make_partition_presampled_for_links(topology, views, batches, links)
            )
        else:
            # As `Strategy.partition_method`, or what is counted would not be what is trained.
            found = WITHOUT_CHUNKS[method].with_seeds(train) if seeded else WITHOUT_CHUNKS[method]
        return load_or_make_partition(topology, found, parts, store=self.graph.whole.store).part

    def _partition_stats(self, method: str, parts: int, spec: SamplingSpec | None = None) -> PartitionStats:
        if parts == 1:
            return single_worker_stats(self.graph.num_nodes, self.graph.num_edges)
        return count_partition(
            self.graph.topology, self._node_owners(method, parts, spec), parts, self.graph.type_borders
        )

    def _owner_stats(self, chunks: int, parts: int, *, self_loops: bool) -> OwnerStats:
        owner = self._owners_by_chunks(chunks, parts, self_loops=self_loops)
        nodes = torch.bincount(owner.long(), minlength=parts).numpy()
        topology = self.graph.topology
        edges = [_count_by_owner(topology, owner, parts, self_loops=looped) for looped in (False, True)]
        return OwnerStats(nodes, bool((owner.diff() >= 0).all()), len(serialize(owner)), np.stack(edges))

    def _chunk_stats(
        self, chunking: ChunkingSpec, views: tuple[bool, ...], parts: int, techniques: TransferOptions
    ) -> ChunkStats:
        owner = self._node_owners(chunking.partition, parts)
        own = [(owner == part).nonzero()[:, 0] for part in range(parts)]
        cutter = ChunkWaveCounter(self.graph.topology, views, own, chunking, self.graph.type_borders)
        return ChunkStats(len(serialize(cutter.order)), {view: cutter.wave_stats(view, techniques) for view in views})

    def _batch_stats(self, spec: SamplingSpec, parts: int) -> BatchStats:
        return self._sample_batches(spec, parts).collect_batch_stats()

    def _split_batch_stats(self, spec: SamplingSpec, parts: int) -> SplitBatchStats:
        return self._sample_batches(spec, parts).collect_split_stats()

    def _orchestrate_stats(
        self, spec: SamplingSpec, parts: int, hot_ratio: float, super_batch: int
    ) -> OrchestrateStats:
        return SampledSuperBatches(
            self._sample_batches(spec, parts), hot_ratio, super_batch
        ).collect_orchestrate_stats()

    def _scored_neighborhood(self, layers: int, *, with_test: bool) -> ScoredNeighborhood:
        topology, split = self.graph.topology, self.graph.split
        needed = torch.unique(torch.cat([split.val, split.test[: len(split.test) * with_test]]))
        rows, edges = [], []
        for _ in range(layers):
            rows.append(len(needed))
            needed, count = with_in_neighbors(needed, topology.indptr, topology.indices)
            edges.append(count)
        return ScoredNeighborhood(np.array(rows[::-1], dtype=np.float64), np.array(edges[::-1], dtype=np.float64))

    def _link_step_stats(self, spec: SamplingSpec, parts: int, chunks: int | None = None) -> LinkStepStats:
        assert spec.links is not None
        drawn = self._drawn_steps(spec._replace(partition=""))
        if drawn.links_per_step * (1 + spec.links.negatives * (not spec.links.ranks_candidates)) > MOST_PAIRS:
            degrees = DegreeDistribution.from_degrees(self.graph.topology.indptr.diff())
            return expect_link_steps(degrees, spec, drawn.num_links, parts, 1 / parts)
        if parts == 1:
            return drawn.collect_stats(torch.zeros(self.graph.num_nodes, dtype=torch.int64), 1)
        if chunks is None:
            return drawn.collect_stats(self._node_owners(spec.partition, parts, spec).long(), parts)
        return drawn.collect_stats(self._owners_by_chunks(chunks, parts, self_loops=spec.views[0]).long(), parts)

    def _owners_by_chunks(self, chunks: int, parts: int, *, self_loops: bool) -> Tensor:
        view = self.graph.topology.view(self_loops=self_loops)
        return assign_owners(view.indptr, view.indices, chunks, parts)

    def _sample_batches(self, spec: SamplingSpec, parts: int) -> SampledBatches:
        return SampledBatches(self.graph, self._node_owners(spec.partition, parts, spec), parts, spec)


def _count_by_owner(topology: Topology, owner: Tensor, parts: int, *, self_loops: bool) -> Matrix:
    """Return ``[P]`` int64: the in-edges of the nodes of each owner."""
    graph = ChunkGraph(topology, self_loops=self_loops)
    counts = [graph.count_in_edges((owner == part).nonzero()[:, 0]) for part in range(parts)]
    return np.array(counts, dtype=np.int64)


def sketch_graph(graph: Graph, sizes: DatasetSizes | None = None, *, store: Path | None = None) -> AnalyticGraph:
    """A graph that has features, modelled by the in-degrees of its nodes and by a part of it.

    Args:
        graph: The graph.
        sizes: Its sizes; None for those of a graph whose nodes have labels.
        store: Store that a run would keep partitions in; None for none.
    """
    degrees = DegreeDistribution.from_degrees(graph.topology.indptr.diff())
    ball = cache(lambda: bfs_ball(graph.topology))

    def edge_locality(method: str, parts: int) -> float:
        if parts == 1:
            return 1.0
        if not method.startswith("metis"):
            return 1 / parts
        return interpolate_edge_share(ball(), parts)

    def making_bytes(method: str, parts: int) -> int:
        if parts == 1 or not method.startswith("metis"):
            return 0
        if store is not None:
            partitioner = WITHOUT_CHUNKS.get(method, WITHOUT_CHUNKS["metis"])
            # Seeds are balanced or not, by the strategy; either file tells that METIS need not run.
            known = (partitioner, partitioner.with_seeds(graph.split.train))
            if any(has_partition(each, parts, store=store) for each in known):
                return 0
        topology = graph.topology
        return estimate_metis_input_bytes(topology.num_nodes, estimate_neighbours(topology), topology.num_edges)

    return AnalyticGraph(sizes or dataset_sizes(graph), degrees, edge_locality, making_bytes)


def bfs_ball(topology: Topology) -> Topology:
    """Nodes around one of them, hop by hop, with the edges among these; some 30,000, fewer where they are dense."""
    graph = ChunkGraph(topology, self_loops=False)
    generator = torch.Generator().manual_seed(_SEED)
    order = torch.randperm(topology.num_nodes, generator=generator)
    order = order[topology.indptr.diff()[order] > 0]
    mean = max(1.0, topology.num_edges / max(1, topology.num_nodes))
    most = max(1000, min(_BALL, topology.num_nodes, round(_MOST_EDGES / mean)))
    inside, begun = order[:0], 0
    frontier = inside
    while len(inside) < min(most, topology.num_nodes):
        if not len(frontier):  # one component is used up, or none is begun
            if begun >= len(order):
                break
            step = 1 + begun  # components that are small are taken many at once
            frontier, begun = order[begun : begun + step], begun + step
        inside = torch.unique(torch.cat([inside, frontier]))
        around = graph.source_ids(frontier)
        around = around[~torch.isin(around, inside)]
        room = most - len(inside)
        frontier = around if len(around) <= room else around[torch.randperm(len(around), generator=generator)[:room]]
    return _induced_subgraph(topology, inside)


def _induced_subgraph(topology: Topology, nodes: Tensor) -> Topology:
    """The edges among some nodes, ascending."""
    begin, count = topology.indptr[nodes], topology.indptr[nodes + 1] - topology.indptr[nodes]
    ends = count.cumsum(0)
    at = torch.arange(int(count.sum())) + (begin - (ends - count)).repeat_interleave(count)
    source, target = topology.indices[at].long(), torch.arange(len(nodes)).repeat_interleave(count)
    place = torch.searchsorted(nodes, source).clamp(max=len(nodes) - 1)
    here = nodes[place] == source
    sizes = torch.bincount(target[here], minlength=len(nodes))
    indptr = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return Topology(indptr=indptr, indices=place[here].int())


def interpolate_edge_share(ball: Topology, parts: int) -> float:
    """Share of the edges that METIS leaves within parts: measured for powers of four, interpolated in between.

    Many numbers of chunks are tried for one plan, and each would cost a run of METIS.
    """
    if parts in _MEASURED_PARTS:
        return internal_edge_share(ball, parts)
    lower = 4 ** int(math.log(parts, 4) + _ROUNDING)
    below = internal_edge_share(ball, lower)
    if parts == lower or lower >= ball.num_nodes:
        return below
    above = internal_edge_share(ball, 4 * lower)
    return below + (above - below) * math.log(parts / lower, 4)


@cache
def internal_edge_share(ball: Topology, parts: int) -> float:
    """Share of the edges that METIS leaves within parts."""
    part = WITHOUT_CHUNKS["metis"].partition_nodes(ball, min(parts, ball.num_nodes)).part.long()
    target = torch.arange(ball.num_nodes).repeat_interleave(ball.indptr.diff())
    return float((part[ball.indices.long()] == part[target]).double().mean()) if ball.num_edges else 1.0
