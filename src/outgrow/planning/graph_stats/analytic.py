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

from outgrow.planning.graph_stats.chunk_waves import Cutting, Matrix, Waves
from outgrow.planning.sizes import Sizes
from outgrow.planning.workload import (
    Chunked,
    Crossed,
    Cut,
    Dealt,
    Drawing,
    Drawn,
    Gathered,
    Grown,
    Halves,
    Hot,
    Together,
)
from outgrow.strategies.offload.memory import Extent
from outgrow.strategies.offload.wave_plan import Techniques

Numbers = NDArray[np.float64]
_CLASSES = 256


class Level(NamedTuple):
    """Nodes of a sampled neighbourhood before a layer.

    Attributes:
        share: ``[k]``, of the nodes of each degree, those that are there.
        edges: Edges of the layer above, which they are sources of; 0 for seeds.
    """

    share: Numbers
    edges: float


@dataclass(frozen=True, eq=False)
class Degrees:
    """Nodes by degree; in- and out-degree of a node are taken to be equal.

    Attributes:
        degree: ``[k]`` ascending.
        count: ``[k]``, nodes of each.
    """

    degree: Numbers
    count: Numbers

    @staticmethod
    def of(degrees: Tensor) -> Degrees:
        """Counted: ``[V]`` integers, in at most 256 classes."""
        counts = torch.bincount(degrees)
        value, count = (each.numpy().astype(np.float64) for each in (counts.nonzero()[:, 0], counts[counts > 0]))
        ends = np.unique(np.geomspace(1, len(value) + 1, _CLASSES).astype(np.int64)) - 1
        total, weight = (np.add.reduceat(each, ends[:-1]) for each in (count, count * value))
        return Degrees(weight / total, total)

    @staticmethod
    def power_law(nodes: int, edges: float, exponent: float, largest: float | None) -> Degrees:
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
        return Degrees(degree[::-1], count[::-1])

    @property
    def nodes(self) -> float:
        """``V``."""
        return float(self.count.sum())

    @property
    def edges(self) -> float:
        """``E``."""
        return float((self.count * self.degree).sum())

    def rows(self, share: Numbers) -> float:
        """How many nodes these shares are."""
        return float((self.count * share).sum())

    def found(self, draws: float) -> Numbers:
        """``[k]``: of nodes of each degree, those that so many edges drawn at random begin at."""
        return 1 - np.exp(-draws * self.degree / max(1.0, self.edges))

    def grown(self, seeds: float, hops: Sequence[int], hot: Numbers | None = None) -> list[Level]:
        """Levels of the neighbourhood of seeds drawn at random, the seeds first.

        Args:
            seeds: How many.
            hops: Most in-edges that are drawn of a node, hop by hop from the seeds; -1 for all.
            hot: ``[k]``, of the nodes of each degree, those of whose in-edges none are drawn in the last hop.
        """
        levels = [Level(np.full(len(self.count), min(1.0, seeds / self.nodes)), 0.0)]
        for number, hop in enumerate(hops, 1):
            share = levels[-1].share
            cold = share * (1 - hot) if hot is not None and number == len(hops) else share
            most = self.degree if hop < 0 else np.minimum(self.degree, hop)
            edges = self.rows(cold * most)
            levels.append(Level(1 - (1 - cold) * (1 - self.found(edges)), edges))
        return levels

    def hottest(self, most: float, hotness: Numbers) -> Numbers:
        """``[k]``: of the nodes of each degree, those among so many of the hottest."""
        order = np.argsort(-hotness)
        before = np.concatenate([[0.0], np.cumsum(self.count[order])[:-1]])
        share = np.zeros(len(self.count))
        share[order] = np.clip((most - before) / self.count[order], 0, 1)
        return share

    def reached(self, share: float) -> float:
        """Nodes that some edge leads to a set of, which a given share of all edges lead to, at random."""
        return self.rows(1 - (1 - share) ** self.degree)


_UNEVEN = 1.05
"""The largest part over the mean."""
_STAYS = 0.25
"""Of rows that chunks share, those that the next wave has in place."""
_PER_ROW, _PER_EDGE = 45, 12
"""Bytes of a wave in its file."""


class Modelled:
    """A graph that is known by figures; see `Shape` and `Sampling`. Final.

    Args:
        sizes: Of the graph.
        degrees: How degrees are spread.
        kept: Gives the share of edges that a partition leaves within parts, by its name and the number of parts.
    """

    def __init__(self, sizes: Sizes, degrees: Degrees, kept: Callable[[str, int], float]) -> None:
        self.sizes, self.degrees, self.kept = sizes, degrees, cache(kept)
        self.cut, self.chunked = cache(self._cut), cache(self._chunked)
        self.drawn, self.together, self.halves = cache(self._drawn), cache(self._together), cache(self._halves)

    def dealt(self, chunks: int, parts: int, *, self_loops: bool) -> Dealt:
        """See `Shape.dealt`."""
        return Dealt(_evenly(self.sizes.nodes, parts), in_order=False, owner_bytes=self._owner_bytes(parts))

    def _cut(self, method: str, parts: int, by: Drawing | None = None) -> Cut:
        away = self._away(method, parts)
        of_each = self.degrees.reached(away) / parts if parts > 1 else 0.0
        halo = np.full((parts, parts), round(of_each))
        np.fill_diagonal(halo, 0)
        edges = _evenly(self.sizes.edges, parts)
        edges[0] = round(edges[0] * (_UNEVEN if parts > 1 else 1))
        return Cut(_evenly(self.sizes.nodes, parts), edges, halo, self._owner_bytes(parts))

    def _away(self, method: str, parts: int) -> float:
        """Share of the edges of a part that lead to one other part."""
        return (1 - self.kept(method, parts)) / max(1, parts - 1)

    def _owner_bytes(self, parts: int) -> int:
        return self.sizes.nodes * (1 if parts <= 128 else 2)

    def _sources(self, method: str, parts: int) -> float:
        """Distinct sources of parts, in all: ``sum_i |N_i|``."""
        own = self.degrees.reached(self.kept(method, parts))
        return own + (parts - 1) * self.degrees.reached(self._away(method, parts))

    def _chunked(self, cutting: Cutting, views: tuple[bool, ...], parts: int, techniques: Techniques) -> Chunked:
        chunks, sizes = cutting.chunks, self.sizes
        alone = self._sources(cutting.partition, parts * chunks)
        union = max(float(sizes.nodes), (alone * self._sources(cutting.partition, chunks)) ** 0.5)
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
        extent = Extent(
            places=load * (1 + techniques.overlap) + remote,
            rows=rows,
            edges=edges,
            leaving=load,
            held=load + 2 * remote,
            moved=load * chunks,
        )
        num_bytes = _PER_ROW * (load + remote) + _PER_EDGE * edges + 16 * rows
        files = np.full((parts, chunks), num_bytes, dtype=np.int64)
        waves = Waves(round(loaded), sent, sent, files, extent)
        return Chunked(8 * parts * chunks, dict.fromkeys(views, waves))

    def _levels(self, drawing: Drawing, seeds: float, hot: Numbers | None = None) -> list[Level]:
        hops = [hop if isinstance(hop, int) else sum(hop) for hop in drawing.batches.hops(len(drawing.views))]
        return self.degrees.grown(seeds, hops, hot)

    def _seeds(self, drawing: Drawing) -> tuple[int, float, float]:
        """Seeds of a batch, batches of an epoch, and batches of full size."""
        size = min(drawing.batches.size or self.sizes.train, self.sizes.train)
        return size, -(-self.sizes.train // max(1, size)), self.sizes.train / max(1, size)

    def _grown(self, drawing: Drawing, levels: list[Level], parts: int, scale: float = 1.0) -> Grown:
        rows = [self.degrees.rows(level.share) * scale for level in reversed(levels)]
        edges = [level.edges * scale for level in reversed(levels[1:])]
        looped = [count + row * loop for count, row, loop in zip(edges, rows[1:], drawing.views, strict=True)]
        return Grown(np.tile(rows, (parts, 1)), np.tile(looped, (parts, 1)))

    def _gathered(self, share: Numbers, drawing: Drawing, parts: int, without: Numbers | None = None) -> Gathered:
        """Of batches that ask for the nodes of these shares, less those of which they have copies."""
        stays = self.kept(drawing.partition, parts) ** len(drawing.views)
        rows, asked = self.degrees.rows(share), share if without is None else share * (1 - without)
        each = self.degrees.rows(asked) * (1 - stays) / max(1, parts - 1)
        matrix = np.full((parts, parts), each)
        np.fill_diagonal(matrix, 0)
        return Gathered(rows * parts, matrix, self.sizes.row_entries)

    def _drawn(self, drawing: Drawing, parts: int) -> Drawn:
        seeds, steps, full = self._seeds(drawing)
        times = drawing.time_steps or 1
        levels = self._levels(drawing, seeds / parts)
        share = levels[-1].share
        if times > 1 and drawing.pregather:
            share = self._levels(drawing, seeds)[-1].share / parts
        copies = None
        if drawing.cached:
            copies = self.degrees.hottest(drawing.cached, self.degrees.degree)
        kept = np.full((parts, parts), drawing.cached // max(1, parts - 1))
        np.fill_diagonal(kept, 0)
        gathered = self._gathered(share, drawing, parts, copies)
        return Drawn(int(steps), full, self._grown(drawing, levels, parts), gathered, kept)

    def _together(self, drawing: Drawing, parts: int) -> Together:
        seeds, steps, full = self._seeds(drawing)
        levels, away = self._levels(drawing, seeds), self._away(drawing.partition, parts)
        grown = self._grown(drawing, levels, parts, 1 / parts)
        crossed = []
        for sources, destinations in zip(levels[:0:-1], levels[-2::-1], strict=True):
            given, taken = self.degrees.rows(sources.share), self.degrees.rows(destinations.share)
            one, other = (
                _pairs(count / parts * (1 - (1 - away) ** (sources.edges / max(1.0, count))), parts)
                for count in (given, taken)
            )
            crossed.append(Crossed(one, other, _pairs(sources.edges * away / parts, parts)))
        return Together(int(steps), full, grown, (tuple(crossed),))

    def _halves(self, drawing: Drawing, parts: int, hot_ratio: float, super_batch: int) -> Halves:
        seeds, steps, full = self._seeds(drawing)
        cold = self._levels(drawing, seeds / parts)
        bottom = cold[-2].share
        hot = self.degrees.hottest(hot_ratio * self.sizes.nodes / parts, bottom)
        warm = self._levels(drawing, seeds / parts, hot)
        queue = hot * (1 - (1 - bottom) ** super_batch)
        hop = drawing.batches.hops(len(drawing.views))[-1]
        most = self.degrees.degree if not isinstance(hop, int) or hop < 0 else np.minimum(self.degrees.degree, hop)
        nodes, edges = self.degrees.rows(queue), self.degrees.rows(queue * most)
        gathered = [
            self._gathered(share, drawing, parts)
            for share in (cold[-1].share, warm[-1].share, 1 - (1 - queue) * (1 - self.degrees.found(edges)))
        ]
        made = Hot(nodes * parts, edges * parts, gathered[2])
        grown = self._grown(drawing, warm, parts)
        return Halves(int(steps), full, grown, gathered[0], gathered[1], made)


def _pairs(count: float, parts: int) -> Matrix:
    """As many for each pair of workers."""
    found = np.full((parts, parts), round(count), dtype=np.int64)
    np.fill_diagonal(found, 0)
    return found


def _evenly(total: int, parts: int) -> Matrix:
    """``[P]``: as even as can be, the first ones larger by 1."""
    return np.array([total // parts + (part < total % parts) for part in range(parts)], dtype=np.int64)
