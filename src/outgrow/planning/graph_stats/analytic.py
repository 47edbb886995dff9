"""Statistics of a graph that is known by its degree distribution.

All are expectations. The model: edges begin at nodes in proportion to their degrees, independently of partitions,
except that a given share of edges stays within its part.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from outgrow.graph.sampling.edge_sampler import NEIGHBOR
from outgrow.planning.batch_stats import (
    BatchStats,
    CrossEdgeStats,
    GatherStats,
    HotStats,
    LinkStepStats,
    NeighborhoodStats,
    OrchestrateStats,
    SamplingSpec,
    ScoredNeighborhood,
    SplitBatchStats,
)
from outgrow.planning.dataset_sizes import DatasetSizes
from outgrow.planning.graph_stats.chunk_waves import ChunkingSpec, Matrix, WaveStats
from outgrow.planning.graph_stats.degree_distribution import DegreeDistribution, NeighborhoodLevel, Numbers
from outgrow.planning.graph_stats.link_steps import expect_link_steps, links_of_batch, seed_share
from outgrow.planning.workload import ChunkStats, OwnerStats, PartitionStats
from outgrow.strategies.offload.memory import WaveSizes
from outgrow.strategies.offload.wave_plan import TransferOptions
from outgrow.strategies.offload.wave_transposes import transpose_file_bytes

_UNEVEN = 1.05
"""Size of the largest part over the mean."""
_STAYS = 0.25
"""Share of the rows common to several chunks that the next wave finds in place."""
_PER_ROW, _PER_EDGE = 45, 12
"""Bytes of a row and of an edge in a wave file."""


class AnalyticGraph:
    """Source of statistics (`PartitionStatsSource`, `BatchStatsSource`) of a graph known by a few numbers. Final.

    Args:
        sizes: Sizes of the graph.
        degrees: Distribution of the degrees.
        edge_locality: Returns the share of edges within parts, by partition method and number of parts.
        making_bytes: Returns the bytes held while a partition is made, by the same.
    """

    def __init__(
        self,
        sizes: DatasetSizes,
        degrees: DegreeDistribution,
        edge_locality: Callable[[str, int], float],
        making_bytes: Callable[[str, int], int] = lambda method, parts: 0,
    ) -> None:
        self.sizes = sizes
        self.degrees = degrees
        # Finding a locality may take a METIS partition, so it is done once.
        self.edge_locality = cache(edge_locality)
        self._making_bytes = cache(making_bytes)
        self.partition_stats = cache(self._partition_stats)
        self.chunk_stats = cache(self._chunk_stats)
        self.batch_stats = cache(self._batch_stats)
        self.split_batch_stats = cache(self._split_batch_stats)
        self.orchestrate_stats = cache(self._orchestrate_stats)

    def owner_stats(self, chunks: int, parts: int, *, self_loops: bool) -> OwnerStats:
        """Return an even assignment of nodes; the expected ranges are not known."""
        nodes, edges = (_split_evenly(count, parts) for count in (self.sizes.nodes, self.sizes.edges))
        return OwnerStats(nodes, False, self._owner_bytes(parts), np.stack([edges, edges + nodes]))

    def _partition_stats(self, method: str, parts: int, spec: SamplingSpec | None = None) -> PartitionStats:
        away = self._remote_edge_share(method, parts)
        of_each = self.degrees.expected_sources(away) / parts if parts > 1 else 0.0
        halo = np.full((parts, parts), round(of_each))
        np.fill_diagonal(halo, 0)
        edges = _split_evenly(self.sizes.edges, parts)
        # Nodes are balanced, edges are not; the worst worker decides, so one part gets more.
        edges[0] = round(edges[0] * (_UNEVEN if parts > 1 else 1))
        made = self._making_bytes(method, parts)
        nodes = _split_evenly(self.sizes.nodes, parts)
        return PartitionStats(nodes, edges, halo, self._owner_bytes(parts), making_bytes=made)

    def _remote_edge_share(self, method: str, parts: int) -> float:
        """Return the share of a part's edges that lead to one given other part."""
        return (1 - self.edge_locality(method, parts)) / max(1, parts - 1)

    def _owner_bytes(self, parts: int) -> int:
        # One byte a node while an int8 holds all ranks.
        return self.sizes.nodes * (1 if parts <= 128 else 2)

    def _count_part_sources(self, method: str, parts: int) -> float:
        """Return the sum of the parts' numbers of distinct sources: ``sum_i |N_i|``."""
        own = self.degrees.expected_sources(self.edge_locality(method, parts))
        return own + (parts - 1) * self.degrees.expected_sources(self._remote_edge_share(method, parts))

    def _chunk_stats(
        self, chunking: ChunkingSpec, views: tuple[bool, ...], parts: int, techniques: TransferOptions
    ) -> ChunkStats:
        chunks = chunking.chunks
        sizes = self.sizes
        alone = self._count_part_sources(chunking.partition, parts * chunks)
        # A wave reads as a union of chunks of all workers: fewer rows than these apart, more than a part of the
        # graph cut into waves. The geometric mean lies between.
        union = max(float(sizes.nodes), (alone * self._count_part_sources(chunking.partition, chunks)) ** 0.5)
        loaded = union if techniques.sharing else alone
        # Each node is loaded at least once; only what exceeds that can be reused.
        if techniques.reuse and chunks > 1:
            loaded -= _STAYS * (loaded - min(loaded, sizes.nodes))
        between = (alone - alone / parts) if techniques.sharing else 0.0
        sent = np.full((parts, parts), round(between / max(1, parts * (parts - 1))))
        np.fill_diagonal(sent, 0)
        rows, edges = -(-sizes.nodes // (parts * chunks)), round(_UNEVEN * sizes.edges / (parts * chunks))
        load, remote = round(union / (parts * chunks)), round(between / (parts * chunks))
        if not techniques.sharing:
            load = round(alone / (parts * chunks))
        extent = WaveSizes(
            num_slots=load * (1 + techniques.overlap) + remote,
            num_rows=rows,
            num_edges=edges,
            evicted_rows=load,
            listed_rows=load + 2 * remote,
            loaded_rows=load * chunks,
            edge_row_bytes=sizes.edge_row_bytes,
        )
        num_bytes = _PER_ROW * (load + remote) + (_PER_EDGE + sizes.edge_row_bytes) * edges + 16 * rows
        files = np.full((parts, chunks), num_bytes, dtype=np.int64)
        transposed = np.full((parts, chunks), transpose_file_bytes(load + remote, edges), dtype=np.int64)
        waves = WaveStats(round(loaded), sent, sent, files, transposed, extent)
        return ChunkStats(8 * parts * chunks, dict.fromkeys(views, waves))

    def scored_neighborhood(self, layers: int, *, with_test: bool) -> ScoredNeighborhood:
        """Return the expected neighbourhood of scored nodes; of an unknown number, as many as are trained on."""
        sizes = self.sizes
        scored = sizes.val + sizes.test * with_test or sizes.train * (1 + with_test)
        levels = self.degrees.neighborhood_levels(min(scored, sizes.nodes), [-1] * layers, None, NEIGHBOR)
        return ScoredNeighborhood(
            np.array([self.degrees.count_nodes(level.share) for level in levels[-2::-1]]),
            np.array([level.edges for level in levels[:0:-1]]),
        )

    def link_step_stats(self, spec: SamplingSpec, parts: int, chunks: int | None = None) -> LinkStepStats:
        """Return what is expected of steps of links; owners of a number of chunks are as good as any."""
        locality = 1.0 if parts == 1 else self.edge_locality("range-edges" if chunks else spec.partition, parts)
        return expect_link_steps(self.degrees, spec, self.sizes.train, parts, locality)

    def _neighborhood_levels(
        self, spec: SamplingSpec, seeds: float, hot: Numbers | None = None
    ) -> list[NeighborhoodLevel]:
        """Return the levels of so many seeds; of the ends of so many links, and of their negatives."""
        hops, sampler = _total_fanouts(spec), spec.batches.sampler
        if spec.links is not None:
            # Workers compute the ends that they own, of links of all: as many as the whole batch has, divided.
            whole = links_of_batch(spec, self.sizes.train)
            share = seed_share(self.degrees, spec.links, whole) * (seeds / whole)
            return self.degrees.neighborhood_levels(share, hops, hot, sampler)
        if not spec.batches.is_temporal:
            return self.degrees.neighborhood_levels(seeds, hops, hot, sampler)
        # An upper bound: seeds of different times share no rows, and all in-edges are taken to be before them.
        alone = self.degrees.neighborhood_levels(1, hops, None, sampler)
        return [NeighborhoodLevel(level.share * seeds, level.edges * seeds) for level in alone]

    def _batch_sizes(self, spec: SamplingSpec) -> tuple[int, float, float]:
        """Return the seeds of a batch, the batches of an epoch, and the seeds of an epoch in full batches."""
        size = min(spec.batches.size or self.sizes.train, self.sizes.train)
        return size, -(-self.sizes.train // max(1, size)), self.sizes.train / max(1, size)

    def _neighborhood_stats(
        self, spec: SamplingSpec, levels: list[NeighborhoodLevel], parts: int, scale: float = 1.0
    ) -> NeighborhoodStats:
        rows = [self.degrees.count_nodes(level.share) * scale for level in reversed(levels)]
        edges = [level.edges * scale for level in reversed(levels[1:])]
        # A view with self-loops has one more edge for each destination.
        looped = [count + row * loop for count, row, loop in zip(edges, rows[1:], spec.views, strict=True)]
        return NeighborhoodStats(np.tile(rows, (parts, 1)), np.tile(looped, (parts, 1)))

    def _gather_stats(
        self, share: Numbers, spec: SamplingSpec, parts: int, cached_share: Numbers | None = None
    ) -> GatherStats:
        """Return the rows gathered for a batch with these shares of nodes; cached rows are not requested."""
        # A node is local if every hop on the path from its seed stayed within the part.
        stays = self.edge_locality(spec.partition, parts) ** len(spec.views)
        rows = self.degrees.count_nodes(share)
        requested = share if cached_share is None else share * (1 - cached_share)
        each = self.degrees.count_nodes(requested) * (1 - stays) / max(1, parts - 1)
        matrix = np.full((parts, parts), each)
        np.fill_diagonal(matrix, 0)
        return GatherStats(rows * parts, matrix, self.sizes.row_entries)

    def _batch_stats(self, spec: SamplingSpec, parts: int) -> BatchStats:
        seeds, steps, full = self._batch_sizes(spec)
        times = spec.time_steps or 1
        # A worker computes its seeds of the batch, those of each time step by themselves.
        levels = self._neighborhood_levels(spec, seeds / (parts * times))
        levels = [NeighborhoodLevel(times * level.share, times * level.edges) for level in levels]
        # Gathered together, the groups of all time steps share rows: those of the worker's seeds.
        together = spec.pregather or times == 1
        share = self._neighborhood_levels(spec, seeds / parts)[-1].share if together else levels[-1].share
        copies = None
        if spec.cache_rows:
            copies = self.degrees.hottest_share(spec.cache_rows, self.degrees.degree)
        host = np.arange(parts) // spec.workers_per_host
        kept = spec.cache_rows // max(1, parts - spec.workers_per_host) * (host[:, None] != host)
        gathered = self._gather_stats(share, spec, parts, copies)
        return BatchStats(int(steps), full, self._neighborhood_stats(spec, levels, parts), gathered, kept)

    def _split_batch_stats(self, spec: SamplingSpec, parts: int) -> SplitBatchStats:
        seeds, steps, full = self._batch_sizes(spec)
        levels = self._neighborhood_levels(spec, seeds)
        away = self._remote_edge_share(spec.partition, parts)
        # The workers compute one batch together, each a part of the nodes.
        grown = self._neighborhood_stats(spec, levels, parts, 1 / parts)
        crossed = []
        for sources, destinations in zip(levels[:0:-1], levels[-2::-1], strict=True):
            given = self.degrees.count_nodes(sources.share)
            taken = self.degrees.count_nodes(destinations.share)
            # A node counts if at least one of its edges leads to the other part: mean edges per node as exponent.
            one, other = (
                _uniform_pairs(count / parts * (1 - (1 - away) ** (sources.edges / max(1.0, count))), parts)
                for count in (given, taken)
            )
            crossed.append(CrossEdgeStats(one, other, _uniform_pairs(sources.edges * away / parts, parts)))
        # The caches of all workers hold the hottest nodes, since each has those of its own.
        hot = self.degrees.hottest_share(parts * spec.cache_rows, self.degrees.degree)
        read = levels[-1].share
        cached = self.degrees.count_nodes(read * hot) / max(1.0, self.degrees.count_nodes(read))
        return SplitBatchStats(int(steps), full, grown, (tuple(crossed),), cached)

    def _orchestrate_stats(
        self, spec: SamplingSpec, parts: int, hot_ratio: float, super_batch: int
    ) -> OrchestrateStats:
        seeds, steps, full = self._batch_sizes(spec)
        cold = self._neighborhood_levels(spec, seeds / parts)
        # Destinations of the bottom layer: the nodes whose computation can be reused.
        bottom = cold[-2].share
        hot = self.degrees.hottest_share(hot_ratio * self.sizes.nodes / parts, bottom)
        warm = self._neighborhood_levels(spec, seeds / parts, hot)
        # The CPU computes a hot node once per super-batch, if any of its batches contains it.
        batches = max(1, min(super_batch, full))
        queue = hot * (1 - (1 - bottom) ** batches)
        nodes = self.degrees.count_nodes(queue)
        below = self.degrees.sample_hop(queue, _total_fanouts(spec)[-1], spec.batches.sampler)
        gathered = [
            self._gather_stats(share, spec, parts)
            for share in (cold[-1].share, warm[-1].share, 1 - (1 - queue) * (1 - below.share))
        ]
        uses = batches * self.degrees.count_nodes(hot * bottom)
        made = HotStats(nodes * parts, below.edges * parts, gathered[2], uses * parts)
        grown = self._neighborhood_stats(spec, warm, parts)
        return OrchestrateStats(int(steps), full, grown, gathered[0], gathered[1], made)


def _total_fanouts(spec: SamplingSpec) -> list[int]:
    """Return the fan-out of each hop; of fan-outs by relation the total, -1 if one of them is."""
    hops = spec.batches.fanout_per_hop(len(spec.views))
    return [hop if isinstance(hop, int) else -1 if -1 in hop else sum(hop) for hop in hops]


def _uniform_pairs(count: float, parts: int) -> Matrix:
    """Return ``[P, P]``: the same count for each pair of workers, 0 on the diagonal."""
    found = np.full((parts, parts), round(count), dtype=np.int64)
    np.fill_diagonal(found, 0)
    return found


def _split_evenly(total: int, parts: int) -> Matrix:
    """Return ``[P]``: a total split as evenly as possible, the first parts larger by 1."""
    return np.array([total // parts + (part < total % parts) for part in range(parts)], dtype=np.int64)
