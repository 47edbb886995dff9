"""The workload: sizes of the graph and the model, and the statistics of partitions and batches that costs depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from outgrow.engine.batches import FULL_GRAPH, BatchConfig
from outgrow.engine.last_layer import FEW_ROWS, MOST_ROWS
from outgrow.inference.modes import AUTO
from outgrow.planning.batch_stats import (
    BatchStats,
    LinkStepStats,
    OrchestrateStats,
    SamplingSpec,
    ScoredNeighborhood,
    SplitBatchStats,
)
from outgrow.planning.dataset_sizes import DatasetSizes
from outgrow.planning.graph_stats.chunk_waves import ChunkingSpec, Matrix, WaveStats
from outgrow.planning.link_work import LinkWork
from outgrow.planning.model_sizes import ModelSizes
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


WHOLE_LAYER = (1.0, 1.0)
"""Shares of the nodes and of the edges of a layer that computes all."""


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
        # As `outgrow.engine.last_layer.find_last_rows` decides; nodes to train on have as many edges as others.
        graph, typed = self.graph, self.model.reads_types
        share = (graph.target_nodes if typed else graph.train) / max(1, graph.nodes)
        if len(self.model.layers) == 1 or not 0 < share <= (MOST_ROWS if typed else FEW_ROWS):
            return WHOLE_LAYER
        return share, graph.target_edges / max(1, graph.edges) if typed else share

    def link_step_stats(self, partition: str, parts: int, chunks: int | None = None) -> LinkStepStats | None:
        """Return the statistics of steps of links: see `BatchStatsSource.link_step_stats`; None for nodes."""
        if self.links is None:
            return None
        return self.sampling.link_step_stats(self.sampling_spec(partition), parts, chunks)

    def sampling_spec(self, partition: str) -> SamplingSpec:
        """Return the options of batches in which each worker has seeds among its own nodes."""
        links = None if self.links is None else self.links.options
        return SamplingSpec(self.batches, self.model.views, self.seed, partition, links=links)
