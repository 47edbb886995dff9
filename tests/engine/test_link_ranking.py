"""Ranks of links against a filtered ranking by loops, on one worker and on several."""

from __future__ import annotations

import math
from functools import cache, partial
from itertools import product
from typing import NamedTuple
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outgrow.engine import link_ranking
from outgrow.engine.link_ranking import KnownLinks, LinkRanker, LinkRanks
from outgrow.engine.shard import FullGraphShard, GraphShard, PartitionShard
from outgrow.graph.link_split import LinkTriples
from outgrow.nn import Decoder, DistMult, Dot
from outgrow.runtime.distributed.worker import WorkerContext
from pool import run_workers
from support import normal, topology_of

Fact = tuple[int, int, int]
"""Head, relation and tail."""
WIDTH = 4


class World(NamedTuple):
    """Links of a graph, of which some are asked for, and what a model makes of its nodes.

    Attributes:
        ends: Where the nodes of each type begin, and their number.
        known: All links.
        asked: Those to rank, which are among them.
        relations: How many relations there are; 0 for one that is not told.
        directed: Whether a link says nothing of its reverse.
        out: ``[V, F]``.
    """

    ends: tuple[int, ...]
    known: list[Fact]
    asked: list[Fact]
    relations: int
    directed: bool
    out: Tensor

    @property
    def decoder(self) -> Decoder:
        """Scales are whole numbers, so that scores of whole numbers are exact."""
        if not self.relations:
            return Dot()
        decoder = DistMult(WIDTH, self.relations).to(self.out.dtype)
        with torch.no_grad():
            scale = torch.arange(self.relations * WIDTH).remainder(4).sub(1).view(self.relations, WIDTH)
            decoder.relation.copy_(scale)
        return decoder

    def ranking(self, share: GraphShard | None = None) -> LinkRanker:
        held = share or FullGraphShard(topology_of(self.ends[-1], []))
        answers = KnownLinks(links_of(self.known), self.ends[-1], directed=self.directed)
        return LinkRanker(held, self.decoder, links_of(self.asked), answers, torch.tensor(self.ends))

    def on_part(self, share: PartitionShard) -> LinkRanks:
        return self.ranking(share).rank_links(self.out[share.owned_nodes])


def links_of(facts: list[Fact]) -> LinkTriples:
    table = torch.tensor(facts, dtype=torch.int64).reshape(-1, 3)
    return LinkTriples(*(table[:, column].contiguous() for column in (0, 2, 1)))


def rank_of(world: World, scale: Tensor, fact: Fact, side: int) -> float:
    """The rank of a tail (side 0) or a head (side 1): one more than what is better, and half of what is as good."""
    head, relation, tail = fact
    node, answer = (head, tail) if side == 0 else (tail, head)
    facts = {*world.known} | (set() if world.directed else {(t, r, h) for h, r, t in world.known})
    kind = max(t for t in range(len(world.ends) - 1) if world.ends[t] <= answer)
    better, same = 0, 0
    for other in range(world.ends[kind], world.ends[kind + 1]):
        claim = (node, relation, other) if side == 0 else (other, relation, node)
        if other in (node, answer) or claim in facts:
            continue
        mine, its = ((world.out[node] * scale[relation] * world.out[each]).sum() for each in (answer, other))
        better, same = better + int(its > mine), same + int(its == mine)
    return 1 + better + same / 2


def naive(world: World) -> list[float]:
    """The ranks of all questions, ascending."""
    scale = world.decoder.column_scale(world.out).detach()
    scale = scale if world.relations else scale.expand(max(fact[1] for fact in world.known) + 1, WIDTH)
    return sorted(rank_of(world, scale, fact, side) for side in (0, 1) for fact in world.asked)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Few nodes of one to three types, of which one may have no nodes; many scores are the same."""
    sizes = [*draw(st.lists(st.integers(0, 4), max_size=2)), draw(st.integers(2, 6))]
    ends = (0, *torch.tensor(sizes).cumsum(0).tolist())
    relations, node = draw(st.integers(0, 3)), st.integers(0, ends[-1] - 1)
    fact = st.tuples(node, st.integers(0, max(0, relations - 1)), node).filter(lambda each: each[0] != each[2])
    known = draw(st.lists(fact, min_size=1, max_size=12))
    numbers = draw(st.lists(st.integers(-2, 2), min_size=ends[-1] * WIDTH, max_size=ends[-1] * WIDTH))
    return World(
        ends=ends,
        known=known,
        asked=draw(st.lists(st.sampled_from(known), min_size=1, max_size=6, unique=True)),
        relations=relations,
        directed=draw(st.booleans()),
        out=torch.tensor(numbers, dtype=torch.float64).view(-1, WIDTH),
    )


@given(world=worlds(), chunk_bytes=st.sampled_from([1, 200, 64 << 20]))
@settings(deadline=None, max_examples=150)
def test_ranks_are_those_of_loops(world: World, chunk_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link_ranking, "CHUNK_BYTES", chunk_bytes)
        found = world.ranking().rank_links(world.out)
    assert found.rank.dtype == torch.float64
    assert sorted(found.rank.tolist()) == naive(world)


def spread(
    *, relations: int, directed: bool, ends: tuple[int, ...] = (0, 9, 9, 31, 60), dtype: torch.dtype = torch.float64
) -> World:
    """Sixty nodes, twenty of which are like others, and numbers so round that no sum of products is rounded."""
    generator = torch.Generator().manual_seed(relations)
    heads, tails = torch.randint(ends[-1], (2, 240), generator=generator).tolist()
    relation = torch.randint(max(1, relations), (240,), generator=generator).tolist()
    known = [fact for fact in zip(heads, relation, tails, strict=True) if fact[0] != fact[2]]
    out = normal(ends[-1], WIDTH, seed=4).mul(64).round().div(64).to(dtype)
    out[40:] = out[20:40].clone()
    return World(ends, known, [*dict.fromkeys(known[::5])], relations, directed, out)


def rounded(world: World) -> World:
    """The same with numbers of which every product is rounded; twenty nodes are still like others."""
    out = normal(*world.out.shape, seed=4).to(world.out.dtype)
    out[40:] = out[20:40].clone()
    return world._replace(out=out)


WORLDS = {
    "relations of types": spread(relations=4, directed=True),
    "one type": spread(relations=2, directed=True, ends=(0, 60)),
    "undirected": spread(relations=0, directed=False, ends=(0, 60)),
    "undirected types": spread(relations=0, directed=False),
    "in float32": spread(relations=4, directed=True, dtype=torch.float32),
}
ROUNDED = {f"{name}, rounded": rounded(world) for name, world in WORLDS.items()}


@pytest.mark.parametrize("name", WORLDS)
def test_ranks_of_many_links_are_those_of_loops(name: str) -> None:
    world = WORLDS[name]
    assert sorted(world.ranking().rank_links(world.out).rank.tolist()) == naive(world)
    assert any(rank % 1 for rank in naive(world))


@pytest.mark.parametrize("name", ROUNDED)
def test_nodes_that_are_alike_tie_however_products_are_rounded(name: str) -> None:
    world = ROUNDED[name]
    assert sorted(world.ranking().rank_links(world.out).rank.tolist()) == naive(world)
    assert any(rank % 1 for rank in naive(world))


DEALS = {
    "scattered": lambda size: torch.arange(60) * 7 % 60 % size,
    "ranges": lambda size: torch.arange(60) * size // 60,
    "almost all on one": lambda size: torch.where(torch.arange(60) == 30, 0, size - 1),
}
Found = dict[tuple[str, str, int], Tensor]


def on_worker(place: WorkerContext, chunks: tuple[int, ...]) -> Found:
    """The ranks that a worker has, by world, deal and size of chunks."""
    found = {}
    for chunk_bytes, (name, world) in product(chunks, (WORLDS | ROUNDED).items()):
        topology = topology_of(60, [])
        for deal, owner in DEALS.items():
            share = PartitionShard(topology, owner(place.comm.size), place.comm)
            with patch.object(link_ranking, "CHUNK_BYTES", chunk_bytes):
                found[name, deal, chunk_bytes] = world.on_part(share).rank
    return found


@cache
def by_workers(workers: int) -> list[Found]:
    return run_workers(partial(on_worker, chunks=(2000, 64 << 20)), workers)


def differing(workers: int, name: str, world: World) -> list[tuple[str, str, int]]:
    """Where some worker does not find the ranks that one alone finds."""
    alone = world.ranking().rank_links(world.out).rank
    found = [(key, ranks) for seen in by_workers(workers) for key, ranks in seen.items() if key[0] == name]
    assert len(found) == workers * len(DEALS) * 2
    return [key for key, ranks in found if not torch.equal(ranks, alone)]


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_workers_together_find_the_ranks_of_one(workers: int, name: str) -> None:
    assert differing(workers, name, WORLDS[name]) == []


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_workers_agree_on_ties_however_products_are_rounded(workers: int, name: str) -> None:
    assert differing(workers, name, ROUNDED[name]) == []


def test_figures() -> None:
    figures = LinkRanks(torch.tensor([1.0, 2.5, 4.0, 10.0, 11.0], dtype=torch.float64)).compute_metrics()
    assert list(figures) == ["mrr", "hits@1", "hits@3", "hits@10"]
    assert figures["mrr"] == pytest.approx((1 + 1 / 2.5 + 1 / 4 + 1 / 10 + 1 / 11) / 5, rel=1e-14)
    assert (figures["hits@1"], figures["hits@3"], figures["hits@10"]) == (0.2, 0.4, 0.8)


def test_nothing_asked_is_no_figure() -> None:
    world = WORLDS["relations of types"]._replace(asked=[])
    figures = world.ranking().rank_links(world.out).compute_metrics()
    assert all(math.isnan(value) for value in figures.values())


def test_what_is_known_is_no_competitor_whatever_its_part() -> None:
    """Nodes 1 and 2 score above the answer 3, of which 1 is a known tail of node 0."""
    out = torch.tensor([[1.0, 0, 0, 0], [9, 0, 0, 0], [8, 0, 0, 0], [7, 0, 0, 0]], dtype=torch.float64)
    world = World((0, 4), [(0, 0, 1), (0, 0, 3)], [(0, 0, 3)], 1, True, out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DistMult, "link_queries", lambda self, x, relation, **options: x)
        tail, head = world.ranking().rank_links(out).rank.tolist()
    assert (tail, head) == (2.0, 3.0)


def test_a_model_that_gives_no_numbers_is_last() -> None:
    world = World(
        ends=(0, 9),
        known=[(0, 0, 1)],
        asked=[(0, 0, 1)],
        relations=0,
        directed=True,
        out=torch.full((9, WIDTH), torch.nan, dtype=torch.float64),
    )
    assert world.ranking().rank_links(world.out).rank.tolist() == [8, 8]
