"""Statistics of batches, by sampling some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

import numpy as np
import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.features.cache import hotness_by, hottest
from outgrow.graph.graph import Graph
from outgrow.graph.sampling.neighbor_sampler import Sampler
from outgrow.planning.graph_stats.chunk_waves import Matrix
from outgrow.planning.workload import Crossed, Drawing, Drawn, Gathered, Grown, Halves, Hot, Together
from outgrow.strategies.migrate.schedule import tour
from outgrow.strategies.orchestrate.sampling import Drawing as PartDrawing
from outgrow.strategies.orchestrate.sampling import bottom_counts, hot_step, super_batches

BEFORE, EPOCH = 0, 1
"""Epochs that are drawn first, downwards from this one, and the first that is trained."""
_STEPS, STEPS_BEFORE = 8, 32
"""How many steps are looked at, of an epoch and of one before."""


class Draws:
    """Batches of some workers, drawn as they will be when trained on. Final.

    Args:
        graph: The graph, which has features.
        owner: ``[V]`` the worker of each node.
        parts: Number of workers ``P``.
        drawing: How batches are drawn.

    Attributes:
        seeds: Gives those of each batch of an epoch, over all workers.
    """

    def __init__(self, graph: Graph, owner: Tensor, parts: int, drawing: Drawing) -> None:
        topology = graph.topology
        self.topology, self.train, self.owner = topology, graph.split.train, owner.long()
        self.entries = _entries(graph)
        self.parts, self.drawing = parts, drawing
        views = [topology.view(self_loops=looped) for looped in drawing.views]
        hops = drawing.batches.hops(len(views))
        self.seeds = cache(self._seeds)
        self.sampler = Sampler(views, hops, drawing.seed, weighted=drawing.batches.weighted)

    def look(self) -> Drawn:
        """What some batches of the first epoch are like."""
        kept, tally = np.zeros((self.parts, self.parts), dtype=np.int64), Tally(self)
        growth = Growth(self.parts, len(self.drawing.views))
        for part in range(self.parts):
            copies = self._copies(part)
            kept[part] = self.by_owner(copies)
            has_copy = torch.zeros(self.topology.num_nodes, dtype=torch.bool)
            has_copy[copies] = True
            for step in self.some(_STEPS):
                groups = [self.sampler.blocks(seeds, EPOCH, step) for seeds in self._groups(step, part)]
                growth.add(part, groups)
                nodes = torch.cat([blocks[0].src_nodes for blocks in groups])
                nodes = torch.unique(nodes) if self.drawing.pregather else nodes
                tally.add(part, nodes[~has_copy[nodes]])
        return Drawn(len(self.seeds(EPOCH)), self.full, growth.mean(), tally.mean(), kept)

    def together(self) -> Together:
        """What some batches of the first epoch are like whose nodes are computed by the workers that own them."""
        seeds, growth, crossed = self.seeds(EPOCH), Growth(self.parts, len(self.drawing.views)), []
        for step in self.some(_STEPS):
            blocks = self.sampler.blocks(seeds[step], EPOCH, step)
            growth.add_shares(self.owner, blocks)
            crossed.append(tuple(map(self._crossed, blocks)))
        return Together(len(seeds), self.full, growth.mean(), tuple(crossed))

    def _crossed(self, block: Block) -> Crossed:
        source = block.edges.indices.long()
        target = torch.arange(block.edges.num_dst).repeat_interleave(block.edges.indptr.diff())
        pair = self.owner[block.dst_nodes][target] * self.parts + self.owner[block.src_nodes][source]
        away = pair % self.parts != pair // self.parts
        pair, source, target = pair[away], source[away], target[away]

        def distinct(ends: Tensor, number: int) -> Matrix:
            return self._pairs(torch.unique(pair * number + ends) // max(1, number))

        return Crossed(distinct(source, len(block.src_nodes)), distinct(target, block.edges.num_dst), self._pairs(pair))

    def _pairs(self, pair: Tensor) -> Matrix:
        """``[P, P]``: how often each pair occurs."""
        return torch.bincount(pair, minlength=self.parts**2).view(self.parts, self.parts).numpy()

    @property
    def full(self) -> float:
        """Batches of full size that have as many seeds as an epoch."""
        return len(self.train) / max(1, len(self.seeds(EPOCH)[0]))

    def _seeds(self, epoch: int) -> list[Tensor]:
        return self.drawing.batches.of_epoch(self.train, self.drawing.seed, epoch)

    def some(self, most: int) -> list[int]:
        """Steps of an epoch, evenly apart; without the last one, which may have fewer seeds."""
        return evenly(max(1, len(self.seeds(EPOCH)) - 1), most)

    def _groups(self, step: int, part: int) -> list[Tensor]:
        """The seeds that a worker computes of a batch, by time step."""
        seeds, drawing = self.seeds(EPOCH)[step], self.drawing
        homes = self.owner[seeds]
        if drawing.time_steps is None:
            return [seeds[homes == part]]
        return tour(seeds, homes, part, self.parts, self.parts - drawing.time_steps).groups

    def _copies(self, part: int) -> Tensor:
        """Nodes of other workers whose rows a worker keeps."""
        if not self.drawing.cached:
            return torch.empty(0, dtype=torch.int64)
        hotness = hotness_by(self.drawing.cached_by, self.topology, lambda: self._asked_before(part))
        return hottest(hotness * (self.owner != part), self.drawing.cached)

    def _asked_before(self, part: int) -> Iterator[Tensor]:
        batches = self.seeds(BEFORE)
        for step in self.some(STEPS_BEFORE):
            seeds = batches[step]
            yield self.sampler.blocks(seeds[self.owner[seeds] == part], BEFORE, step)[0].src_nodes

    def by_owner(self, nodes: Tensor) -> Matrix:
        """``[P]`` int64: how many of some nodes each worker owns."""
        return torch.bincount(self.owner[nodes], minlength=self.parts).numpy()


class Tally:
    """Rows of raw features that workers take from memory, counted for several batches. Final.

    Args:
        draws: Who draws.
    """

    def __init__(self, draws: Draws) -> None:
        self.draws, self.rows, self.count, self.entries = draws, 0, 0, 0.0
        self.asked = np.zeros((draws.parts, draws.parts))

    def add(self, part: int, nodes: Tensor) -> None:
        """Those of a worker, for one batch."""
        draws = self.draws
        self.rows += len(nodes)
        self.count += 1
        self.asked[part] += draws.by_owner(nodes)
        self.entries += float(draws.entries[nodes[draws.owner[nodes] != part]].sum())

    def mean(self) -> Gathered:
        """Of a batch, all workers together."""
        batches = max(1, self.count // self.draws.parts)
        np.fill_diagonal(self.asked, 0)
        return Gathered(self.rows / batches, self.asked / batches, self.entries / max(1.0, self.asked.sum()))


class Growth:
    """Rows and edges that workers compute, counted for several batches. Final.

    Args:
        parts: Number of workers.
        layers: Of the model.
    """

    def __init__(self, parts: int, layers: int) -> None:
        self.rows, self.edges = np.zeros((parts, layers + 1)), np.zeros((parts, layers))
        self.count = np.zeros(parts)

    def add(self, part: int, groups: Sequence[Sequence[Block]]) -> None:
        """What a worker computes of one batch, one time step after the other."""
        self.count[part] += 1
        for blocks in groups:
            self.rows[part] += [*(len(block.src_nodes) for block in blocks), blocks[-1].edges.num_dst]
            self.edges[part] += [block.edges.num_edges for block in blocks]

    def add_shares(self, owner: Tensor, blocks: Sequence[Block]) -> None:
        """What all workers compute of one batch, each of its own nodes."""
        parts = len(self.count)
        self.count += 1
        levels = [*(block.src_nodes for block in blocks), blocks[-1].dst_nodes]
        for level, nodes in enumerate(levels):
            self.rows[:, level] += torch.bincount(owner[nodes], minlength=parts).numpy()
        for level, block in enumerate(blocks):
            degree = block.edges.indptr.diff().double()
            self.edges[:, level] += torch.bincount(owner[block.dst_nodes], degree, minlength=parts).numpy()

    def mean(self) -> Grown:
        """Of a batch."""
        count = np.maximum(1, self.count)[:, None]
        return Grown(self.rows / count, self.edges / count)


def evenly(count: int, most: int) -> list[int]:
    """At most so many of the numbers below ``count``, evenly apart."""
    chosen: list[int] = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()
    return chosen


def _entries(graph: Graph) -> Tensor:
    """``[V]``: how many entries of each row of features are stored."""
    features = graph.features
    assert features is not None
    if isinstance(features, Tensor):
        return torch.tensor(features.shape[1]).expand(graph.num_nodes)
    return features.indptr.diff()


_SUPERS = 4


class HotDraws:
    """Super-batches of all workers. Final.

    Args:
        draws: Batches of all workers.
        hot_ratio: Share of all nodes that are hot.
        super_batch: Batches of a super-batch.
    """

    def __init__(self, draws: Draws, hot_ratio: float, super_batch: int) -> None:
        self.draws, self.super_batch, self.drawing = draws, super_batch, cache(self._drawing)
        self.share = round(hot_ratio * draws.topology.num_nodes / draws.parts)

    def look(self) -> Halves:
        """What some super-batches of the first epoch are like."""
        draws, steps = self.draws, len(self.draws.seeds(EPOCH))
        [supers] = super_batches(0, steps, self.super_batch, None)
        later = [each for each in supers[1:] if len(each) == self.super_batch] or supers[1:]
        some = [later[place] for place in evenly(len(later), _SUPERS)]
        cold, warm, hot = Tally(draws), Tally(draws), Tally(draws)
        hot_nodes, hot_edges, growth = 0, 0, Growth(draws.parts, len(draws.drawing.views))
        for part, each in product(range(draws.parts), some or [range(max(1, steps - 1))]):
            drawing = self.drawing(part)
            for step in each:
                draw = drawing.draw(step, all_cold=True)
                cold.add(part, draw.cold.src_nodes)
                if not some:
                    growth.add(part, [[draw.cold, *draw.above]])
            if some:
                drawn = [drawing.draw(step, all_cold=False) for step in each]
                for draw in drawn:
                    warm.add(part, draw.cold.src_nodes)
                    growth.add(part, [[draw.cold, *draw.above]])
                queue = torch.unique(torch.cat([draw.hot for draw in drawn]))
                hot_nodes += len(queue)
                block = drawing.bottom(queue, hot_step(each[0]))
                hot_edges += block.edges.num_edges
                hot.add(part, block.src_nodes)
        count = max(1, len(some))
        made = Hot(hot_nodes / count, hot_edges / count, hot.mean())
        return Halves(steps, draws.full, growth.mean(), cold.mean(), warm.mean(), made)

    def _drawing(self, part: int) -> PartDrawing:
        draws, num_nodes = self.draws, self.draws.topology.num_nodes

        def mine(seeds: Tensor) -> Tensor:
            return seeds[draws.owner[seeds] == part]

        none = torch.zeros(num_nodes, dtype=torch.bool)
        is_hot = none.clone()
        if self.share:
            some = draws.some(STEPS_BEFORE)
            before = [
                PartDrawing(draws.sampler, epoch, [draws.seeds(epoch)[step] for step in some], mine, none)
                for epoch in (BEFORE, BEFORE - 1)
            ]
            is_hot[hottest(bottom_counts(before), self.share)] = True
        return PartDrawing(draws.sampler, EPOCH, draws.seeds(EPOCH), mine, is_hot)
