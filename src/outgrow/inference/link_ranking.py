"""Ranking of true links among all possible ones, or among candidates that are given or drawn.

Each link gives two queries: the tail for this head and relation, and the head for this tail. Candidates are
all nodes of the answer's type, with or without the queried node. Other true answers of any part of the split do not
count ("filtered"; Bordes et al., NeurIPS 2013). Half of the candidates with an equal score count as better: the
realistic rank of Berrendorf et al. (On the ambiguity of rank-based evaluation, 2020).

Letters: ``n`` own nodes, ``F`` columns, ``Q`` queries, ``K`` candidates of a query, ``A`` known answers, ``P`` pairs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.engine.shard import GraphShard
from outgrow.graph.link_split import LinkCandidates
from outgrow.graph.link_triples import LinkTriples
from outgrow.inference.link_ranks import ENDS, LinkRanks
from outgrow.inference.query_scores import CHUNK_BYTES, QueryScores
from outgrow.inference.scored_rows import ScoredRows, TensorRows, fetch_scored_rows
from outgrow.nn.decoder import Decoder
from outgrow.ops.candidate_scores import draw_candidates
from outgrow.ops.rng import fold_in
from outgrow.ops.rows.positions import find_answers, find_positions

QUERIES = 1024
"""Queries that are ranked together."""
_PAIR_BYTES = 64
"""Bytes of a pair of a query and one of its candidates."""
_SAMPLE = 0x53414D50
"""Part of the key of drawn candidates."""
_WRONG = 0x57524F4E
"""Part of the key of wrong answers, far from those of training."""
_DRAWS = 32
"""How often a wrong answer is drawn anew if it is right."""


class RankingQueries(NamedTuple):
    """Queries for the node that has a link of a relation with a given node.

    Attributes:
        node: ``[Q]`` int64.
        relation: ``[Q]`` int64.
        answer: ``[Q]`` int64, the correct node.
    """

    node: Tensor
    relation: Tensor
    answer: Tensor

    def select_rows(self, at: Tensor) -> RankingQueries:
        """Return some of the queries, selected by number or mask."""
        return RankingQueries(*(each[at] for each in self))


class KnownLinks:
    """All known links, as answers to queries. Final.

    Args:
        links: The links.
        num_nodes: ``V``.
        directed: Whether a link does not imply its reverse.
    """

    def __init__(self, links: LinkTriples, num_nodes: int, *, directed: bool) -> None:
        self._num_nodes = num_nodes
        self._relations = int(links.relation.max()) + 1 if len(links) else 1
        sides = [self._encode_triples(_queries_of_side(links, side)) for side in (0, 1)]
        # Undirected links answer in both directions, so one list serves queries of both sides.
        self._sides = [torch.unique(names) for names in (sides if directed else [torch.cat(sides)])]

    def __len__(self) -> int:
        """Number of answers that are listed, to queries for tails and for heads, or for both at once."""
        return sum(len(side) for side in self._sides)

    def answers_to(self, queries: RankingQueries, side: int) -> tuple[Tensor, Tensor]:
        """Return all distinct answers, as the number of a query and the answer, ``[A]`` and ``[A]`` int64.

        Args:
            queries: The queries.
            side: Whether they are for tails (0) or for heads (1).
        """
        known = self._sides[min(side, len(self._sides) - 1)]
        return find_answers(known, self._encode_queries(queries), self._num_nodes)

    def contain(self, queries: RankingQueries, side: int) -> Tensor:
        """Return ``[Q]`` bool: whether the answers are known; see `answers_to`."""
        known = self._sides[min(side, len(self._sides) - 1)]
        return find_positions(known, self._encode_triples(queries)) >= 0

    def _encode_triples(self, queries: RankingQueries) -> Tensor:
        """Return one number for a node, a relation and an answer."""
        return self._encode_queries(queries) * self._num_nodes + queries.answer

    def _encode_queries(self, queries: RankingQueries) -> Tensor:
        """Return one number for a node and a relation."""
        return queries.node * self._relations + queries.relation


class LinkRanker:
    """Ranks links by the output of a model. Final.

    All workers process the same queries; each compares the correct answer with the nodes that it owns.

    Args:
        shard: Gives the nodes that the worker owns.
        decoder: Scores links.
        links: The links to rank.
        known_links: All known links, whose answers are filtered out.
        ends: ``[T + 1]`` int64: nodes ``ends[t]`` to ``ends[t + 1] - 1`` are of type ``t``.
        rank_self: Whether the queried node is a candidate too.
        candidates: The candidates of each link, which are not filtered; None for nodes of the answer's type.
        num_drawn: Number of nodes of the answer's type to draw as candidates of each query; None for all of them.
    """

    def __init__(
        self,
        shard: GraphShard,
        decoder: Decoder,
        links: LinkTriples,
        known_links: KnownLinks,
        ends: Tensor,
        *,
        rank_self: bool = False,
        candidates: LinkCandidates | None = None,
        num_drawn: int | None = None,
    ) -> None:
        self.shard = shard
        self.decoder = decoder
        self.links = links
        self.known_links = known_links
        self.ends = ends
        self.rank_self = rank_self
        self.candidates = candidates
        self.num_drawn = num_drawn

    def __len__(self) -> int:
        return len(self.links)

    @property
    def reads_all_nodes(self) -> bool:
        """Whether links are ranked among all nodes of a type, not among candidates that are given or drawn."""
        if self.num_drawn is not None:
            return False
        return any(self._given_candidates(side) is None for side in (0, 1))

    def find_scored_nodes(self) -> Tensor:
        """Return ``[n]`` int64, ascending: the own nodes whose rows the ranking reads."""
        own = self.shard.owned_nodes
        if not len(self.links) or self.reads_all_nodes:
            return own if len(self.links) else own[:0]
        read = torch.zeros(self.shard.topology.num_nodes, dtype=torch.bool)
        read[self.links.head] = read[self.links.tail] = True
        for side, wrong in enumerate(self._wrong_answers):
            read[wrong[wrong >= 0]] = True
            for first, last in pairwise(self.ends.tolist()):
                for number, asked in self._iterate_queries(side, first, last):
                    given = self._list_candidates(side, number, asked, (first, last))
                    if given is None:
                        read[first:last] = True
                    else:
                        read[given] = True
        return own[read[own]]

    @torch.no_grad()
    def rank_links(self, rows: ScoredRows | Tensor) -> LinkRanks:
        """Return the ranks of all answers. All workers together.

        Args:
            rows: Rows of `find_scored_nodes`, and maybe of more own nodes; a tensor of all own nodes.
        """
        if isinstance(rows, Tensor):
            rows = TensorRows(self.shard.owned_nodes, rows)
        count = len(self.links)
        if not count:
            return LinkRanks(torch.empty(0, dtype=torch.float64), self.links.relation, *torch.empty(2, 0))
        # In float64, since rounding of products depends on the position of a row among others.
        decoder = copy.deepcopy(self.decoder).to(rows.device, torch.float64).eval()
        rank, scores = torch.empty(2 * count, dtype=torch.float64), torch.empty(2, 2 * count)
        for first, last in pairwise(self.ends.tolist()):
            for side in (0, 1):
                for number, asked in self._iterate_queries(side, first, last):
                    of_queries = fetch_scored_rows(rows, asked.node, self.shard.comm).double()
                    scored = QueryScores(decoder, of_queries, asked.relation, rows, ENDS[side])
                    at = number + side * count
                    rank[at], scores[:, at] = self._rank_chunk(scored, number, asked, side, (first, last))
        return LinkRanks(rank, self.links.relation, scores[0], scores[1], self.num_drawn is not None)

    def _iterate_queries(self, side: int, first: int, last: int) -> Iterator[tuple[Tensor, RankingQueries]]:
        """Yield the numbers and the queries of a side, in chunks, with answers from ``first`` to ``last - 1``."""
        # The same chunks on all workers, since each chunk takes part in an exchange.
        given = self.num_drawn if self.num_drawn is not None else self._given_candidates(side)
        width = given if isinstance(given, int) else 1 if given is None else given.shape[1]
        size = count_queries_per_chunk(width)
        asked = _queries_of_side(self.links, side)
        here = ((asked.answer >= first) & (asked.answer < last)).nonzero()[:, 0]
        for part in torch.split(here, size) if len(here) else ():
            yield part, asked.select_rows(part)

    def _rank_chunk(
        self, scored: QueryScores, number: Tensor, queries: RankingQueries, side: int, span: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Return ``[Q]`` ranks, and ``[2, Q]`` scores of right and of wrong answers."""
        comm = self.shard.comm
        wrong = self._wrong_answers[side][number]
        right, beside = comm.all_reduce(torch.stack([scored.score_nodes(given) for given in (queries.answer, wrong)]))
        nodes_QK = self._list_candidates(side, number, queries, span)
        if nodes_QK is None:
            counts = scored.count_above(right, span, self._list_filtered(queries, side))
        else:
            # The answer is not among its candidates, unless they have it: then it does not compete with itself.
            question, at = (nodes_QK != queries.answer[:, None]).nonzero().unbind(1)
            counts = scored.count_pairs(right, question, nodes_QK[question, at])
        # Every candidate belongs to one worker, so the counts of all workers add up.
        above, same = torch.unbind(comm.all_reduce(counts).double())
        return 1 + above + same / 2, torch.stack([right, torch.where(wrong < 0, torch.nan, beside)])

    def _given_candidates(self, side: int) -> Tensor | None:
        return None if self.candidates is None else self.candidates.of_end(ENDS[side])

    def _list_candidates(
        self, side: int, number: Tensor, queries: RankingQueries, span: tuple[int, int]
    ) -> Tensor | None:
        """Return ``[Q, K]`` int64: the candidates of queries; None for all of a range but known answers."""
        if self.num_drawn is None:
            given = self._given_candidates(side)
            return None if given is None else given[number].long()
        first, last = span
        if last - first <= self.num_drawn:
            return None
        # By the number of the link, never by worker or chunk.
        places = number[:, None] * self.num_drawn + torch.arange(self.num_drawn)
        drawn_QK = draw_candidates(first, last, places.flatten(), fold_in(_SAMPLE, side)).view(places.shape)
        # Known answers, and the node asked about, give way to the answer, which does not compete with itself.
        question, others = self._list_filtered(queries, side)
        known = question * self.shard.topology.num_nodes + others
        rows = torch.arange(len(number))[:, None] * self.shard.topology.num_nodes
        taken = find_positions(known, (rows + drawn_QK).flatten()).view(places.shape) >= 0
        return torch.where(taken, queries.answer[:, None], drawn_QK)

    def _list_filtered(self, queries: RankingQueries, side: int) -> tuple[Tensor, Tensor]:
        """Return pairs of query and node that are no candidates: known answers, the answer, the node asked about."""
        question, answer = self.known_links.answers_to(queries, side)
        itself = torch.arange(len(queries.node))
        # The node that is asked about is an end of no link, unless loops are ranked too.
        others = (queries.answer,) if self.rank_self else (queries.answer, queries.node)
        question = torch.cat([question, *(itself for _ in others)])
        names = torch.unique(question * self.shard.topology.num_nodes + torch.cat([answer, *others]))
        return names // self.shard.topology.num_nodes, names % self.shard.topology.num_nodes

    @cached_property
    def _wrong_answers(self) -> list[Tensor]:
        """For tails and for heads, ``[P]`` int64: a node for each link; -1 where no wrong one was drawn."""
        return [self._draw_wrong_answers(side) for side in (0, 1)]

    def _draw_wrong_answers(self, side: int) -> Tensor:
        # By the number of the link, never by worker.
        asked, key = _queries_of_side(self.links, side), fold_in(_WRONG, side)
        drawn = torch.full_like(asked.answer, -1)
        for first, last in pairwise(self.ends.tolist()):
            undecided = ((asked.answer >= first) & (asked.answer < last)).nonzero()[:, 0]
            for attempt in range(_DRAWS):
                found = draw_candidates(first, last, undecided, fold_in(key, attempt))
                queries = asked.select_rows(undecided)
                right = self.known_links.contain(queries._replace(answer=found), side) | (found == queries.answer)
                if not self.rank_self:
                    right |= found == queries.node
                drawn[undecided[~right]] = found[~right]
                undecided = undecided[right]
        return drawn


def count_queries_per_chunk(num_candidates: int) -> int:
    """Return the most queries that are ranked together; with one candidate for all nodes, which are a block each."""
    return max(1, min(QUERIES, CHUNK_BYTES // (_PAIR_BYTES * num_candidates)))


def _queries_of_side(links: LinkTriples, side: int) -> RankingQueries:
    """Return the queries for the tails of links (side 0), or for their heads (side 1)."""
    node, answer = (links.head, links.tail) if side == 0 else (links.tail, links.head)
    return RankingQueries(node, links.relation, answer)
