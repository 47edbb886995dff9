"""Kernels of the block model: draw a rank, turn it into a node, draw edges and labels."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.readers.source import Ids
from outgrow.graph.synthetic.structure import BlockStructure
from outgrow.ops.backend import kernel, prange, sequential
from outgrow.ops.rng import derive, mix, permuted, signed, uniform

_DEAL, _SEAT, _NAME = 31, 32, 33
_ONE = np.uint64(1)
_ALMOST_FLAT = 1e-9


class Law(NamedTuple):
    """What kernels need to know of a structure.

    Attributes:
        nodes: ``V``.
        communities: Number of communities.
        offset: Added to ranks.
        power: Exponent of the distribution function of ranks.
        low: Distribution function before it is scaled, at rank 0.
        span: How much it grows from the first to the last rank.
        locality: Share of edges that must stay in a community.
        anywhere: Whether edges that leave go to any community, with no regard to distance.
        slope: Exponent of the distribution function of distances, not 0.
        growth: How much that grows from distance 1 to the end of the farthest, as a share of what it is at 1.
        shuffled: Whether ids are scrambled.
        deal: Key of the order in which each round of ranks goes to the communities.
        seat: Key of the place of a node inside its community.
        name: Key of the scrambling of ids.
    """

    nodes: int
    communities: int
    offset: float
    power: float
    low: float
    span: float
    locality: float
    anywhere: bool
    slope: float
    growth: float
    shuffled: bool
    deal: np.uint64
    seat: np.uint64
    name: np.uint64


def law_of(structure: BlockStructure, seed: int) -> Law:
    """The law of a structure, with its keys."""
    low = structure.offset**structure.power
    # A decay of 1 has a logarithm for its distribution function: the limit of powers with an exponent close to 0.
    slope = 1 - structure.decay or _ALMOST_FLAT
    return Law(
        nodes=structure.nodes,
        communities=structure.communities,
        offset=structure.offset,
        power=structure.power,
        low=low,
        span=(structure.nodes + structure.offset) ** structure.power - low,
        locality=structure.locality,
        anywhere=structure.decay == 0,
        slope=slope,
        growth=math.expm1(slope * math.log(structure.communities // 2 + 1)),
        shuffled=structure.shuffled,
        deal=np.uint64(derive(seed, _DEAL)),
        seat=np.uint64(derive(seed, _SEAT)),
        name=np.uint64(derive(seed, _NAME)),
    )


def draw_edges(law: Law, key: int, first: int, count: int) -> tuple[Ids, Ids]:
    """Sources and destinations, ``[count]`` int64 each, of the edges ``first`` to ``first + count - 1``."""
    src, dst = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    _draw(law, np.uint64(key), first, src, dst)
    return src, dst


def draw_labels(law: Law, key: int, classes: int, homophily: float) -> NDArray[np.int32]:
    """Class of each node, ``[V]`` int32; with fewer communities than classes, a community has several."""
    labels = np.empty(law.nodes, dtype=np.int32)
    _label(law, np.uint64(key), classes, homophily, labels)
    return labels


@sequential
def _rank(law: Law, drawn: float) -> int:
    rank = int((law.low + drawn * law.span) ** (1 / law.power) - law.offset)
    return min(max(rank, 0), law.nodes - 1)


@sequential
def _community(law: Law, rank: int) -> int:
    turn, card = rank // law.communities, rank % law.communities
    if turn == law.nodes // law.communities:
        return card
    return signed(permuted(np.uint64(card), np.uint64(law.communities), mix(law.deal, np.uint64(turn))))


@sequential
def _far_community(law: Law, home: int, drawn: float) -> int:
    # Going one way round is enough: either end of an edge is the first one as often.
    distance = int(math.exp(math.log1p(drawn * law.growth) / law.slope))
    return (home + min(distance, law.communities // 2)) % law.communities


@sequential
def _node(law: Law, community: int, turn: int) -> int:
    size, rest = law.nodes // law.communities, law.nodes % law.communities
    start = community * size + min(community, rest)
    members = size + 1 if community < rest else size
    key = mix(law.seat, np.uint64(community))
    place = start + signed(permuted(np.uint64(min(turn, members - 1)), np.uint64(members), key))
    return signed(permuted(np.uint64(place), np.uint64(law.nodes), law.name)) if law.shuffled else place


@kernel
def _draw(law: Law, key: np.uint64, first: int, src: Ids, dst: Ids) -> None:
    for i in prange(len(src)):
        edge = mix(key, np.uint64(first) + np.uint64(i))
        here = _rank(law, uniform(mix(edge, np.uint64(0))))
        there = _rank(law, uniform(mix(edge, np.uint64(1))))
        coins = mix(edge, np.uint64(2))
        home = _community(law, here)
        if uniform(coins) < law.locality:
            away = home
        elif law.anywhere:
            away = _community(law, there)
        else:
            away = _far_community(law, home, uniform(mix(edge, np.uint64(3))))
        one = _node(law, home, here // law.communities)
        other = _node(law, away, there // law.communities)
        flip = (coins & _ONE) == _ONE
        src[i] = other if flip else one
        dst[i] = one if flip else other


@kernel
def _label(law: Law, key: np.uint64, classes: int, homophily: float, labels: NDArray[np.int32]) -> None:
    size, rest = law.nodes // law.communities, law.nodes % law.communities
    for i in prange(law.nodes):
        place = signed(i)
        small = place - rest * (size + 1)
        community = place // (size + 1) if small < 0 else rest + small // size
        drawn = mix(key, np.uint64(place))
        label = signed(mix(drawn, np.uint64(1)) % np.uint64(classes))
        if uniform(drawn) < homophily:
            first = community % classes
            options = (classes - first + law.communities - 1) // law.communities
            label = first + (label % options) * law.communities
        node = signed(permuted(np.uint64(place), np.uint64(law.nodes), law.name)) if law.shuffled else place
        labels[node] = label
