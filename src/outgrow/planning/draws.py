"""What mini-batches are like, from some that are drawn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.hot import by_batches, by_degree, hottest_first
from outgrow.engine.journey import tour
from outgrow.graph.graph import Graph
from outgrow.graph.sampler import Sampler
from outgrow.planning.waves import Matrix
from outgrow.planning.workload import Crossed, Drawing, Drawn, Together

BEFORE, EPOCH = 0, 1
"""Epochs that are drawn first, downwards from this one, and the first that is trained."""
_STEPS, _STEPS_BEFORE = 8, 32


class Draws:
    """Batches of some workers, drawn as they will be when trained on. Final.

    Args:
        graph: The graph, which has features.
        owner: ``[V]`` the worker of each node.
        parts: Number of workers ``P``.
        drawing: How batches are drawn.
    """

    def __init__(self, graph: Graph, owner: Tensor, parts: int, drawing: Drawing) -> None:
        topology = graph.topology
        self.topology, self.train, self.owner = topology, graph.split.train, owner.long()
        self.entries = _entries(graph)
        self.parts, self.drawing = parts, drawing
        views = [topology.with_self_loops if looped else topology for looped in drawing.views]
        hops = drawing.batches.hops(len(views))
        self.sampler = Sampler(views, hops, drawing.seed, weighted=drawing.batches.weighted)

    def look(self) -> Drawn:
        """What some batches of the first epoch are like."""
        layers, shape = len(self.drawing.views), (self.parts, self.parts)
        rows, edges = np.zeros((self.parts, layers + 1)), np.zeros((self.parts, layers))
        asked, kept = np.zeros(shape), np.zeros(shape, dtype=np.int64)
        steps, entries = self.some(_STEPS), 0.0
        for part in range(self.parts):
            copies = self._copies(part)
            kept[part] = self.by_owner(copies)
            has_copy = torch.zeros(self.topology.num_nodes, dtype=torch.bool)
            has_copy[copies] = True
            for step in steps:
                groups = [self.sampler.blocks(seeds, EPOCH, step) for seeds in self._groups(step, part)]
                for blocks in groups:
                    rows[part] += [*(len(block.src_nodes) for block in blocks), blocks[-1].edges.num_dst]
                    edges[part] += [block.edges.num_edges for block in blocks]
                nodes = torch.cat([blocks[0].src_nodes for blocks in groups])
                nodes = torch.unique(nodes) if self.drawing.pregather else nodes
                nodes = nodes[~has_copy[nodes]]
                asked[part] += self.by_owner(nodes)
                entries += float(self.entries[nodes[self.owner[nodes] != part]].sum())
        np.fill_diagonal(asked, 0)
        looked, of_row = len(steps), entries / max(1.0, asked.sum())
        count = len(self.seeds(EPOCH))
        return Drawn(count, self.full, rows / looked, edges / looked, asked / looked, of_row, kept)

    def together(self) -> Together:
        """What some batches of the first epoch are like whose nodes are computed by the workers that own them."""
        steps, layers = self.some(_STEPS), len(self.drawing.views)
        rows, edges = np.zeros((self.parts, layers + 1)), np.zeros((self.parts, layers))
        crossed = []
        for step in steps:
            blocks = self.sampler.blocks(self.seeds(EPOCH)[step], EPOCH, step)
            for layer, block in enumerate(blocks):
                rows[:, layer] += self.by_owner(block.src_nodes)
                owners = self.owner[block.dst_nodes]
                edges[:, layer] += np.bincount(owners, block.edges.indptr.diff(), minlength=self.parts)
            rows[:, layers] += self.by_owner(blocks[-1].dst_nodes)
            crossed.append(tuple(self._crossed(block) for block in blocks))
        looked = len(steps)
        return Together(len(self.seeds(EPOCH)), self.full, rows / looked, edges / looked, tuple(crossed))

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

    def seeds(self, epoch: int) -> list[Tensor]:
        """Those of each batch of an epoch, over all workers."""
        return self.drawing.batches.of_epoch(self.train, self.drawing.seed, epoch)

    def some(self, most: int) -> list[int]:
        """Steps of an epoch, evenly apart; without the last one, which may have fewer seeds."""
        last = max(0, len(self.seeds(EPOCH)) - 2)
        chosen: list[int] = np.unique(np.linspace(0, last, most).round().astype(int)).tolist()
        return chosen

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
        if self.drawing.cached_by == "degree":
            hotness = by_degree(self.topology)
        else:
            hotness = by_batches(self._asked_before(part), self.topology.num_nodes)
        hot = ((hotness > 0) & (self.owner != part)).nonzero()[:, 0]
        return hottest_first(hot, hotness)[: self.drawing.cached]

    def _asked_before(self, part: int) -> Iterator[Tensor]:
        batches = self.seeds(BEFORE)
        for step in self.some(_STEPS_BEFORE):
            seeds = batches[step]
            yield self.sampler.blocks(seeds[self.owner[seeds] == part], BEFORE, step)[0].src_nodes

    def by_owner(self, nodes: Tensor) -> Matrix:
        """``[P]`` int64: how many of some nodes each worker owns."""
        return torch.bincount(self.owner[nodes], minlength=self.parts).numpy()


def _entries(graph: Graph) -> Tensor:
    """``[V]``: how many entries of each row of features are stored."""
    features = graph.features
    assert features is not None
    if isinstance(features, Tensor):
        return torch.tensor(features.shape[1]).expand(graph.num_nodes)
    return features.indptr.diff()
