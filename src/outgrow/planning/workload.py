"""The workload: sizes of the graph and the model, and the statistics of partitions and batches that costs depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from outgrow.engine.batches import FULL_GRAPH, BatchConfig
from outgrow.engine.last_layer import MOST_ROWS
from outgrow.engine.link_options import LinkOptions
from outgrow.inference.modes import AUTO
from outgrow.planning.graph_stats.chunk_waves import ChunkingSpec, Matrix, WaveStats
from outgrow.planning.link_work import LinkWork
from outgrow.planning.sizes import DatasetSizes, ModelSizes
from outgrow.strategies.offload.wave_plan import TransferOptions


@dataclass(frozen=True, eq=False)
class PartitionStats:
    """The statistics of a partition among ``P`` workers.

    Attributes:
        nodes: ``[P]`` int64, nodes of each worker.
        edges: ``[P]`` int64, their in-edges.
        halo: ``[P, P]`` int64, nodes of the second worker with an edge to a node of the first; 0 on the diagonal.
        owner_bytes: Size of the list of all nodes' owners, as it is sent to a worker.
        typed_halo: ``[T, P, P]`` int64, the halo by the type of its nodes; None if types are not told apart.
        making_bytes: Bytes that the worker holds which makes the partition, beside its process.
    """

    nodes: Matrix
    edges: Matrix
    halo: Matrix
    owner_bytes: int
    typed_halo: Matrix | None = None
    making_bytes: int = 0


class OwnerStats(NamedTuple):
    """The statistics of the owners that `tensor` assigns to nodes.

    Attributes:
        nodes: ``[P]`` int64, nodes of each worker.
        is_contiguous: Whether each worker owns a range of nodes, in the order of workers.
        owner_bytes: Size of the list of all nodes' owners, as it is sent to a worker.
        edges: ``[2, P]`` int64, in-edges of the nodes of each worker, without and with a self-loop for each.
    """

    nodes: Matrix
    is_contiguous: bool
    owner_bytes: int
    edges: Matrix


class ChunkStats(NamedTuple):
    """The statistics of the chunks that `offload` cuts a graph into.

    Attributes:
        order_bytes: Size of the order of the chunks, as it is sent to a worker.
        waves: Rows that a layer moves, by view of the graph: with self-loops (True) or without.
    """

    order_bytes: int
    waves: dict[bool, WaveStats]


class SamplingSpec(NamedTuple):
    """The options by which mini-batches are sampled.

    Attributes:
        batches: Batch size and fan-outs.
        views: For each layer, whether self-loops are added.
        seed: Seed of the run.
        partition: Name of the partition method.
        cache_rows: Rows that a worker caches, the hottest by `cache_by`: of other hosts' nodes; in `split` of its own.
        cache_by: ``"degree"``, or ``"presampling"``: the rows requested most in an epoch that is sampled first.
        time_steps: Time steps in which models migrate to the seeds; None if each worker computes its own seeds.
        pregather: Whether rows that several time steps need are requested only once.
        workers_per_host: Consecutive workers that share a host, and so the features.
        links: How links are trained on; None for nodes.
    """

    batches: BatchConfig
    views: tuple[bool, ...]
    seed: int
    partition: str
    cache_rows: int = 0
    cache_by: str = "degree"
    time_steps: int | None = None
    pregather: bool = True
    workers_per_host: int = 1
    links: LinkOptions | None = None


class GatherStats(NamedTuple):
    """Mean numbers of rows of raw features that are gathered.

    Attributes:
        rows: Rows of all workers.
        remote_rows: ``[P, P]`` float64, rows of the second worker's nodes that the first needs and has not cached.
        row_entries: Stored entries of one of these.
    """

    rows: float
    remote_rows: NDArray[np.float64]
    row_entries: float


class NeighborhoodStats(NamedTuple):
    """Mean sizes of the part of a batch that each worker computes, from the bottom layer up.

    Attributes:
        rows: ``[P, L + 1]`` float64, input nodes of each layer, then the seeds.
        edges: ``[P, L]`` float64, edges of each layer.
    """

    rows: NDArray[np.float64]
    edges: NDArray[np.float64]


class BatchStats(NamedTuple):
    """Mean statistics over some batches of full size.

    Attributes:
        steps: Batches of an epoch.
        num_full_batches: Seeds of an epoch, divided by those of a full batch.
        neighborhood: Sizes of what each worker computes.
        gather: Rows gathered for a batch.
        cached_rows: ``[P, P]`` int64, rows of the second worker's nodes that the first caches.
        time_step_waits: Edges of the busiest worker of each time step, added up, over those of the busiest worker of
            the batch, 1 or more; 1 without time steps.
    """

    steps: int
    num_full_batches: float
    neighborhood: NeighborhoodStats
    gather: GatherStats
    cached_rows: Matrix
    time_step_waits: float = 1.0


class CrossEdgeStats(NamedTuple):
    """Edges between workers in a layer of a batch that all compute together: ``[P, P]``, from the second to the first.

    Attributes:
        sources: Distinct sources at the second worker.
        destinations: Distinct destinations at the first worker with such a source.
        edges: Edges between them.
        typed_sources: ``[T, P, P]``, the sources by their type; None if types are not told apart.
    """

    sources: Matrix
    destinations: Matrix
    edges: Matrix
    typed_sources: Matrix | None = None


class SplitBatchStats(NamedTuple):
    """Mean statistics of batches of full size that all workers compute together.

    Attributes:
        steps: Batches of an epoch.
        num_full_batches: Seeds of an epoch, divided by those of a full batch.
        neighborhood: Sizes of what each worker computes: its own nodes and their in-edges.
        cross_edges: Edges between workers, by sampled batch and layer.
        cached_share: Share of the rows of own nodes in a batch that the worker has in its cache.
    """

    steps: int
    num_full_batches: float
    neighborhood: NeighborhoodStats
    cross_edges: tuple[tuple[CrossEdgeStats, ...], ...]
    cached_share: float = 0.0


class HotStats(NamedTuple):
    """The work of the CPU for a super-batch, over all workers.

    Attributes:
        nodes: Hot nodes.
        edges: In-edges of hot nodes.
        gather: Rows of raw features gathered.
        uses: Hot nodes of each of its batches, in all.
    """

    nodes: float
    edges: float
    gather: GatherStats
    uses: float


class OrchestrateStats(NamedTuple):
    """Mean statistics of batches whose bottom layer is divided between the CPU (hot nodes) and the device.

    Attributes:
        steps: Batches of an epoch.
        num_full_batches: Seeds of an epoch, divided by those of a full batch.
        neighborhood: Sizes of what the device of each worker computes once hot nodes are left to the CPU.
        cold: Rows gathered for a batch of the first super-batch of a run, in which no node is hot.
        warm: Rows gathered for any later batch.
        hot: The CPU's work for a super-batch.
    """

    steps: int
    num_full_batches: float
    neighborhood: NeighborhoodStats
    cold: GatherStats
    warm: GatherStats
    hot: HotStats

    def num_super_batches(self, super_batch: int) -> float:
        """Return the super-batches of an epoch, of at most so many batches."""
        return max(1.0, self.num_full_batches / super_batch)


class LinkStepStats(NamedTuple):
    """Mean statistics of the full batches, or of the steps over the whole graph, of an epoch of links.

    Attributes:
        steps: Steps of an epoch.
        num_full_steps: Links of an epoch, divided by those of a step.
        links: ``[P]`` float64, links that each worker scores.
        queries: ``[P]`` float64, distinct queries that it scores with candidates; 0 if links have negatives.
        candidates: Mean number of candidates of a query.
        read_rows: ``[P]`` float64, own nodes whose rows some worker reads.
        fetched_rows: ``[P, P]`` float64, rows of the second worker's nodes that the first reads; 0 on the diagonal.
    """

    steps: int
    num_full_steps: float
    links: NDArray[np.float64]
    queries: NDArray[np.float64]
    candidates: float
    read_rows: NDArray[np.float64]
    fetched_rows: NDArray[np.float64]


class ScoredNeighborhood(NamedTuple):
    """The neighbourhood of nodes that are scored, with all neighbours, over all workers.

    Attributes:
        rows: ``[L]`` float64, nodes whose output each layer computes, from the bottom layer up.
        edges: ``[L]`` float64, their in-edges.
    """

    rows: NDArray[np.float64]
    edges: NDArray[np.float64]


class PartitionStatsSource(Protocol):
    """A source of statistics of partitions and chunks of a graph."""

    def partition_stats(self, method: str, parts: int, spec: SamplingSpec | None = None) -> PartitionStats:
        """Return the statistics of a partition into ``parts``.

        Args:
            method: Name of the partition method.
            parts: Number of parts.
            spec: How batches are sampled, whose seeds are balanced; None where whole graphs are trained.
        """

    def owner_stats(self, chunks: int, parts: int, *, self_loops: bool) -> OwnerStats:
        """Return the statistics of the owners that `tensor` assigns with so many chunks."""

    def chunk_stats(
        self, chunking: ChunkingSpec, views: tuple[bool, ...], parts: int, techniques: TransferOptions
    ) -> ChunkStats:
        """Return the statistics of `offload`'s chunks; the first view decides their order."""


class BatchStatsSource(Protocol):
    """A source of statistics of mini-batches of a graph."""

    def batch_stats(self, spec: SamplingSpec, parts: int) -> BatchStats:
        """Return the statistics of batches whose seeds are computed by the workers that own them."""

    def split_batch_stats(self, spec: SamplingSpec, parts: int) -> SplitBatchStats:
        """Return the statistics of batches in which the owner of each node computes it."""

    def orchestrate_stats(self, spec: SamplingSpec, parts: int, hot_ratio: float, super_batch: int) -> OrchestrateStats:
        """Return the statistics of batches whose hot nodes the CPU computes in the bottom layer."""

    def link_step_stats(self, spec: SamplingSpec, parts: int, chunks: int | None = None) -> LinkStepStats:
        """Return the statistics of steps of links; by the owners that `tensor` assigns with so many chunks if given."""

    def scored_neighborhood(self, layers: int, *, with_test: bool) -> ScoredNeighborhood:
        """Return the neighbourhood of the validation nodes, and of the test nodes if ``with_test``.

        Of links the nodes whose rows their ranking reads.
        """


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model to train on a graph, as far as costs depend on it.

    Attributes:
        graph: Sizes of the graph.
        model: Sizes of the model.
        partitioning: Statistics of partitions and chunks.
        sampling: Statistics of batches.
        batches: Batch size and fan-outs.
        seed: Seed of the run.
        evaluation: How validation and test nodes are evaluated in runs of mini-batches.
        evaluations_per_epoch: How often validation nodes are evaluated for each epoch.
        metric_bytes: Bytes of what metrics keep of the scored nodes, in the HOST tier of worker 0.
        links: The links to train on and to rank; None for nodes.
    """

    graph: DatasetSizes
    model: ModelSizes
    partitioning: PartitionStatsSource
    sampling: BatchStatsSource
    batches: BatchConfig = FULL_GRAPH
    seed: int = 0
    evaluation: tuple[str, str] = (AUTO, AUTO)
    evaluations_per_epoch: float = 0.0
    metric_bytes: int = 0
    links: LinkWork | None = None

    @property
    def input_row_bytes(self) -> float:
        """Bytes of a row of features in the form that the model takes."""
        # Dense features are converted to the model's dtype; sparse rows stay as they are stored.
        if self.graph.in_blocks:
            return self.graph.row_entries * self.model.number_bytes
        return self.graph.row_bytes if self.graph.sparse else self.model.row_bytes

    @property
    def last_shares(self) -> tuple[float, float]:
        """Shares of the nodes and of the edges that the last layer computes in training by `full`."""
        if self.links is not None:
            # As `outgrow.engine.last_layer.find_read_rows` decides: sums are over all edges nevertheless.
            stats = self.link_step_stats("", 1)
            assert stats is not None
            read = float(stats.read_rows.sum()) / max(1, self.graph.nodes)
            return (read if read <= MOST_ROWS else 1.0), 1.0
        share = self.graph.target_nodes / max(1, self.graph.nodes)
        # As `outgrow.engine.last_layer.find_last_rows` decides.
        if not self.model.reads_types or len(self.model.layers) == 1 or not 0 < share <= MOST_ROWS:
            return 1.0, 1.0
        return share, self.graph.target_edges / max(1, self.graph.edges)

    def link_step_stats(self, partition: str, parts: int, chunks: int | None = None) -> LinkStepStats | None:
        """Return the statistics of steps of links: see `BatchStatsSource.link_step_stats`; None for nodes."""
        if self.links is None:
            return None
        return self.sampling.link_step_stats(self.sampling_spec(partition), parts, chunks)

    def sampling_spec(self, partition: str) -> SamplingSpec:
        """Return the options of batches in which each worker has seeds among its own nodes."""
        links = None if self.links is None else self.links.options
        return SamplingSpec(self.batches, self.model.views, self.seed, partition, links=links)
