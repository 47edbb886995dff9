"""How degrees are spread over the nodes of a graph, and what follows for samples and parts, in expectation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
