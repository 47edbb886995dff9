"""Kernels of the block model: draw a rank, turn it into a node, draw edges and labels."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.readers.source import Ids
from outgrow.graph.synthetic.structure import BlockStructure
from outgrow.ops.backend import parallel_kernel, prange, serial_kernel
from outgrow.ops.rng import as_int64, fold_in, hash64, permute_value, uniform01

_DEAL, _SEAT, _NAME = 31, 32, 33
_ONE = np.uint64(1)
_ALMOST_FLAT = 1e-9


class BlockModelParams(NamedTuple):
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
        shuffles_ids: Whether ids are scrambled.
        community_order_key: Key of the order in which each round of ranks goes to the communities.
        member_order_key: Key of the place of a node inside its community.
        id_shuffle_key: Key of the scrambling of ids.
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
    shuffles_ids: bool
    community_order_key: np.uint64
    member_order_key: np.uint64
    id_shuffle_key: np.uint64


def make_block_model_params(structure: BlockStructure, seed: int) -> BlockModelParams:
    """The law of a structure, with its keys."""
    low = structure.offset**structure.power
    # A decay of 1 has a logarithm for its distribution function: the limit of powers with an exponent close to 0.
    slope = 1 - structure.decay or _ALMOST_FLAT
    return BlockModelParams(
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
        shuffles_ids=structure.shuffled,
        community_order_key=np.uint64(fold_in(seed, _DEAL)),
        member_order_key=np.uint64(fold_in(seed, _SEAT)),
        id_shuffle_key=np.uint64(fold_in(seed, _NAME)),
    )


def draw_edges(params: BlockModelParams, key: int, first: int, count: int) -> tuple[Ids, Ids]:
    """Sources and destinations, ``[count]`` int64 each, of the edges ``first`` to ``first + count - 1``."""
    src = np.empty(count, dtype=np.int64)
    dst = np.empty(count, dtype=np.int64)
    _draw_edge_range(params, np.uint64(key), first, src, dst)
    return src, dst


def draw_labels(params: BlockModelParams, key: int, classes: int, homophily: float) -> NDArray[np.int32]:
    """Class of each node, ``[V]`` int32; with fewer communities than classes, a community has several."""
    labels = np.empty(params.nodes, dtype=np.int32)
    _draw_node_labels(params, np.uint64(key), classes, homophily, labels)
    return labels


@serial_kernel
def _draw_rank(params: BlockModelParams, drawn: float) -> int:
    rank = int((params.low + drawn * params.span) ** (1 / params.power) - params.offset)
    return min(max(rank, 0), params.nodes - 1)


@serial_kernel
def _community_of_rank(params: BlockModelParams, rank: int) -> int:
    turn, card = rank // params.communities, rank % params.communities
    if turn == params.nodes // params.communities:
        return card
    return as_int64(
        permute_value(
            np.uint64(card), np.uint64(params.communities), hash64(params.community_order_key, np.uint64(turn))
        )
    )


@serial_kernel
def _draw_far_community(params: BlockModelParams, home: int, drawn: float) -> int:
    # Going one way round is enough: either end of an edge is the first one as often.
    distance = int(math.exp(math.log1p(drawn * params.growth) / params.slope))
    return (home + min(distance, params.communities // 2)) % params.communities


@serial_kernel
def _node_of_member(params: BlockModelParams, community: int, round_index: int) -> int:
    size, rest = params.nodes // params.communities, params.nodes % params.communities
    start = community * size + min(community, rest)
    members = size + 1 if community < rest else size
    key = hash64(params.member_order_key, np.uint64(community))
    place = start + as_int64(permute_value(np.uint64(min(round_index, members - 1)), np.uint64(members), key))
    return (
        as_int64(permute_value(np.uint64(place), np.uint64(params.nodes), params.id_shuffle_key))
        if params.shuffles_ids
        else place
    )


@parallel_kernel
def _draw_edge_range(params: BlockModelParams, key: np.uint64, first: int, src: Ids, dst: Ids) -> None:
    for i in prange(len(src)):
        edge = hash64(key, np.uint64(first) + np.uint64(i))
        here = _draw_rank(params, uniform01(hash64(edge, np.uint64(0))))
        there = _draw_rank(params, uniform01(hash64(edge, np.uint64(1))))
        coins = hash64(edge, np.uint64(2))
        home = _community_of_rank(params, here)
        if uniform01(coins) < params.locality:
            away = home
        elif params.anywhere:
            away = _community_of_rank(params, there)
        else:
            away = _draw_far_community(params, home, uniform01(hash64(edge, np.uint64(3))))
        one = _node_of_member(params, home, here // params.communities)
        other = _node_of_member(params, away, there // params.communities)
        flip = (coins & _ONE) == _ONE
        src[i] = other if flip else one
        dst[i] = one if flip else other


@parallel_kernel
def _draw_node_labels(
    params: BlockModelParams, key: np.uint64, classes: int, homophily: float, labels: NDArray[np.int32]
) -> None:
    size, rest = params.nodes // params.communities, params.nodes % params.communities
    for i in prange(params.nodes):
        place = as_int64(i)
        small = place - rest * (size + 1)
        community = place // (size + 1) if small < 0 else rest + small // size
        drawn = hash64(key, np.uint64(place))
        label = as_int64(hash64(drawn, np.uint64(1)) % np.uint64(classes))
        if uniform01(drawn) < homophily:
            first = community % classes
            options = (classes - first + params.communities - 1) // params.communities
            label = first + (label % options) * params.communities
        node = (
            as_int64(permute_value(np.uint64(place), np.uint64(params.nodes), params.id_shuffle_key))
            if params.shuffles_ids
            else place
        )
        labels[node] = label
