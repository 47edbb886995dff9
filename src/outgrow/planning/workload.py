"""What is to be trained, as far as its costs depend on it: sizes of the graph, widths of the layers, how it is cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.engine.batches import FULL_GRAPH, BatchConfig
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.graph.topology import Topology
from outgrow.planning.graph_stats.chunk_waves import ChunkingSpec, Matrix, WaveStats
from outgrow.planning.sizes import DatasetSizes, ModelSizes
from outgrow.runtime.distributed.serialization import serialize
from outgrow.strategies.offload.wave_plan import TransferOptions


@dataclass(frozen=True, eq=False)
class PartitionStats:
    """How a graph is dealt out to ``P`` workers.

    Attributes:
        nodes: ``[P]`` int64, nodes of each.
        edges: ``[P]`` int64, their in-edges.
        halo: ``[P, P]`` int64, how many nodes of the second have an edge to one of the first; 0 on the diagonal.
        owner_bytes: Of the list of all nodes' owners, as it is sent to a worker.
    """

    nodes: Matrix
    edges: Matrix
    halo: Matrix
    owner_bytes: int


class OwnerStats(NamedTuple):
    """How `tensor` deals nodes out.

    Attributes:
        nodes: ``[P]`` int64, nodes of each worker.
        is_contiguous: Whether each worker owns a range of them, in the order of workers.
        owner_bytes: Of the list of all nodes' owners, as it is sent to a worker.
    """

    nodes: Matrix
    is_contiguous: bool
    owner_bytes: int


class ChunkStats(NamedTuple):
    """How `offload` cuts a graph.

    Attributes:
        order_bytes: Of the order of the chunks, as it is sent to a worker.
        waves: What a layer moves, by view of the graph: whether nodes have edges to themselves besides.
    """

    order_bytes: int
    waves: dict[bool, WaveStats]


class SamplingSpec(NamedTuple):
    """How mini-batches are drawn.

    Attributes:
        batches: What they are made of.
        views: For each layer, whether nodes have edges to themselves besides.
        seed: Seed of the run.
        partition: How nodes are dealt out to workers.
        cache_rows: Rows of other workers' nodes of which each worker keeps copies, the hottest by `cache_by`.
        cache_by: ``"degree"``, or ``"presampling"``: asked for most in batches of an epoch that is not
            trained.
        time_steps: In how many time steps models travel to the seeds; None where each worker computes its own seeds.
        pregather: Whether rows that several time steps need are asked for once.
    """

    batches: BatchConfig
    views: tuple[bool, ...]
    seed: int
    partition: str
    cache_rows: int = 0
    cache_by: str = "degree"
    time_steps: int | None = None
    pregather: bool = True


class GatherStats(NamedTuple):
    """Rows of raw features that are taken from memory, in the mean.

    Attributes:
        rows: By all workers.
        remote_rows: ``[P, P]`` float64, those that the first worker asks the second for.
        row_entries: Entries that are stored of one of these.
    """

    rows: float
    remote_rows: NDArray[np.float64]
    row_entries: float


class NeighborhoodStats(NamedTuple):
    """What a worker computes of a batch, in the mean, from the bottom layer up.

    Attributes:
        rows: ``[P, L + 1]`` float64, nodes before each layer, and seeds.
        edges: ``[P, L]`` float64, edges of each layer.
    """

    rows: NDArray[np.float64]
    edges: NDArray[np.float64]


class BatchStats(NamedTuple):
    """What batches of full size are like, in the mean over some of them.

    Attributes:
        steps: Batches of an epoch.
        num_full_batches: Batches of full size that have as many seeds.
        neighborhood: What each worker computes.
        gather: For a batch.
        cached_rows: ``[P, P]`` int64, rows of the second worker's nodes of which the first keeps copies.
    """

    steps: int
    num_full_batches: float
    neighborhood: NeighborhoodStats
    gather: GatherStats
    cached_rows: Matrix


class CrossEdgeStats(NamedTuple):
    """What crosses in a layer of a batch that all workers compute together: for each pair ``[P, P]``, to the first.

    Attributes:
        sources: Distinct sources of the second worker.
        destinations: Distinct destinations of the first that have some.
        edges: Edges from these to those.
    """

    sources: Matrix
    destinations: Matrix
    edges: Matrix


class SplitBatchStats(NamedTuple):
    """What batches of full size are like that all workers compute together.

    Attributes:
        steps: Batches of an epoch.
        num_full_batches: Batches of full size that have as many seeds.
        neighborhood: What each worker computes: its own nodes, and edges to them.
        cross_edges: What crosses in each layer of each batch that was looked at.
    """

    steps: int
    num_full_batches: float
    neighborhood: NeighborhoodStats
    cross_edges: tuple[tuple[CrossEdgeStats, ...], ...]


class HotStats(NamedTuple):
    """What the CPU computes for a super-batch, over all workers.

    Attributes:
        nodes: Hot nodes.
        edges: Edges to them.
        gather: Rows of raw features.
    """

    nodes: float
    edges: float
    gather: GatherStats


class OrchestrateStats(NamedTuple):
    """What batches are like whose bottom layer is computed by two sides.

    Attributes:
        steps: Batches of an epoch.
        num_full_batches: Batches of full size that have as many seeds.
        neighborhood: What each worker computes of a batch with hot nodes, these left out.
        cold: For a batch without hot nodes.
        warm: For another.
        hot: For a super-batch.
    """

    steps: int
    num_full_batches: float
    neighborhood: NeighborhoodStats
    cold: GatherStats
    warm: GatherStats
    hot: HotStats


class PartitionStatsSource(Protocol):
    """A graph as far as it is dealt out and cut."""

    def partition_stats(self, method: str, parts: int, spec: SamplingSpec | None = None) -> PartitionStats:
        """How a partition deals it out, by the name of its method, the number of parts, and what is drawn on it."""

    def owner_stats(self, chunks: int, parts: int, *, self_loops: bool) -> OwnerStats:
        """How `tensor` deals it out that reads it in chunks."""

    def chunk_stats(
        self, chunking: ChunkingSpec, views: tuple[bool, ...], parts: int, techniques: TransferOptions
    ) -> ChunkStats:
        """How `offload` cuts it that reads it by some views, of which the first decides."""


class BatchStatsSource(Protocol):
    """A graph as far as batches are drawn of it."""

    def batch_stats(self, spec: SamplingSpec, parts: int) -> BatchStats:
        """What mini-batches are like whose seeds are computed by the workers that own them."""

    def split_batch_stats(self, spec: SamplingSpec, parts: int) -> SplitBatchStats:
        """What mini-batches are like of which each node is computed by the worker that owns it."""

    def orchestrate_stats(self, spec: SamplingSpec, parts: int, hot_ratio: float, super_batch: int) -> OrchestrateStats:
        """What mini-batches are like whose bottom layer is computed by two sides, hot nodes by the CPU."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is to be trained.

    Attributes:
        graph: Sizes of the graph.
        model: Sizes of the model.
        partitioning: How the graph is dealt out and cut.
        sampling: What batches are like.
        batches: What batches are made of.
        seed: Seed of the run.
    """

    graph: DatasetSizes
    model: ModelSizes
    partitioning: PartitionStatsSource
    sampling: BatchStatsSource
    batches: BatchConfig = FULL_GRAPH
    seed: int = 0

    @property
    def input_row_bytes(self) -> float:
        """Of a row of features as the model takes it."""
        return self.graph.row_bytes if self.graph.sparse else self.model.row_bytes

    def sampling_spec(self, partition: str) -> SamplingSpec:
        """How batches are drawn whose seeds each worker has of its own nodes."""
        return SamplingSpec(self.batches, self.model.views, self.seed, partition)


def single_worker_stats(nodes: int, edges: int) -> PartitionStats:
    """All on one worker."""
    return PartitionStats(np.array([nodes]), np.array([edges]), np.zeros((1, 1), dtype=np.int64), 0)


def count_partition(topology: Topology, part: Tensor, parts: int) -> PartitionStats:
    """How a partition deals a graph out: counted.

    Args:
        topology: The graph.
        part: ``[V]`` the worker of each node.
        parts: ``P``.
    """
    graph, owner = ChunkGraph(topology, self_loops=False), part.long()
    own = [(owner == mine).nonzero()[:, 0] for mine in range(parts)]
    halo = np.stack([torch.bincount(owner[graph.source_ids(nodes)], minlength=parts).numpy() for nodes in own])
    np.fill_diagonal(halo, 0)
    return PartitionStats(
        nodes=np.array([len(nodes) for nodes in own]),
        edges=np.array([graph.count_in_edges(nodes) for nodes in own]),
        halo=halo,
        owner_bytes=len(serialize(part)),
    )
