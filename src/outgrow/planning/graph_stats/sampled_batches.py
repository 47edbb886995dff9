"""Statistics of batches, from a sample of the batches that a run will train on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.features.cache import compute_hotness, hottest_nodes, sort_by_hotness
from outgrow.engine.link_batches import Batch, LinkBatch, LinkBatches
from outgrow.engine.shard import FullGraphShard
from outgrow.graph.graph import Graph
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.planning.batch_stats import BatchStats, CrossEdgeStats, SamplingSpec, SplitBatchStats
from outgrow.planning.graph_stats.batch_counters import (
    GatherCounter,
    NeighborhoodCounter,
    choose_evenly_spaced,
    count_owners,
    count_row_entries,
)
from outgrow.planning.graph_stats.chunk_waves import Matrix
from outgrow.strategies.migrate.schedule import migration_schedule

BEFORE, EPOCH = 0, 1
"""Number of the last presampling epoch, which counts downwards from there, and of the first training epoch."""
_STEPS, STEPS_BEFORE = 8, 32
"""Steps sampled of a training epoch, and of a presampling epoch."""


class SampledBatches:
    """Batches of all workers, sampled with the same keys as in training. Final.

    Args:
        graph: The graph, which has features.
        owner: ``[V]`` the worker of each node.
        parts: Number of workers ``P``.
        spec: How batches are sampled.

    Attributes:
        epoch_batches: Returns the batches of an epoch, over all workers.
    """

    def __init__(self, graph: Graph, owner: Tensor, parts: int, spec: SamplingSpec) -> None:
        topology = graph.topology
        self.topology = topology
        self.num_types = len(graph.node_types)
        self.inner_borders = torch.tensor(graph.type_borders[1:-1], dtype=torch.int64)
        self.train = graph.split.train
        self.owner = owner.long()
        self.row_entries = count_row_entries(graph)
        self.parts = parts
        self.spec = spec
        views = [topology.sampling_view(self_loops=looped) for looped in spec.views]
        hops = spec.batches.fanout_per_hop(len(views))
        self.epoch_batches = cache(self._draw_epoch)
        self.sampler = NeighborSampler(views, hops, spec.seed, **spec.batches.sampling_options)
        self._links = None
        if spec.links is not None:
            # As a single worker, which draws the whole batch.
            self._links = LinkBatches(FullGraphShard(topology), spec.links, spec.batches, spec.seed)

    def collect_batch_stats(self) -> BatchStats:
        """Return statistics of some batches of the first epoch."""
        kept = np.zeros((self.parts, self.parts), dtype=np.int64)
        tally = self.gather_counter()
        growth = NeighborhoodCounter(self.parts, len(self.spec.views))
        edges: list[list[list[int]]] = [[] for _ in range(self.parts)]
        for part in range(self.parts):
            copies = self._cached_nodes(part)
            kept[part] = self.count_by_owner(copies)
            has_copy = torch.zeros(self.topology.num_nodes, dtype=torch.bool)
            has_copy[copies] = True
            for step in self.choose_steps(_STEPS):
                groups = [self._sample_blocks(seeds, EPOCH, step) for seeds in self._seed_groups(EPOCH, step, part)]
                growth.add_batch(part, groups)
                edges[part].append([sum(block.edges.num_edges for block in blocks) for blocks in groups])
                # Only the bottom layer reads features; its sources contain all other nodes of the batch.
                # Of several rows of a node, each for another time, the features are requested once.
                temporal = self.spec.batches.is_temporal
                read = [blocks[0].src_nodes for blocks in groups]
                nodes = torch.cat([torch.unique(each) for each in read] if temporal else read)
                nodes = torch.unique(nodes) if self.spec.pregather else nodes
                tally.add_rows(part, nodes[~has_copy[nodes]])
        # Edges by worker, batch and time step.
        counts = np.array(edges)
        return BatchStats(
            len(self.epoch_batches(EPOCH)),
            self.num_full_batches,
            growth.mean_stats(),
            tally.mean_stats(),
            kept,
            float(counts.max(0).sum() / max(1, counts.sum(2).max(0).sum())),
        )

    def collect_split_stats(self) -> SplitBatchStats:
        """Return statistics of some batches of the first epoch, each node computed by the worker that owns it."""
        batches = self.epoch_batches(EPOCH)
        growth = NeighborhoodCounter(self.parts, len(self.spec.views))
        crossed = []
        in_cache, num_rows, num_cached = self._mark_own_cached(), 0, 0
        for step in self.choose_steps(_STEPS):
            # A draw depends on the node alone, so the parts that workers sample add up to this batch. Rows cross for
            # all edges that are drawn, also for those that the batch excludes.
            blocks = self.sampler.sample_blocks(list_seeds(batches[step]), EPOCH, step)
            growth.add_split_batch(self.owner, blocks)
            crossed.append(tuple(map(self._cross_edge_stats, blocks)))
            num_rows += len(blocks[0].src_nodes)
            num_cached += int(in_cache[blocks[0].src_nodes].sum())
        cached = num_cached / max(1, num_rows)
        return SplitBatchStats(len(batches), self.num_full_batches, growth.mean_stats(), tuple(crossed), cached)

    def _mark_own_cached(self) -> Tensor:
        """Return ``[V]`` bool: the nodes whose rows the workers that own them cache."""
        found = torch.zeros(self.topology.num_nodes, dtype=torch.bool)
        if self.spec.cache_rows:
            hotness = compute_hotness(self.spec.cache_by, self.topology, self._presample_all_sources)
            for part in range(self.parts):
                own = (self.owner == part).nonzero()[:, 0]
                found[sort_by_hotness(own, hotness)[: self.spec.cache_rows]] = True
        return found

    def _presample_all_sources(self) -> Iterator[Tensor]:
        for step in self.choose_steps(STEPS_BEFORE):
            yield self.sampler.sample_blocks(list_seeds(self.epoch_batches(BEFORE)[step]), BEFORE, step)[0].src_nodes

    def _cross_edge_stats(self, block: Block) -> CrossEdgeStats:
        source = block.edges.indices.long()
        target = torch.arange(block.edges.num_dst).repeat_interleave(block.edges.indptr.diff())
        # One number for both workers of an edge, so that counting needs a single pass.
        pair = self.owner[block.dst_nodes][target] * self.parts + self.owner[block.src_nodes][source]
        away = pair % self.parts != pair // self.parts
        pair, source, target = pair[away], source[away], target[away]

        def find_distinct(ends: Tensor, number: int) -> Tensor:
            # A row is sent once to each worker, however many of its edges go there.
            distinct: Tensor = torch.unique(pair * number + ends)
            return distinct

        num_src, num_dst = max(1, len(block.src_nodes)), max(1, block.edges.num_dst)
        sent, taken = find_distinct(source, num_src), find_distinct(target, num_dst)
        kinds = torch.bucketize(block.src_nodes[sent % num_src], self.inner_borders, right=True)
        by_type = [self._count_pairs(sent[kinds == kind] // num_src) for kind in range(self.num_types)]
        return CrossEdgeStats(
            self._count_pairs(sent // num_src),
            self._count_pairs(taken // num_dst),
            self._count_pairs(pair),
            np.stack(by_type) if by_type else None,
        )

    def _count_pairs(self, pair: Tensor) -> Matrix:
        """Return ``[P, P]``: how often each pair occurs."""
        return torch.bincount(pair, minlength=self.parts**2).view(self.parts, self.parts).numpy()

    @property
    def num_full_batches(self) -> float:
        """Nodes or links of an epoch over those of a full batch."""
        count = len(self.train) if self._links is None else self._links.num_links
        return count / max(1, len(self.epoch_batches(EPOCH)[0]))

    def gather_counter(self) -> GatherCounter:
        """Return a counter of rows that the workers gather."""
        return GatherCounter(self.owner, self.parts, self.row_entries)

    def _draw_epoch(self, epoch: int) -> Sequence[Batch]:
        if self._links is not None:
            return _KeptBatches(self._links.of_epoch(epoch))
        return self.spec.batches.seeds_of_epoch(self.train, self.spec.seed, epoch)

    def choose_steps(self, most: int) -> list[int]:
        """Return evenly spaced steps of an epoch, without the last one, which may have fewer seeds."""
        return choose_evenly_spaced(max(1, len(self.epoch_batches(EPOCH)) - 1), most)

    def select_seeds(self, batch: Batch, part: int) -> Tensor:
        """Return ``[n]`` int64: the seeds of a batch that a worker owns."""
        seeds = list_seeds(batch)
        return seeds[self.owner[seeds] == part]

    def _sample_blocks(self, seeds: Tensor, epoch: int, step: int) -> list[Block]:
        """Return the blocks of some seeds of a batch, without the edges that it excludes."""
        blocks = self.sampler.sample_blocks(seeds, epoch, step)
        batch = self.epoch_batches(epoch)[step]
        if isinstance(batch, Tensor) or batch.excluded is None:
            return blocks
        return batch.excluded.remove_from_all(blocks, self.sampler.sampling.views)

    def _seed_groups(self, epoch: int, step: int, part: int) -> list[Tensor]:
        """Return the seeds that a worker computes in a batch, by time step."""
        batch = self.epoch_batches(epoch)[step]
        if self.spec.time_steps is None:
            return [self.select_seeds(batch, part)]
        seeds = list_seeds(batch)
        return migration_schedule(seeds, self.owner[seeds], part, self.parts, self.parts - self.spec.time_steps).groups

    def _cached_nodes(self, part: int) -> Tensor:
        """Return the nodes of other hosts whose rows a worker caches."""
        if not self.spec.cache_rows:
            return torch.empty(0, dtype=torch.int64)
        hotness = compute_hotness(self.spec.cache_by, self.topology, lambda: self._presample_sources(part))
        # Nodes of the own host have a hotness of 0: their rows are there anyway.
        per_host = self.spec.workers_per_host
        elsewhere = self.owner // per_host != part // per_host
        return hottest_nodes(hotness * elsewhere, self.spec.cache_rows)

    def _presample_sources(self, part: int) -> Iterator[Tensor]:
        for step in self.choose_steps(STEPS_BEFORE):
            groups = self._seed_groups(BEFORE, step, part)
            sources = [self._sample_blocks(seeds, BEFORE, step)[0].src_nodes for seeds in groups]
            yield from [torch.unique(torch.cat(sources))] if self.spec.pregather else sources

    def count_by_owner(self, nodes: Tensor) -> Matrix:
        """Return ``[P]`` int64: how many of some nodes each worker owns."""
        return count_owners(self.owner[nodes], self.parts)


class _KeptBatches(Sequence[LinkBatch]):
    """Batches of an epoch of links, of which those that were asked for are kept. Final."""

    def __init__(self, batches: Sequence[LinkBatch]) -> None:
        self._count = len(batches)
        self._draw = cache(batches.__getitem__)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, step: int) -> LinkBatch:  # type: ignore[override]
        return self._draw(step)


def list_seeds(batch: Batch) -> Tensor:
    """Return ``[n]`` int64: the seeds of a batch, over all workers where a single one has drawn it."""
    return batch if isinstance(batch, Tensor) else batch.seeds
