"""Statistics of batches, from a sample of the batches that a run will train on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

import numpy as np
import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.features.cache import compute_hotness, hottest_nodes
from outgrow.engine.link_batches import Batch
from outgrow.graph.graph import Graph
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.ops.sparse import SparseRows
from outgrow.planning.graph_stats.chunk_waves import Matrix
from outgrow.planning.workload import (
    BatchStats,
    CrossEdgeStats,
    GatherStats,
    HotStats,
    NeighborhoodStats,
    OrchestrateStats,
    SamplingSpec,
    SplitBatchStats,
)
from outgrow.strategies.migrate.schedule import migration_schedule
from outgrow.strategies.orchestrate.sampling import HotColdSampler as PartDrawing
from outgrow.strategies.orchestrate.sampling import count_bottom_nodes, hot_step, plan_super_batches

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
        epoch_seeds: Returns the seeds of each batch of an epoch, over all workers.
    """

    def __init__(self, graph: Graph, owner: Tensor, parts: int, spec: SamplingSpec) -> None:
        topology = graph.topology
        self.topology = topology
        self.num_types = len(graph.node_types)
        self.inner_borders = torch.tensor(graph.type_borders[1:-1], dtype=torch.int64)
        self.train = graph.split.train
        self.owner = owner.long()
        self.row_entries = _count_row_entries(graph)
        self.parts = parts
        self.spec = spec
        views = [topology.sampling_view(self_loops=looped) for looped in spec.views]
        hops = spec.batches.fanout_per_hop(len(views))
        self.epoch_seeds = cache(self._draw_epoch_seeds)
        self.sampler = NeighborSampler(views, hops, spec.seed, **spec.batches.sampling_options)

    def collect_batch_stats(self) -> BatchStats:
        """Return statistics of some batches of the first epoch."""
        kept = np.zeros((self.parts, self.parts), dtype=np.int64)
        tally = GatherCounter(self)
        growth = NeighborhoodCounter(self.parts, len(self.spec.views))
        edges: list[list[list[int]]] = [[] for _ in range(self.parts)]
        for part in range(self.parts):
            copies = self._cached_nodes(part)
            kept[part] = self.count_by_owner(copies)
            has_copy = torch.zeros(self.topology.num_nodes, dtype=torch.bool)
            has_copy[copies] = True
            for step in self.choose_steps(_STEPS):
                groups = [
                    self.sampler.sample_blocks(seeds, EPOCH, step) for seeds in self._seed_groups(EPOCH, step, part)
                ]
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
            len(self.epoch_seeds(EPOCH)),
            self.num_full_batches,
            growth.mean_stats(),
            tally.mean_stats(),
            kept,
            float(counts.max(0).sum() / max(1, counts.sum(2).max(0).sum())),
        )

    def collect_split_stats(self) -> SplitBatchStats:
        """Return statistics of some batches of the first epoch, each node computed by the worker that owns it."""
        seeds = self.epoch_seeds(EPOCH)
        growth = NeighborhoodCounter(self.parts, len(self.spec.views))
        crossed = []
        for step in self.choose_steps(_STEPS):
            # A draw depends on the node alone, so the parts that workers sample add up to this batch.
            blocks = self.sampler.sample_blocks(seeds[step], EPOCH, step)
            growth.add_split_batch(self.owner, blocks)
            crossed.append(tuple(map(self._cross_edge_stats, blocks)))
        return SplitBatchStats(len(seeds), self.num_full_batches, growth.mean_stats(), tuple(crossed))

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
        """Seeds of an epoch over those of a full batch."""
        return len(self.train) / max(1, len(self.epoch_seeds(EPOCH)[0]))

    def _draw_epoch_seeds(self, epoch: int) -> list[Tensor]:
        return self.spec.batches.seeds_of_epoch(self.train, self.spec.seed, epoch)

    def choose_steps(self, most: int) -> list[int]:
        """Return evenly spaced steps of an epoch, without the last one, which may have fewer seeds."""
        return choose_evenly_spaced(max(1, len(self.epoch_seeds(EPOCH)) - 1), most)

    def _seed_groups(self, epoch: int, step: int, part: int) -> list[Tensor]:
        """Return the seeds that a worker computes in a batch, by time step."""
        seeds = self.epoch_seeds(epoch)[step]
        homes = self.owner[seeds]
        if self.spec.time_steps is None:
            return [seeds[homes == part]]
        return migration_schedule(seeds, homes, part, self.parts, self.parts - self.spec.time_steps).groups

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
            sources = [self.sampler.sample_blocks(seeds, BEFORE, step)[0].src_nodes for seeds in groups]
            yield from [torch.unique(torch.cat(sources))] if self.spec.pregather else sources

    def count_by_owner(self, nodes: Tensor) -> Matrix:
        """Return ``[P]`` int64: how many of some nodes each worker owns."""
        return torch.bincount(self.owner[nodes], minlength=self.parts).numpy()


class GatherCounter:
    """Counter of the raw feature rows that workers gather over several batches. Final.

    Args:
        batches: The batches.
    """

    def __init__(self, batches: SampledBatches) -> None:
        self.batches = batches
        self.rows = 0
        self.count = 0
        self.entries = 0.0
        self.remote_rows = np.zeros((batches.parts, batches.parts))

    def add_rows(self, part: int, nodes: Tensor) -> None:
        """Add the rows that a worker gathers for one batch."""
        batches = self.batches
        self.rows += len(nodes)
        self.count += 1
        self.remote_rows[part] += batches.count_by_owner(nodes)
        # Hot nodes tend to have longer sparse rows, so the entries of remote rows are counted, not averaged.
        self.entries += float(batches.row_entries[nodes[batches.owner[nodes] != part]].sum())

    def mean_stats(self) -> GatherStats:
        """Return means per batch, over all workers together."""
        batches = max(1, self.count // self.batches.parts)
        np.fill_diagonal(self.remote_rows, 0)
        return GatherStats(
            self.rows / batches, self.remote_rows / batches, self.entries / max(1.0, self.remote_rows.sum())
        )


class NeighborhoodCounter:
    """Counter of the rows and edges that workers compute over several batches. Final.

    Args:
        parts: Number of workers.
        layers: Number of layers of the model.
    """

    def __init__(self, parts: int, layers: int) -> None:
        self.rows = np.zeros((parts, layers + 1))
        self.edges = np.zeros((parts, layers))
        self.count = np.zeros(parts)

    def add_batch(self, part: int, groups: Sequence[Sequence[Block]]) -> None:
        """Add what a worker computes for one batch, over all its time steps."""
        self.count[part] += 1
        for blocks in groups:
            self.rows[part] += [*(len(block.src_nodes) for block in blocks), blocks[-1].edges.num_dst]
            self.edges[part] += [block.edges.num_edges for block in blocks]

    def add_split_batch(self, owner: Tensor, blocks: Sequence[Block]) -> None:
        """Add what all workers compute for one batch, each for its own nodes."""
        parts = len(self.count)
        self.count += 1
        levels = [*(block.src_nodes for block in blocks), blocks[-1].dst_nodes]
        for level, nodes in enumerate(levels):
            self.rows[:, level] += torch.bincount(owner[nodes], minlength=parts).numpy()
        for level, block in enumerate(blocks):
            degree = block.edges.indptr.diff().double()
            self.edges[:, level] += torch.bincount(owner[block.dst_nodes], degree, minlength=parts).numpy()

    def mean_stats(self) -> NeighborhoodStats:
        """Return means per batch, for each worker."""
        count = np.maximum(1, self.count)[:, None]
        return NeighborhoodStats(self.rows / count, self.edges / count)


def choose_evenly_spaced(count: int, most: int) -> list[int]:
    """Return at most ``most`` evenly spaced numbers below ``count``."""
    chosen: list[int] = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()
    return chosen


def _count_row_entries(graph: Graph) -> Tensor:
    """Return ``[V]``: the number of stored entries in each feature row."""
    features = graph.features
    assert features is not None
    if isinstance(features, Tensor):
        return torch.tensor(features.shape[1]).expand(graph.num_nodes)
    if isinstance(features, SparseRows):
        return features.indptr.diff()
    entries = torch.zeros(graph.num_nodes, dtype=torch.int64)
    for rows, (first, last) in zip(features.rows, features.columns, strict=True):
        entries[rows] = last - first
    return entries


_SUPERS = 4
"""Super-batches sampled of an epoch."""


class SampledSuperBatches:
    """Super-batches of all workers, sampled as in training. Final.

    Args:
        batches: Batches of all workers.
        hot_ratio: Share of all nodes that are hot.
        super_batch: Batches of a super-batch.
    """

    def __init__(self, batches: SampledBatches, hot_ratio: float, super_batch: int) -> None:
        self.batches = batches
        self.super_batch = super_batch
        self.sampler = cache(self._make_sampler)
        self.num_hot_nodes = round(hot_ratio * batches.topology.num_nodes / batches.parts)

    def collect_orchestrate_stats(self) -> OrchestrateStats:
        """Return statistics of some super-batches of the first epoch."""
        draws = self.batches
        steps = len(draws.epoch_seeds(EPOCH))
        [supers] = plan_super_batches(0, steps, self.super_batch, None)
        # Without the first, which has nothing to reuse, and without a short last one if others are there.
        later = [each for each in supers[1:] if len(each) == self.super_batch] or supers[1:]
        some = [later[place] for place in choose_evenly_spaced(len(later), _SUPERS)]
        cold, warm, hot = GatherCounter(draws), GatherCounter(draws), GatherCounter(draws)
        hot_nodes = 0
        hot_edges = 0
        growth = NeighborhoodCounter(draws.parts, len(draws.spec.views))
        # An epoch of a single super-batch reuses nothing: its batches are counted as cold ones.
        for part, each in product(range(draws.parts), some or [range(max(1, steps - 1))]):
            drawing = self.sampler(part)
            for step in each:
                draw = drawing.sample_batch(step, all_cold=True)
                cold.add_rows(part, draw.cold_block.src_nodes)
                if not some:
                    growth.add_batch(part, [[draw.cold_block, *draw.upper_blocks]])
            if some:
                drawn = [drawing.sample_batch(step, all_cold=False) for step in each]
                for draw in drawn:
                    warm.add_rows(part, draw.cold_block.src_nodes)
                    growth.add_batch(part, [[draw.cold_block, *draw.upper_blocks]])
                # Batches of a super-batch share hot nodes, which the CPU computes once.
                queue = torch.unique(torch.cat([draw.hot_nodes for draw in drawn]))
                hot_nodes += len(queue)
                block = drawing.bottom_block(queue, hot_step(each[0]))
                hot_edges += block.edges.num_edges
                hot.add_rows(part, block.src_nodes)
        count = max(1, len(some))
        made = HotStats(hot_nodes / count, hot_edges / count, hot.mean_stats())
        return OrchestrateStats(
            steps, draws.num_full_batches, growth.mean_stats(), cold.mean_stats(), warm.mean_stats(), made
        )

    def _make_sampler(self, part: int) -> PartDrawing:
        draws = self.batches
        num_nodes = draws.topology.num_nodes

        def select_seeds(seeds: Batch) -> Tensor:
            assert isinstance(seeds, Tensor)
            return seeds[draws.owner[seeds] == part]

        none = torch.zeros(num_nodes, dtype=torch.bool)
        is_hot = none.clone()
        if self.num_hot_nodes:
            # Hot nodes are chosen as training does: by how often presampled batches compute them.
            some = draws.choose_steps(STEPS_BEFORE)
            before = [
                PartDrawing(draws.sampler, epoch, [draws.epoch_seeds(epoch)[step] for step in some], select_seeds, none)
                for epoch in (BEFORE, BEFORE - 1)
            ]
            is_hot[hottest_nodes(count_bottom_nodes(before), self.num_hot_nodes)] = True
        return PartDrawing(draws.sampler, EPOCH, draws.epoch_seeds(EPOCH), select_seeds, is_hot)
