"""Where the figures of a workload come from: a graph at hand, counted whole."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from outgrow.engine.batches import FULL_GRAPH, BatchConfig
from outgrow.graph.graph import Graph
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.graph.partition.partition_cache import load_or_make_partition
from outgrow.graph.partition.presampled import PresampledMetis
from outgrow.nn.model import Model
from outgrow.planning.graph_stats.chunk_waves import ChunkingSpec, ChunkWaveCounter
from outgrow.planning.graph_stats.sampled_batches import SampledBatches, SampledSuperBatches
from outgrow.planning.sizes import dataset_sizes, model_sizes
from outgrow.planning.workload import (
    BatchStats,
    ChunkStats,
    OrchestrateStats,
    OwnerStats,
    PartitionStats,
    SamplingSpec,
    SplitBatchStats,
    Workload,
    count_partition,
    single_worker_stats,
)
from outgrow.runtime.distributed.serialization import serialize
from outgrow.strategies.offload.wave_plan import TransferOptions
from outgrow.strategies.split.strategy import make_presampled_partition
from outgrow.strategies.tensor.chunk_schedule import assign_owners


def make_workload(graph: Graph, model: Model, batches: BatchConfig = FULL_GRAPH, seed: int = 0) -> Workload:
    """What is to be trained at hand; partitions are made, and batches are drawn, when they are asked for.

    Args:
        graph: It has features and labels.
        model: For this graph.
        batches: What batches are made of.
        seed: Seed of the run.
    """
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

    def _node_owners(self, method: str, parts: int, spec: SamplingSpec | None = None) -> Tensor:
        topology = self.graph.topology
        if method != PresampledMetis.name:
            return load_or_make_partition(topology, WITHOUT_CHUNKS[method], parts, store=self.graph.store).part
        assert spec is not None
        views = [topology.view(self_loops=looped) for looped in spec.views]
        found = make_presampled_partition(views, self.graph.split.train, spec.batches)
        return load_or_make_partition(topology, found, parts, store=self.graph.store).part

    def _partition_stats(self, method: str, parts: int, spec: SamplingSpec | None = None) -> PartitionStats:
        if parts == 1:
            return single_worker_stats(self.graph.num_nodes, self.graph.num_edges)
        return count_partition(self.graph.topology, self._node_owners(method, parts, spec), parts)

    def _owner_stats(self, chunks: int, parts: int, *, self_loops: bool) -> OwnerStats:
        view = self.graph.topology.view(self_loops=self_loops)
        owner = assign_owners(view.indptr, view.indices, chunks, parts)
        nodes = torch.bincount(owner.long(), minlength=parts).numpy()
        return OwnerStats(nodes, bool((owner.diff() >= 0).all()), len(serialize(owner)))

    def _chunk_stats(
        self, chunking: ChunkingSpec, views: tuple[bool, ...], parts: int, techniques: TransferOptions
    ) -> ChunkStats:
        owner = self._node_owners(chunking.partition, parts)
        own = [(owner == part).nonzero()[:, 0] for part in range(parts)]
        cutter = ChunkWaveCounter(self.graph.topology, views, own, chunking)
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

    def _sample_batches(self, spec: SamplingSpec, parts: int) -> SampledBatches:
        return SampledBatches(self.graph, self._node_owners(spec.partition, parts, spec), parts, spec)
