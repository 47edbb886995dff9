"""Kernels of the block model: draw ranks, map them to nodes, draw edges and labels."""

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
    """Parameters of a structure for the kernels.

    Attributes:
        nodes: ``V``.
        communities: Number of communities.
        offset: Number added to ranks.
        power: Exponent of the distribution function of ranks.
        low: Value at rank 0 of the distribution function before scaling.
        span: Growth of that function from the first to the last rank.
        locality: Share of edges that must stay in a community.
        anywhere: Whether edges that leave go to any community, regardless of distance.
        slope: Exponent of the distribution function of distances, not 0.
        growth: Growth of that function from distance 1 to the end of the farthest, relative to its value at
            1.
        hub_fraction: Value, from 0 to 1, of the distribution function of ranks at the last rank of a hub; 0 if both
            ends of edges are drawn by weight.
        shuffles_ids: Whether node ids are shuffled.
        community_order_key: Key of the order in which a round of ranks is assigned to the communities.
        member_order_key: Key of the position of a node inside its community.
        id_shuffle_key: Key of the shuffling of ids.
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
    hub_fraction: float
    shuffles_ids: bool
    community_order_key: np.uint64
    member_order_key: np.uint64
    id_shuffle_key: np.uint64


def make_block_model_params(structure: BlockStructure, seed: int) -> BlockModelParams:
    """Return the kernel parameters of a structure."""
    low = structure.offset**structure.power
    # A decay of 1 has a logarithm for its distribution function: the limit of powers with an exponent close to 0.
    slope = 1 - structure.decay or _ALMOST_FLAT
    span = (structure.nodes + structure.offset) ** structure.power - low
    # The distribution function ends at the last hub, so that no rank beyond it is drawn.
    hubs = 0 if structure.hub_share is None else structure.hubs
    return BlockModelParams(
        nodes=structure.nodes,
        communities=structure.communities,
        offset=structure.offset,
        power=structure.power,
        low=low,
        span=span,
        locality=structure.locality,
        anywhere=structure.decay == 0,
        slope=slope,
        growth=math.expm1(slope * math.log(structure.communities // 2 + 1)),
        hub_fraction=((hubs + structure.offset) ** structure.power - low) / span,
        shuffles_ids=structure.shuffled,
        community_order_key=np.uint64(fold_in(seed, _DEAL)),
        member_order_key=np.uint64(fold_in(seed, _SEAT)),
        id_shuffle_key=np.uint64(fold_in(seed, _NAME)),
    )


def draw_edges(params: BlockModelParams, key: int, first: int, count: int) -> tuple[Ids, Ids]:
    """Return the sources and destinations, ``[count]`` int64 each, of edges ``first`` to ``first + count - 1``."""
    src = np.empty(count, dtype=np.int64)
    dst = np.empty(count, dtype=np.int64)
    draw = _draw_hub_edge_range if params.hub_fraction else _draw_edge_range
    draw(params, np.uint64(key), first, src, dst)
    return src, dst


def draw_relation_edges(
    ends: tuple[BlockModelParams, BlockModelParams], key: int, first: int, count: int
) -> tuple[Ids, Ids]:
    """Return the sources and destinations, ``[count]`` int64 each, of edges between nodes of two types.

    Args:
        ends: Parameters of the type of the sources, whose locality counts, and of that of the destinations.
        key: Key of the edges.
        first: Number of the first edge.
        count: Number of edges.
    """
    src = np.empty(count, dtype=np.int64)
    dst = np.empty(count, dtype=np.int64)
    _draw_relation_range(*ends, np.uint64(key), first, src, dst)
    return src, dst


def draw_labels(params: BlockModelParams, key: int, classes: int, homophily: float) -> NDArray[np.int32]:
    """Return the class of each node, ``[V]`` int32; a community has several if there are more classes."""
    labels = np.empty(params.nodes, dtype=np.int32)
    _draw_node_labels(params, np.uint64(key), classes, homophily, labels)
    return labels


@serial_kernel
def _draw_rank(params: BlockModelParams, uniform: float) -> int:
    # Inverse of the distribution function: no table of weights, so any edge can be drawn alone.
    rank = int((params.low + uniform * params.span) ** (1 / params.power) - params.offset)
    # Rounding of the power can exceed the range at both ends.
    return min(max(rank, 0), params.nodes - 1)


@serial_kernel
def _community_of_rank(params: BlockModelParams, rank: int) -> int:
    round_index, position = rank // params.communities, rank % params.communities
    # The last round is incomplete: it goes to the first communities, those with one more member.
    if round_index == params.nodes // params.communities:
        return position
    return as_int64(
        permute_value(
            np.uint64(position),
            np.uint64(params.communities),
            hash64(params.community_order_key, np.uint64(round_index)),
        )
    )


@serial_kernel
def _draw_far_community(params: BlockModelParams, home: int, uniform: float) -> int:
    # One direction of the ring is enough, since either end of an edge is the first one equally often.
    # The inverse in logarithms stays exact when the exponent is close to 0.
    distance = int(math.exp(math.log1p(uniform * params.growth) / params.slope))
    return (home + min(distance, params.communities // 2)) % params.communities


@serial_kernel
def _draw_other_community(params: BlockModelParams, home: int, other: int, edge: np.uint64, bits: np.uint64) -> int:
    if uniform01(bits) < params.locality:
        return home
    if params.anywhere:
        return _community_of_rank(params, other)
    return _draw_far_community(params, home, uniform01(hash64(edge, np.uint64(3))))


@serial_kernel
def _node_of_member(params: BlockModelParams, community: int, round_index: int) -> int:
    size, rest = params.nodes // params.communities, params.nodes % params.communities
    # The first communities have one more member, so all starts follow from the number alone.
    start = community * size + min(community, rest)
    members = size + 1 if community < rest else size
    # An order of its own for each community: hubs must not have the same position in all of them.
    key = hash64(params.member_order_key, np.uint64(community))
    position = start + as_int64(permute_value(np.uint64(min(round_index, members - 1)), np.uint64(members), key))
    return (
        as_int64(permute_value(np.uint64(position), np.uint64(params.nodes), params.id_shuffle_key))
        if params.shuffles_ids
        else position
    )


@parallel_kernel
def _draw_edge_range(params: BlockModelParams, key: np.uint64, first: int, src: Ids, dst: Ids) -> None:
    for i in prange(len(src)):
        # A key for each edge: any range can be drawn by any thread, in any order.
        edge = hash64(key, np.uint64(first) + np.uint64(i))
        here = _draw_rank(params, uniform01(hash64(edge, np.uint64(0))))
        there = _draw_rank(params, uniform01(hash64(edge, np.uint64(1))))
        bits = hash64(edge, np.uint64(2))
        home = _community_of_rank(params, here)
        away = _draw_other_community(params, home, there, edge, bits)
        one = _node_of_member(params, home, here // params.communities)
        other = _node_of_member(params, away, there // params.communities)
        # The lowest bit: the comparison with the locality above uses the upper ones.
        flip = (bits & _ONE) == _ONE
        src[i] = other if flip else one
        dst[i] = one if flip else other


@parallel_kernel
def _draw_hub_edge_range(params: BlockModelParams, key: np.uint64, first: int, src: Ids, dst: Ids) -> None:
    for i in prange(len(src)):
        edge = hash64(key, np.uint64(first) + np.uint64(i))
        hub = _draw_rank(params, uniform01(hash64(edge, np.uint64(0))) * params.hub_fraction)
        other = min(int(uniform01(hash64(edge, np.uint64(1))) * params.nodes), params.nodes - 1)
        bits = hash64(edge, np.uint64(2))
        home = _community_of_rank(params, hub)
        away = _draw_other_community(params, home, other, edge, bits)
        # Either end of a distance has the hub equally often: edges lead both ways around the ring.
        flip = (bits & _ONE) == _ONE
        src[i] = _node_of_member(params, away if flip else home, hub // params.communities)
        dst[i] = _node_of_member(params, home if flip else away, other // params.communities)


@parallel_kernel
def _draw_relation_range(
    source: BlockModelParams, target: BlockModelParams, key: np.uint64, first: int, src: Ids, dst: Ids
) -> None:
    for i in prange(len(src)):
        edge = hash64(key, np.uint64(first) + np.uint64(i))
        here = _draw_rank(source, uniform01(hash64(edge, np.uint64(0))))
        there = _draw_rank(target, uniform01(hash64(edge, np.uint64(1))))
        bits = hash64(edge, np.uint64(2))
        home = _community_of_rank(source, here)
        if uniform01(bits) < source.locality:
            # The community of the same number; if one side has more of them, some that are equal modulo the other.
            low = home % target.communities
            options = (target.communities - low + source.communities - 1) // source.communities
            away = low + as_int64(hash64(edge, np.uint64(3)) % np.uint64(options)) * source.communities
        else:
            away = _community_of_rank(target, there)
        src[i] = _node_of_member(source, home, here // source.communities)
        dst[i] = _node_of_member(target, away, there // target.communities)


@parallel_kernel
def _draw_node_labels(
    params: BlockModelParams, key: np.uint64, classes: int, homophily: float, labels: NDArray[np.int32]
) -> None:
    size, rest = params.nodes // params.communities, params.nodes % params.communities
    for i in prange(params.nodes):
        position = as_int64(i)
        # Position behind the larger communities; negative inside of them.
        small = position - rest * (size + 1)
        community = position // (size + 1) if small < 0 else rest + small // size
        number = hash64(key, np.uint64(position))
        label = as_int64(hash64(number, np.uint64(1)) % np.uint64(classes))
        if uniform01(number) < homophily:
            first = community % classes
            # Classes that are equal to the community modulo the number of communities; one, if there are
            # enough communities.
            options = (classes - first + params.communities - 1) // params.communities
            label = first + (label % options) * params.communities
        node = (
            as_int64(permute_value(np.uint64(position), np.uint64(params.nodes), params.id_shuffle_key))
            if params.shuffles_ids
            else position
        )
        labels[node] = label
