"""Statistics of mini-batches that the planner estimates epochs from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.engine.batches import BatchConfig
from outgrow.engine.link_options import LinkOptions
from outgrow.planning.graph_stats.chunk_waves import Matrix


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
        uses: Sum of the hot nodes of its batches.
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
