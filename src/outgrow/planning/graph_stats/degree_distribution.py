"""Numbers of nodes by degree, and what is expected of neighbourhoods that are sampled among them.

The model: edges begin at nodes in proportion to their degrees, and both ends of an edge are independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.graph.sampling.edge_sampler import FASTGCN, LABOR, NEIGHBOR, WITH_REPLACEMENT

Numbers = NDArray[np.float64]
_CLASSES = 256
"""Largest number of classes of degrees."""


class NeighborhoodLevel(NamedTuple):
    """Nodes of one level of a sampled neighbourhood.

    Attributes:
        share: ``[k]``, share of the nodes of each degree that are in the level.
        edges: Edges of which they are the sources; 0 for seeds.
    """

    share: Numbers
    edges: float


@dataclass(frozen=True, eq=False)
class DegreeDistribution:
    """Numbers of nodes by degree; in- and out-degree of a node are assumed to be equal.

    Attributes:
        degree: ``[k]`` ascending.
        count: ``[k]``, nodes of each degree.
    """

    degree: Numbers
    count: Numbers

    @staticmethod
    def from_degrees(degrees: Tensor) -> DegreeDistribution:
        """Return the distribution of ``[V]`` integer degrees, in at most 256 classes."""
        counts = torch.bincount(degrees)
        value, count = (each.numpy().astype(np.float64) for each in (counts.nonzero()[:, 0], counts[counts > 0]))
        # Geometric classes: few nodes have high degrees, but much of all edges.
        ends = np.unique(np.geomspace(1, len(value) + 1, _CLASSES).astype(np.int64)) - 1
        total, weight = (np.add.reduceat(each, ends[:-1]) for each in (count, count * value))
        # The mean degree of a class keeps the number of edges as it is.
        return DegreeDistribution(weight / total, total)

    @staticmethod
    def from_power_law(nodes: int, edges: float, exponent: float, largest: float | None) -> DegreeDistribution:
        """Return degrees that fall with their rank as ``(rank + offset) ** (-1 / (exponent - 1))``.

        The offset is the least with which no degree exceeds ``largest``.
        """
        ends = np.unique(np.geomspace(1, nodes + 1, _CLASSES)) - 1
        rank, count = (ends[1:] + ends[:-1]) / 2, np.diff(ends)
        low, high = 1.0, float(nodes)
        # Bisection on a logarithmic scale: a larger offset flattens the head of the distribution.
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
        """Return the number of nodes in shares ``[k]`` of each degree."""
        return float((self.count * share).sum())

    def hit_share(self, num_draws: float) -> Numbers:
        """Return ``[k]``: the share of nodes of each degree at which at least one of ``num_draws`` edges begins."""
        # A node of degree d is missed by n draws among E edges with probability (1 - d/E)^n, about exp(-n d/E).
        return 1 - np.exp(-num_draws * self.degree / max(1.0, self.num_edges))

    def neighborhood_levels(
        self, seeds: float | Numbers, hops: Sequence[int], hot: Numbers | None = None, sampler: str = NEIGHBOR
    ) -> list[NeighborhoodLevel]:
        """Return the levels of the neighbourhood of random seeds, the seeds first.

        Args:
            seeds: Number of seeds, or ``[k]``, the share of the nodes of each degree that are seeds.
            hops: Fan-out of each hop from the seeds; -1 for all in-edges.
            hot: ``[k]``, share of the nodes of each degree that are not expanded in the last hop.
            sampler: One of `outgrow.graph.sampling.edge_sampler.SAMPLERS`.
        """
        if not isinstance(seeds, np.ndarray):
            seeds = np.full(len(self.count), min(1.0, seeds / self.num_nodes))
        levels = [NeighborhoodLevel(seeds, 0.0)]
        for number, hop in enumerate(hops, 1):
            share = levels[-1].share
            cold = share * (1 - hot) if hot is not None and number == len(hops) else share
            found = self.sample_hop(cold, hop, sampler)
            # A level contains the one before: destinations are the first of the sources.
            levels.append(NeighborhoodLevel(1 - (1 - cold) * (1 - found.share), found.edges))
        return levels

    def sample_hop(self, share: Numbers, hop: int, sampler: str = NEIGHBOR) -> NeighborhoodLevel:
        """Return the sources of the edges that are sampled for some destinations, and how many edges these are.

        Args:
            share: ``[k]``, share of the nodes of each degree that are destinations.
            hop: Fan-out; -1 for all in-edges.
            sampler: One of `outgrow.graph.sampling.edge_sampler.SAMPLERS`.
        """
        if hop < 0:
            edges = self.count_nodes(share * self.degree)
        elif sampler == WITH_REPLACEMENT:
            edges = self.count_nodes(share * self._distinct_draws(hop))
        elif sampler == FASTGCN:
            # Where degrees of both ends are independent, all columns have the same norm: |A_u|^2 is the sum over d_u
            # edges of 1 / (d_u d_v). Every node with edges is then drawn alike.
            drawn = 1 - np.exp(-hop / max(1.0, float(self.count[self.degree > 0].sum())))
            edges = self.count_nodes(share * self.degree)
            return NeighborhoodLevel(drawn * self.hit_share(edges), drawn * edges)
        else:
            edges = self.count_nodes(share * np.minimum(self.degree, hop))
            if sampler == LABOR:
                return NeighborhoodLevel(self._shared_sources(share, hop), edges)
        return NeighborhoodLevel(self.hit_share(edges), edges)

    def _distinct_draws(self, draws: int) -> Numbers:
        """Return ``[k]``: expected number of distinct edges among so many draws with replacement."""
        missed = 1 - 1 / np.maximum(1.0, self.degree)
        return np.minimum(self.degree, self.degree * (1 - missed**draws))

    def _shared_sources(self, share: Numbers, hop: int) -> Numbers:
        """Return ``[k]``: the share of nodes of each degree that LABOR samples for some destinations.

        A destination of degree ``d`` keeps about the sources with ``r_u < hop / d``, so a source is kept if its number
        is below the largest of these bounds, that of its destination with the smallest degree.
        """
        # Edges into destinations of this degree or less, of all edges; degrees are ascending.
        into = np.minimum(1.0, np.cumsum(self.count * self.degree * share) / max(1.0, self.num_edges))
        bound = np.minimum(1.0, hop / np.maximum(1.0, self.degree))
        # [k, k]: the smallest degree among the destinations of a source is at most that of the class.
        found = 1 - np.exp(-self.degree[:, None] * into)
        return np.diff(found, axis=1, prepend=0) @ bound

    def hottest_share(self, most: float, hotness: Numbers) -> Numbers:
        """Return ``[k]``: the share of the nodes of each degree among the ``most`` hottest nodes."""
        order = np.argsort(-hotness)
        before = np.concatenate([[0.0], np.cumsum(self.count[order])[:-1]])
        share = np.zeros(len(self.count))
        # Hotter classes are filled first; the class at the border gets what is left.
        share[order] = np.clip((most - before) / self.count[order], 0, 1)
        return share

    def expected_sources(self, share: float) -> float:
        """Return the number of distinct sources of a random ``share`` of all edges."""
        # A node of degree d is a source unless all its d edges are among the others.
        return self.count_nodes(1 - (1 - share) ** self.degree)
