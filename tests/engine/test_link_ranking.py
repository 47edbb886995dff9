"""Ranks of links against a filtered ranking by loops, on one worker and on several."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import NamedTuple
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.ranking_mutants import MUTANTS
from outgrow.engine import link_ranking
from outgrow.engine.link_ranking import KnownLinks, LinkRanker
from outgrow.engine.link_ranks import LINK_METRICS, LinkRanks, measure_separation
from outgrow.engine.shard import FullGraphShard, GraphShard, PartitionShard
from outgrow.graph.link_split import LinkCandidates, LinkTriples
from outgrow.nn import Bilinear, ComplEx, Decoder, DistMult, Dot, MLPDecoder, TransE
from outgrow.ops.candidate_scores import count_products, pair_products, row_norms
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
    kind: str = "product"
    rank_self: bool = False
    candidates: LinkCandidates | None = None

    @property
    def decoder(self) -> Decoder:
        """Scales are whole numbers, so that scores of whole numbers are exact."""
        if self.kind != "product":
            decoder = OTHERS[self.kind](self.relations).to(self.out.dtype)
            with torch.no_grad():
                for parameter in decoder.parameters():
                    parameter.copy_(torch.arange(parameter.numel()).remainder(5).sub(2).view(parameter.shape))
            return decoder
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
        options = {"rank_self": self.rank_self, "candidates": self.candidates}
        return LinkRanker(held, self.decoder, links_of(self.asked), answers, torch.tensor(self.ends), **options)

    def on_part(self, share: PartitionShard) -> LinkRanks:
        return self.ranking(share).rank_links(self.out[share.owned_nodes])


OTHERS: dict[str, Callable[[int], Decoder]] = {
    "complex": lambda relations: ComplEx(WIDTH, relations),
    "bilinear": lambda relations: Bilinear(WIDTH, relations),
    "transe": lambda relations: TransE(WIDTH, relations, margin=3.0),
    "mlp": lambda relations: MLPDecoder(WIDTH, relations, hidden=3),
}
"""Decoders that tell heads from tails; each gives whole numbers for whole numbers."""


def links_of(facts: list[Fact]) -> LinkTriples:
    table = torch.tensor(facts, dtype=torch.int64).reshape(-1, 3)
    return LinkTriples(*(table[:, column].contiguous() for column in (0, 2, 1)))


def rank_of(world: World, decoder: Decoder, number: int, side: int) -> float:
    """The rank of a tail (side 0) or a head (side 1): one more than what is better, and half of what is as good."""
    head, relation, tail = world.asked[number]
    node, answer = (head, tail) if side == 0 else (tail, head)

    def score(other: int) -> float:
        first, last = (node, other) if side == 0 else (other, node)
        rows = world.out[[first]], torch.tensor([relation]), world.out[[last]]
        return decoder.score(*rows).item()

    if world.candidates is not None:
        given = world.candidates.of_end(("tail", "head")[side])
        assert given is not None
        others = [other for other in given[number].tolist() if other != answer]
        return 1 + sum((score(other) > score(answer)) + (score(other) == score(answer)) / 2 for other in others)
    facts = {*world.known} | (set() if world.directed else {(t, r, h) for h, r, t in world.known})
    kind = max(t for t in range(len(world.ends) - 1) if world.ends[t] <= answer)
    better, same = 0, 0
    for other in range(world.ends[kind], world.ends[kind + 1]):
        claim = (node, relation, other) if side == 0 else (other, relation, node)
        if other == answer or (other == node and not world.rank_self) or claim in facts:
            continue
        mine, its = score(answer), score(other)
        better, same = better + int(its > mine), same + int(its == mine)
    return 1 + better + same / 2


def naive(world: World) -> list[float]:
    """The ranks of all tails, then of all heads."""
    decoder = world.decoder
    return [rank_of(world, decoder, number, side) for side in (0, 1) for number in range(len(world.asked))]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Few nodes of one to three types, of which one may have no nodes; many scores are the same."""
    sizes = [*draw(st.lists(st.integers(0, 4), max_size=2)), draw(st.integers(2, 6))]
    ends = (0, *torch.tensor(sizes).cumsum(0).tolist())
    relations, node = draw(st.integers(0, 3)), st.integers(0, ends[-1] - 1)
    rank_self = draw(st.booleans())
    kind = draw(st.sampled_from(["product", *OTHERS])) if relations else "product"
    fact = st.tuples(node, st.integers(0, max(0, relations - 1)), node).filter(
        lambda each: rank_self or each[0] != each[2]
    )
    known = draw(st.lists(fact, min_size=1, max_size=12))
    numbers = draw(st.lists(st.integers(-2, 2), min_size=ends[-1] * WIDTH, max_size=ends[-1] * WIDTH))
    return World(
        ends=ends,
        known=known,
        asked=draw(st.lists(st.sampled_from(known), min_size=1, max_size=6, unique=True)),
        relations=relations,
        directed=draw(st.booleans()),
        out=torch.tensor(numbers, dtype=draw(st.sampled_from([torch.float32, torch.float64]))).view(-1, WIDTH),
        kind=kind,
        rank_self=rank_self,
    )


@given(world=worlds(), chunk_bytes=st.sampled_from([1, 200, 64 << 20]))
@settings(deadline=None, max_examples=150)
def test_ranks_are_those_of_loops(world: World, chunk_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link_ranking, "CHUNK_BYTES", chunk_bytes)
        found = world.ranking().rank_links(world.out)
    assert found.rank.dtype == torch.float64
    assert found.rank.tolist() == naive(world)


def spread(
    *,
    relations: int,
    directed: bool,
    ends: tuple[int, ...] = (0, 9, 9, 31, 60),
    dtype: torch.dtype = torch.float64,
    kind: str = "product",
) -> World:
    """Sixty nodes, twenty of which are like others, and numbers so round that no sum of products is rounded."""
    generator = torch.Generator().manual_seed(relations)
    heads, tails = torch.randint(ends[-1], (2, 240), generator=generator).tolist()
    relation = torch.randint(max(1, relations), (240,), generator=generator).tolist()
    known = [fact for fact in zip(heads, relation, tails, strict=True) if fact[0] != fact[2]]
    out = normal(ends[-1], WIDTH, seed=4).mul(64).round().div(64).to(dtype)
    out[40:] = out[20:40].clone()
    return World(ends, known, [*dict.fromkeys(known[::5])], relations, directed, out, kind)


def with_candidates(world: World) -> World:
    """The same with five nodes that each end is ranked among, some of them twice or the answer itself."""
    generator = torch.Generator().manual_seed(2)
    head, tail = torch.randint(world.ends[-1], (2, len(world.asked), 5), generator=generator)
    head[0, 0], tail[1, 0] = world.asked[0][0], world.asked[1][2]
    # Of the type of the answer, since others are no candidates of a link.
    for each, column in ((head, 0), (tail, 2)):
        for row, fact in zip(each, world.asked, strict=True):
            first = max(end for end in world.ends if end <= fact[column])
            last = next(end for end in world.ends if end > fact[column])
            row.copy_(first + row % (last - first))
    return world._replace(candidates=LinkCandidates(head, tail))


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
    **{kind: spread(relations=4, directed=True, dtype=torch.float32, kind=kind) for kind in OTHERS},
    "with the node asked about": spread(relations=2, directed=True)._replace(rank_self=True),
    "given candidates": with_candidates(spread(relations=4, directed=True, dtype=torch.float32, kind="complex")),
    "given candidates of distances": with_candidates(spread(relations=4, directed=True, kind="transe")),
}
ROUNDED = {f"{name}, rounded": rounded(world) for name, world in WORLDS.items()}


@pytest.mark.parametrize("name", WORLDS)
def test_ranks_of_many_links_are_those_of_loops(name: str) -> None:
    world = WORLDS[name]
    assert world.ranking().rank_links(world.out).rank.tolist() == naive(world)
    assert any(rank % 1 for rank in naive(world))


@pytest.mark.parametrize("name", ROUNDED)
def test_nodes_that_are_alike_tie_however_products_are_rounded(name: str) -> None:
    world = ROUNDED[name]
    assert world.ranking().rank_links(world.out).rank.tolist() == naive(world)
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


def ranks_of(values: list[float], score: list[float], wrong: list[float]) -> LinkRanks:
    rank = torch.tensor(values, dtype=torch.float64)
    return LinkRanks(rank, torch.zeros(len(values) // 2, dtype=torch.int64), torch.tensor(score), torch.tensor(wrong))


def test_figures() -> None:
    figures = ranks_of([1.0, 2.5, 4.0, 10.0, 11.0], [], []).compute_metrics()
    assert list(figures) == [*LINK_METRICS] == ["mrr", "hits@1", "hits@3", "hits@10", "mean_rank", "auc", "ap"]
    assert figures["mrr"] == pytest.approx((1 + 1 / 2.5 + 1 / 4 + 1 / 10 + 1 / 11) / 5, rel=1e-14)
    assert (figures["hits@1"], figures["hits@3"], figures["hits@10"]) == (0.2, 0.4, 0.8)
    assert figures["mean_rank"] == 5.7


FEW_SCORES = st.lists(st.integers(0, 5), min_size=1, max_size=12)


@given(right=FEW_SCORES, wrong=FEW_SCORES)
def test_separation_is_that_of_the_definitions(right: list[int], wrong: list[int]) -> None:
    auc, ap = measure_separation(torch.tensor(right).float(), torch.tensor(wrong).float())
    pairs = [(mine > its) + (mine == its) / 2 for mine in right for its in wrong]
    assert auc == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)
    # Precision at the threshold of each right answer: the share of right ones among all that are as high.
    above = [[sum(each >= limit for each in part) for part in (right, wrong)] for limit in right]
    assert ap == pytest.approx(sum(r / (r + w) for r, w in above) / len(right), abs=1e-12)


@pytest.mark.parametrize("name", ["relations of types", "undirected", "with the node asked about", "complex"])
def test_wrong_answers_are_of_the_type_of_the_answer_and_no_known_ones(name: str) -> None:
    world = WORLDS[name]
    ranking = world.ranking()
    facts = {*world.known} | (set() if world.directed else {(t, r, h) for h, r, t in world.known})
    assert [len(each) for each in ranking._wrong_answers] == [len(world.asked)] * 2
    for side, wrong in enumerate(ranking._wrong_answers):
        for (head, relation, tail), other in zip(world.asked, wrong.tolist(), strict=True):
            node, answer = (head, tail) if side == 0 else (tail, head)
            kind = max(t for t in range(len(world.ends) - 1) if world.ends[t] <= answer)
            assert world.ends[kind] <= other < world.ends[kind + 1]
            assert ((node, relation, other) if side == 0 else (other, relation, node)) not in facts
            assert world.rank_self or other != node
    assert any(len({*each.tolist()}) > 10 for each in ranking._wrong_answers)
    # They are drawn by the number of a link, so that a ranking of the first ones has the same.
    fewer = world._replace(asked=world.asked[:7]).ranking()
    assert [each.tolist() for each in fewer._wrong_answers] == [each[:7].tolist() for each in ranking._wrong_answers]


def test_where_every_node_is_an_answer_no_wrong_one_is_drawn() -> None:
    known = [(0, 0, 1), (0, 0, 2)]
    out = torch.arange(12.0).view(3, WIDTH)
    found = World((0, 3), known, known, 1, True, out).ranking().rank_links(out)
    assert found.wrong[:2].isnan().all()
    assert found.wrong[2:].isfinite().all()
    assert 0 <= found.compute_metrics()["auc"] <= 1


def test_figures_by_end_and_relation_are_those_of_their_links() -> None:
    world = WORLDS["complex"]
    found = world.ranking().rank_links(world.out)
    described = found.describe(("a", "b", "c", "d"))
    assert described["links"] == len(world.asked)
    assert {name: described[name] for name in LINK_METRICS} == found.compute_metrics()
    count, expected = len(world.asked), torch.tensor(naive(world))
    assert described["by_end"]["tail"]["mrr"] == pytest.approx((1 / expected[:count]).mean().item())
    assert described["by_end"]["head"]["mrr"] == pytest.approx((1 / expected[count:]).mean().item())
    for number, name in enumerate("abcd"):
        here = torch.tensor([fact[1] == number for fact in world.asked])
        part = described["by_relation"][name]
        assert part["links"] == int(here.sum())
        assert part["mean_rank"] == pytest.approx(expected[here.repeat(2)].double().mean().item())
        assert part["by_end"]["head"]["mean_rank"] == pytest.approx(expected[count:][here].double().mean().item())
    assert "by_relation" not in found.describe(())


@pytest.mark.parametrize("width", [1, 3, 8, 200])
def test_products_in_float32_decide_as_those_in_float64(width: int) -> None:
    """Some rows are a queried one's answer but for the last digit, of which float32 knows nothing."""
    queries, rows = normal(7, width), normal(300, width, seed=1).float()
    rows[100:200] = rows[:100]
    rows[200:] = rows[:100] * (1 + 2.0**-23)
    at = torch.arange(7) * 30
    threshold = pair_products(queries, torch.arange(7), rows, at)
    exact = (queries @ rows.double().T).float()
    torch.testing.assert_close(threshold, exact[torch.arange(7), at], rtol=1e-6, atol=1e-7)
    every = pair_products(queries, torch.arange(7).repeat_interleave(300), rows, torch.arange(300).repeat(7)).view(
        7, 300
    )
    expected = torch.stack([(every > threshold[:, None]).sum(1), (every == threshold[:, None]).sum(1)])
    assert torch.equal(count_products(queries, rows, row_norms(rows), threshold), expected)
    rows[5] = torch.nan
    assert torch.equal(
        count_products(queries, rows, row_norms(rows), threshold)[0] > 0, torch.ones(7, dtype=torch.bool)
    )


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


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    world = WORLDS["transe"]
    with MUTANTS[name]():
        assert world.ranking().rank_links(world.out).rank.tolist() != naive(world)
