"""Structure of a block model: numbers of nodes, edges and communities, and the degree distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from outgrow.core.errors import InputError
from outgrow.graph.readers.source import Ids


@dataclass(frozen=True, kw_only=True)
class BlockStructure:
    """Nodes, edges, communities and degrees of a `BlockModel`.

    Node weights decrease with the rank as ``(rank + offset) ** (-1 / (exponent - 1))``, which gives degrees a
    tail of the given exponent (Chung, Lu: Connected components in random graphs with given expected degree
    sequences, Annals of Combinatorics 2002).

    Attributes:
        nodes: ``V``.
        edges: Number of edges generated; a symmetric graph has nearly twice as many directed edges.
        communities: Number of communities; their sizes differ by 1 at most.
        exponent: Exponent of the degree distribution, above 2; larger is more even.
        max_degree: Expected number of generated edges of the node with the most, ignoring communities; None
            for the plain power law. With a ``hub_share`` that of edges from it.
        locality: Share of the edges that must stay in the community of their first end, 0 to 1; others may
            stay by chance.
        decay: How steeply the number of other edges falls with the distance of communities, at least 0.
            Communities lie on a ring, by number; the distance ``d``, from 1 to half of the communities, is
            drawn with a probability in proportion to the integral of ``x ** -decay`` from ``d`` to ``d + 1``.
            0 means any community, regardless of distance.
        hub_share: Share of the nodes, those of most weight, that the source of every edge is one of, above 0; its
            destination is any node with equal probability. Then out-degrees follow the power law, and in-degrees
            are even, as in citations. None if both ends are drawn by weight.
        homophily: Share of nodes with the class of their community, 0 to 1; others have a random class.
        shuffled: Whether node ids are shuffled; otherwise a community is a range of ids.
    """

    nodes: int
    edges: int
    communities: int
    exponent: float = 2.5
    max_degree: float | None = None
    locality: float = 0.7
    decay: float = 0.0
    hub_share: float | None = None
    homophily: float = 0.9
    shuffled: bool = False

    def __post_init__(self) -> None:
        sizes = self.nodes >= 1 and self.edges >= 0 and 1 <= self.communities <= self.nodes
        shares = 0 <= self.locality <= 1 and 0 <= self.homophily <= 1
        hubs = self.hub_share is None or 0 < self.hub_share <= 1
        if not sizes or self.exponent <= 2 or not shares or not hubs or not 0 <= self.decay < math.inf:
            raise InputError(
                "this block model cannot be generated",
                needed="1 to V communities, an exponent above 2, locality and homophily from 0 to 1, a decay from 0, a "
                "share of hubs above 0, at most 1",
                got=f"{self.nodes} nodes, {self.edges} edges, {self.communities} communities, exponent "
                f"{self.exponent}, locality {self.locality}, homophily {self.homophily}, decay {self.decay}, "
                f"hub_share {self.hub_share}",
                repair="change the numbers of the structure",
            )
        least = self._weighted_ends / self.hubs
        if self.max_degree is not None and self.max_degree <= least:
            raise InputError(
                "no degree distribution has these numbers",
                needed=f"a largest degree above the average of {least:.1f}" + " of hubs" * (self.hub_share is not None),
                got=f"{self.max_degree:g}",
                repair="raise max_degree, or leave it out",
            )

    @property
    def average_degree(self) -> float:
        """Mean number of generated edges at a node, counting both ends."""
        return 2 * self.edges / self.nodes

    @property
    def hubs(self) -> int:
        """Number of nodes, those of most weight, that are drawn by weight; all without a ``hub_share``."""
        return self.nodes if self.hub_share is None else max(1, round(self.hub_share * self.nodes))

    @property
    def _weighted_ends(self) -> int:
        """Number of ends of edges that are drawn by weight."""
        return self.edges * (2 if self.hub_share is None else 1)

    @property
    def power(self) -> float:
        """Exponent of the distribution function of ranks, between 0 and 1."""
        return (self.exponent - 2) / (self.exponent - 1)

    @cached_property
    def offset(self) -> float:
        """Number added to ranks, at least 1, so that the first rank has the requested largest degree."""
        if self.max_degree is None or self._weighted_ends * self._top_rank_share(1.0) <= self.max_degree:
            return 1.0
        # Bisection in logarithms: the offset may be anything from 1 to many times the number of nodes.
        low = 0.0
        high = math.log(self.nodes) + 40
        for _ in range(100):
            middle = (low + high) / 2
            if self._weighted_ends * self._top_rank_share(math.exp(middle)) > self.max_degree:
                low = middle
            else:
                high = middle
        return math.exp(high)

    def community_starts(self) -> Ids:
        """Return ``[communities + 1]`` int64: the first id of each community before shuffling."""
        size, rest = divmod(self.nodes, self.communities)
        numbers = np.arange(self.communities + 1, dtype=np.int64)
        return numbers * size + np.minimum(numbers, rest)

    def _top_rank_share(self, offset: float) -> float:
        # Differences of powers, by expm1 and log1p: for large offsets they would cancel to zero.
        first = math.expm1(self.power * math.log1p(1 / offset))
        return first / math.expm1(self.power * math.log1p(self.hubs / offset))
