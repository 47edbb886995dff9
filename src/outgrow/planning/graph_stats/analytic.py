"""Statistics from a degree distribution.

All are expectations. Neighbours are drawn in proportion to degrees, with no regard to where they live, but that a
share of edges stay in their part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.planning.graph_stats.chunk_waves import ChunkingSpec, Matrix, WaveStats
from outgrow.planning.sizes import DatasetSizes
from outgrow.planning.workload import (
    BatchStats,
    ChunkStats,
    CrossEdgeStats,
    GatherStats,
    HotStats,
    NeighborhoodStats,
    OrchestrateStats,
    OwnerStats,
    PartitionStats,
    SamplingSpec,
    SplitBatchStats,
)
from outgrow.strategies.offload.memory import WaveSizes
from outgrow.strategies.offload.wave_plan import TransferOptions

Numbers = NDArray[np.float64]
_CLASSES = 256


class NeighborhoodLevel(NamedTuple):
    """Nodes of a sampled neighbourhood before a layer.

    Attributes:
        share: ``[k]``, of the nodes of each degree, those that are there.
        edges: Edges of the layer above, which they are sources of; 0 for seeds.
    """

    share: Numbers
    edges: float


@dataclass(frozen=True, eq=False)
class DegreeDistribution:
    """Nodes by degree; in- and out-degree of a node are taken to be equal.

    Attributes:
        degree: ``[k]`` ascending.
        count: ``[k]``, nodes of each.
    """

    degree: Numbers
    count: Numbers

    @staticmethod
    def from_degrees(degrees: Tensor) -> DegreeDistribution:
        """Counted: ``[V]`` integers, in at most 256 classes."""
        counts = torch.bincount(degrees)
        value, count = (each.numpy().astype(np.float64) for each in (counts.nonzero()[:, 0], counts[counts > 0]))
        ends = np.unique(np.geomspace(1, len(value) + 1, _CLASSES).astype(np.int64)) - 1
        total, weight = (np.add.reduceat(each, ends[:-1]) for each in (count, count * value))
        return DegreeDistribution(weight / total, total)

    @staticmethod
    def from_power_law(nodes: int, edges: float, exponent: float, largest: float | None) -> DegreeDistribution:
        """Of nodes whose degrees fall with their rank as ``(rank + offset) ** (-1 / (exponent - 1))``."""
        ends = np.unique(np.geomspace(1, nodes + 1, _CLASSES)) - 1
        rank, count = (ends[1:] + ends[:-1]) / 2, np.diff(ends)
        low, high = 1.0, float(nodes)
        for _ in range(60):
            offset = (low * high) ** 0.5
            weight = (rank + offset) ** (-1 / (exponent - 1))
            degree = edges * weight / (count * weight).sum()
            if largest is not None and degree[0] > largest:
                low = offset
            else:
                high = offset
        return DegreeDistribution(degree[::-1], count[::-1])

    @property
    def num_nodes(self) -> float:
        """``V``."""
        return float(self.count.sum())

    @property
    def num_edges(self) -> float:
        """``E``."""
        return float((self.count * self.degree).sum())

    def count_nodes(self, share: Numbers) -> float:
        """How many nodes these shares are."""
        return float((self.count * share).sum())

    def hit_share(self, num_draws: float) -> Numbers:
        """``[k]``: of nodes of each degree, those that so many edges drawn at random begin at."""
        return 1 - np.exp(-num_draws * self.degree / max(1.0, self.num_edges))

    def neighborhood_levels(
        self, seeds: float, hops: Sequence[int], hot: Numbers | None = None
    ) -> list[NeighborhoodLevel]:
        """Levels of the neighbourhood of seeds drawn at random, the seeds first.

        Args:
            seeds: How many.
            hops: Most in-edges that are drawn of a node, hop by hop from the seeds; -1 for all.
            hot: ``[k]``, of the nodes of each degree, those of whose in-edges none are drawn in the last hop.
        """
        levels = [NeighborhoodLevel(np.full(len(self.count), min(1.0, seeds / self.num_nodes)), 0.0)]
        for number, hop in enumerate(hops, 1):
            share = levels[-1].share
            cold = share * (1 - hot) if hot is not None and number == len(hops) else share
            most = self.degree if hop < 0 else np.minimum(self.degree, hop)
            edges = self.count_nodes(cold * most)
            levels.append(NeighborhoodLevel(1 - (1 - cold) * (1 - self.hit_share(edges)), edges))
        return levels

    def hottest_share(self, most: float, hotness: Numbers) -> Numbers:
        """``[k]``: of the nodes of each degree, those among so many of the hottest."""
        order = np.argsort(-hotness)
        before = np.concatenate([[0.0], np.cumsum(self.count[order])[:-1]])
        share = np.zeros(len(self.count))
        share[order] = np.clip((most - before) / self.count[order], 0, 1)
        return share

    def expected_sources(self, share: float) -> float:
        """Nodes that some edge leads to a set of, which a given share of all edges lead to, at random."""
        return self.count_nodes(1 - (1 - share) ** self.degree)


_UNEVEN = 1.05
"""The largest part over the mean."""
_STAYS = 0.25
"""Of rows that chunks share, those that the next wave has in place."""
_PER_ROW, _PER_EDGE = 45, 12
"""Bytes of a wave in its file."""


class AnalyticGraph:
    """A graph that is known by figures; see `PartitionStatsSource` and `BatchStatsSource`. Final.

    Args:
        sizes: Of the graph.
        degrees: How degrees are spread.
        kept: Gives the share of edges that a partition leaves within parts, by its name and the number of parts.
    """

    def __init__(
        self, sizes: DatasetSizes, degrees: DegreeDistribution, edge_locality: Callable[[str, int], float]
    ) -> None:
        self.sizes, self.degrees, self.edge_locality = sizes, degrees, cache(edge_locality)
        self.partition_stats, self.chunk_stats = cache(self._partition_stats), cache(self._chunk_stats)
        self.batch_stats, self.split_batch_stats, self.orchestrate_stats = (
            cache(self._batch_stats),
            cache(self._split_batch_stats),
            cache(self._orchestrate_stats),
        )

    def owner_stats(self, chunks: int, parts: int, *, self_loops: bool) -> OwnerStats:
        """See `PartitionStatsSource.owner_stats`."""
        return OwnerStats(
            _split_evenly(self.sizes.nodes, parts), is_contiguous=False, owner_bytes=self._owner_bytes(parts)
        )

    def _partition_stats(self, method: str, parts: int, spec: SamplingSpec | None = None) -> PartitionStats:
        away = self._remote_edge_share(method, parts)
        of_each = self.degrees.expected_sources(away) / parts if parts > 1 else 0.0
        halo = np.full((parts, parts), round(of_each))
        np.fill_diagonal(halo, 0)
        edges = _split_evenly(self.sizes.edges, parts)
        edges[0] = round(edges[0] * (_UNEVEN if parts > 1 else 1))
        return PartitionStats(_split_evenly(self.sizes.nodes, parts), edges, halo, self._owner_bytes(parts))

    def _remote_edge_share(self, method: str, parts: int) -> float:
        """Share of the edges of a part that lead to one other part."""
        return (1 - self.edge_locality(method, parts)) / max(1, parts - 1)

    def _owner_bytes(self, parts: int) -> int:
        return self.sizes.nodes * (1 if parts <= 128 else 2)

    def _count_part_sources(self, method: str, parts: int) -> float:
        """Distinct sources of parts, in all: ``sum_i |N_i|``."""
        own = self.degrees.expected_sources(self.edge_locality(method, parts))
        return own + (parts - 1) * self.degrees.expected_sources(self._remote_edge_share(method, parts))

    def _chunk_stats(
        self, chunking: ChunkingSpec, views: tuple[bool, ...], parts: int, techniques: TransferOptions
    ) -> ChunkStats:
        chunks, sizes = chunking.chunks, self.sizes
        alone = self._count_part_sources(chunking.partition, parts * chunks)
        union = max(float(sizes.nodes), (alone * self._count_part_sources(chunking.partition, chunks)) ** 0.5)
        loaded = union if techniques.sharing else alone
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
        )
        num_bytes = _PER_ROW * (load + remote) + _PER_EDGE * edges + 16 * rows
        files = np.full((parts, chunks), num_bytes, dtype=np.int64)
        waves = WaveStats(round(loaded), sent, sent, files, extent)
        return ChunkStats(8 * parts * chunks, dict.fromkeys(views, waves))

    def _neighborhood_levels(
        self, spec: SamplingSpec, seeds: float, hot: Numbers | None = None
    ) -> list[NeighborhoodLevel]:
        hops = [hop if isinstance(hop, int) else sum(hop) for hop in spec.batches.fanout_per_hop(len(spec.views))]
        return self.degrees.neighborhood_levels(seeds, hops, hot)

    def _batch_sizes(self, spec: SamplingSpec) -> tuple[int, float, float]:
        """Seeds of a batch, batches of an epoch, and batches of full size."""
        size = min(spec.batches.size or self.sizes.train, self.sizes.train)
        return size, -(-self.sizes.train // max(1, size)), self.sizes.train / max(1, size)

    def _neighborhood_stats(
        self, spec: SamplingSpec, levels: list[NeighborhoodLevel], parts: int, scale: float = 1.0
    ) -> NeighborhoodStats:
        rows = [self.degrees.count_nodes(level.share) * scale for level in reversed(levels)]
        edges = [level.edges * scale for level in reversed(levels[1:])]
        looped = [count + row * loop for count, row, loop in zip(edges, rows[1:], spec.views, strict=True)]
        return NeighborhoodStats(np.tile(rows, (parts, 1)), np.tile(looped, (parts, 1)))

    def _gather_stats(
        self, share: Numbers, spec: SamplingSpec, parts: int, cached_share: Numbers | None = None
    ) -> GatherStats:
        """Of batches that ask for the nodes of these shares, less those of which they have copies."""
        stays = self.edge_locality(spec.partition, parts) ** len(spec.views)
        rows, asked = self.degrees.count_nodes(share), share if cached_share is None else share * (1 - cached_share)
        each = self.degrees.count_nodes(asked) * (1 - stays) / max(1, parts - 1)
        matrix = np.full((parts, parts), each)
        np.fill_diagonal(matrix, 0)
        return GatherStats(rows * parts, matrix, self.sizes.row_entries)

    def _batch_stats(self, spec: SamplingSpec, parts: int) -> BatchStats:
        seeds, steps, full = self._batch_sizes(spec)
        times = spec.time_steps or 1
        levels = self._neighborhood_levels(spec, seeds / parts)
        share = levels[-1].share
        if times > 1 and spec.pregather:
            share = self._neighborhood_levels(spec, seeds)[-1].share / parts
        copies = None
        if spec.cache_rows:
            copies = self.degrees.hottest_share(spec.cache_rows, self.degrees.degree)
        kept = np.full((parts, parts), spec.cache_rows // max(1, parts - 1))
        np.fill_diagonal(kept, 0)
        gathered = self._gather_stats(share, spec, parts, copies)
        return BatchStats(int(steps), full, self._neighborhood_stats(spec, levels, parts), gathered, kept)

    def _split_batch_stats(self, spec: SamplingSpec, parts: int) -> SplitBatchStats:
        seeds, steps, full = self._batch_sizes(spec)
        levels, away = self._neighborhood_levels(spec, seeds), self._remote_edge_share(spec.partition, parts)
        grown = self._neighborhood_stats(spec, levels, parts, 1 / parts)
        crossed = []
        for sources, destinations in zip(levels[:0:-1], levels[-2::-1], strict=True):
            given, taken = self.degrees.count_nodes(sources.share), self.degrees.count_nodes(destinations.share)
            one, other = (
                _uniform_pairs(count / parts * (1 - (1 - away) ** (sources.edges / max(1.0, count))), parts)
                for count in (given, taken)
            )
            crossed.append(CrossEdgeStats(one, other, _uniform_pairs(sources.edges * away / parts, parts)))
        return SplitBatchStats(int(steps), full, grown, (tuple(crossed),))

    def _orchestrate_stats(
        self, spec: SamplingSpec, parts: int, hot_ratio: float, super_batch: int
    ) -> OrchestrateStats:
        seeds, steps, full = self._batch_sizes(spec)
        cold = self._neighborhood_levels(spec, seeds / parts)
        bottom = cold[-2].share
        hot = self.degrees.hottest_share(hot_ratio * self.sizes.nodes / parts, bottom)
        warm = self._neighborhood_levels(spec, seeds / parts, hot)
        queue = hot * (1 - (1 - bottom) ** super_batch)
        hop = spec.batches.fanout_per_hop(len(spec.views))[-1]
        most = self.degrees.degree if not isinstance(hop, int) or hop < 0 else np.minimum(self.degrees.degree, hop)
        nodes, edges = self.degrees.count_nodes(queue), self.degrees.count_nodes(queue * most)
        gathered = [
            self._gather_stats(share, spec, parts)
            for share in (cold[-1].share, warm[-1].share, 1 - (1 - queue) * (1 - self.degrees.hit_share(edges)))
        ]
        made = HotStats(nodes * parts, edges * parts, gathered[2])
        grown = self._neighborhood_stats(spec, warm, parts)
        return OrchestrateStats(int(steps), full, grown, gathered[0], gathered[1], made)


def _uniform_pairs(count: float, parts: int) -> Matrix:
    """As many for each pair of workers."""
    found = np.full((parts, parts), round(count), dtype=np.int64)
    np.fill_diagonal(found, 0)
    return found


def _split_evenly(total: int, parts: int) -> Matrix:
    """``[P]``: as even as can be, the first ones larger by 1."""
    return np.array([total // parts + (part < total % parts) for part in range(parts)], dtype=np.int64)
