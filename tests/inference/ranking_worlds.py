"""Links of small graphs, of which some are asked for, and their ranks by loops. In workers too."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from outgrow.engine.shard import FullGraphShard, GraphShard, PartitionShard
from outgrow.graph.link_split import LinkCandidates
from outgrow.graph.link_triples import LinkTriples
from outgrow.inference.link_ranking import KnownLinks, LinkRanker
from outgrow.inference.link_ranks import LinkRanks
from outgrow.nn import Bilinear, ComplEx, Decoder, DistMult, Dot, MLPDecoder, TransE
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
        mine, found = score(answer), [score(other) for other in others]
        return 1 + sum((its > mine) + (its == mine) / 2 for its in found)
    facts = {*world.known} | (set() if world.directed else {(t, r, h) for h, r, t in world.known})
    kind = max(t for t in range(len(world.ends) - 1) if world.ends[t] <= answer)
    better, same, mine = 0, 0, score(answer)
    for other in range(world.ends[kind], world.ends[kind + 1]):
        claim = (node, relation, other) if side == 0 else (other, relation, node)
        if other == answer or (other == node and not world.rank_self) or claim in facts:
            continue
        its = score(other)
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
