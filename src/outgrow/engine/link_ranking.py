"""Ranking of true links among all possible ones, or among candidates that are given.

Each link gives two queries: the tail for this head and relation, and the head for this tail. Candidates are
all nodes of the answer's type, with or without the queried node. Other true answers of any part of the split do not
count ("filtered"; Bordes et al., NeurIPS 2013). Half of the candidates with an equal score count as better: the
realistic rank of Berrendorf et al. (On the ambiguity of rank-based evaluation, 2020).

Letters: ``n`` own nodes, ``F`` columns, ``Q`` queries, ``K`` given candidates of a query, ``A`` known answers, ``N``
own nodes of the answer's type, ``P`` pairs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.link_ranks import ENDS, LinkRanks
from outgrow.engine.shard import GraphShard
from outgrow.graph.link_split import LinkCandidates, LinkTriples
from outgrow.nn.decoder import Decoder, ProductDecoder
from outgrow.ops.candidate_scores import count_products, draw_candidates, pair_products, row_norms
from outgrow.ops.link_scores import rank_counts
from outgrow.ops.rng import fold_in
from outgrow.ops.rows.positions import find_answers, find_positions

CHUNK_BYTES = 64 << 20
"""Most bytes of the scores held at a time."""
_WRONG = 0x57524F4E
"""Part of the key of wrong answers, far from those of training."""
_DRAWS = 32
"""How often a wrong answer is drawn anew if it is right."""


class _RankingQueries(NamedTuple):
    """Queries for the node that has a link of a relation with a given node.

    Attributes:
        node: ``[Q]`` int64.
        relation: ``[Q]`` int64.
        answer: ``[Q]`` int64, the correct node.
    """

    node: Tensor
    relation: Tensor
    answer: Tensor

    def select_rows(self, at: Tensor) -> _RankingQueries:
        return _RankingQueries(*(each[at] for each in self))


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

    def answers_to(self, queries: _RankingQueries, side: int) -> tuple[Tensor, Tensor]:
        """Return all distinct answers, as the number of a query and the answer, ``[A]`` and ``[A]`` int64.

        Args:
            queries: The queries.
            side: Whether they are for tails (0) or for heads (1).
        """
        known = self._sides[min(side, len(self._sides) - 1)]
        return find_answers(known, self._encode_queries(queries), self._num_nodes)

    def contain(self, queries: _RankingQueries, side: int) -> Tensor:
        """Return ``[Q]`` bool: whether the answers are known; see `answers_to`."""
        known = self._sides[min(side, len(self._sides) - 1)]
        return find_positions(known, self._encode_triples(queries)) >= 0

    def _encode_triples(self, queries: _RankingQueries) -> Tensor:
        """Return one number for a node, a relation and an answer."""
        return self._encode_queries(queries) * self._num_nodes + queries.answer

    def _encode_queries(self, queries: _RankingQueries) -> Tensor:
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
        candidates: The candidates of each link, which are not filtered; None for all nodes of the answer's type.
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
    ) -> None:
        self.shard = shard
        self.decoder = decoder
        self.links = links
        self.known_links = known_links
        self.ends = ends
        self.rank_self = rank_self
        self.candidates = candidates

    @torch.no_grad()
    def rank_links(self, out: Tensor) -> LinkRanks:
        """Return the ranks of all answers. All workers together.

        Args:
            out: ``[n, F]`` of the own nodes.
        """
        own, count = self.shard.owned_nodes, len(self.links)
        if not count:
            return LinkRanks(torch.empty(0, dtype=torch.float64), self.links.relation, *torch.empty(2, 0))
        # In float64, since rounding of products depends on the position of a row among others.
        decoder = copy.deepcopy(self.decoder).to(out.device, torch.float64).eval()
        rank, scores = torch.empty(2 * count, dtype=torch.float64), torch.empty(2, 2 * count)
        for first, last in pairwise(self.ends.tolist()):
            low, high = torch.searchsorted(own, torch.tensor([first, last])).tolist()
            candidates = _Candidates(out[low:high], own[low:high])
            for number, asked, side in self._iterate_queries(first, last):
                rows = self._kept_rows(out, asked.node).double()
                relations = asked.relation.to(out.device)
                scored = _ChunkScores(decoder, rows, relations, candidates, ENDS[side])
                scored.by_pairs = self._given_candidates(side) is not None
                at = number + side * count
                rank[at], scores[:, at] = self._rank_chunk(scored, number, asked, side)
        return LinkRanks(rank, self.links.relation, *scores)

    def _iterate_queries(self, first: int, last: int) -> Iterator[tuple[Tensor, _RankingQueries, int]]:
        """Yield the numbers and the queries, in chunks, with answers from ``first`` to ``last - 1``, and their side."""
        share = self.shard
        for side in (0, 1):
            # The same chunks on all workers, since each chunk takes part in an exchange.
            given = self._given_candidates(side)
            width = share.topology.num_nodes if given is None else given.shape[1]
            size = max(1, CHUNK_BYTES * share.comm.size // (8 * max(1, width)))
            asked = _queries_of_side(self.links, side)
            here = ((asked.answer >= first) & (asked.answer < last)).nonzero()[:, 0]
            for part in torch.split(here, size) if len(here) else ():
                yield part, asked.select_rows(part), side

    def _rank_chunk(
        self, scored: _ChunkScores, number: Tensor, queries: _RankingQueries, side: int
    ) -> tuple[Tensor, Tensor]:
        """Return ``[Q]`` ranks, and ``[2, Q]`` scores of right and of wrong answers."""
        comm = self.shard.comm
        wrong = self._wrong_answers[side][number]
        scores = torch.stack([_score_nodes(scored, given) for given in (queries.answer, wrong)])
        right, beside = comm.all_reduce(scores)
        given = self._given_candidates(side)
        if given is None:
            # Count all candidates first, then subtract the filtered ones: that needs no mask of queries by nodes.
            counts = scored.count_above(right) - self._count_pairs(scored, right, *self._list_filtered(queries, side))
        else:
            # The answer is not among its candidates, unless they have it: then it does not compete with itself.
            nodes_QK = given[number].long()
            question, at = (nodes_QK != queries.answer[:, None]).nonzero().unbind(1)
            counts = self._count_pairs(scored, right, question, nodes_QK[question, at])
        # Every candidate belongs to one worker, so the counts of all workers add up.
        above, same = torch.unbind(comm.all_reduce(counts).double())
        return 1 + above + same / 2, torch.stack([right, torch.where(wrong < 0, torch.nan, beside)])

    def _given_candidates(self, side: int) -> Tensor | None:
        return None if self.candidates is None else self.candidates.of_end(ENDS[side])

    def _list_filtered(self, queries: _RankingQueries, side: int) -> tuple[Tensor, Tensor]:
        """Return pairs of query and node that are no candidates: known answers, the answer, the node asked about."""
        question, answer = self.known_links.answers_to(queries, side)
        itself = torch.arange(len(queries.node))
        # The node that is asked about is an end of no link, unless loops are ranked too.
        others = (queries.answer,) if self.rank_self else (queries.answer, queries.node)
        question = torch.cat([question, *(itself for _ in others)])
        names = torch.unique(question * self.shard.topology.num_nodes + torch.cat([answer, *others]))
        return names // self.shard.topology.num_nodes, names % self.shard.topology.num_nodes

    def _count_pairs(self, scored: _ChunkScores, threshold: Tensor, question: Tensor, answer: Tensor) -> Tensor:
        """Return ``[2, Q]``: how many of some pairs of query and own node are above and equal to the threshold."""
        at = find_positions(scored.candidates.nodes, answer)
        mine = at >= 0
        question = question[mine]
        theirs = scored.score_pairs(question, at[mine])
        bar = threshold[question]
        # Negated, since every comparison with NaN is false: NaN counts as above.
        taken = (~(theirs <= bar), theirs == bar)
        return torch.stack([torch.bincount(question[each], minlength=len(threshold)) for each in taken])

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

    def _kept_rows(self, out: Tensor, nodes: Tensor) -> Tensor:
        """Return the rows of nodes on all workers, ``[Q, F]``, from the owner of each node."""
        at = find_positions(self.shard.owned_nodes, nodes)
        mine = at >= 0
        rows = out.new_zeros(len(at), out.shape[1])
        # Zero on the workers that do not own the node, so a sum hands each row to all of them.
        rows[mine] = out[at[mine]]
        return self.shard.comm.all_reduce(rows, Kind.ACTIVATIONS)


class _Candidates:
    """The own nodes of a type, and their rows. Final.

    Args:
        rows_NF: ``[N, F]``.
        nodes: ``[N]`` int64, ascending.
    """

    def __init__(self, rows_NF: Tensor, nodes: Tensor) -> None:
        self.rows_NF = rows_NF
        self.nodes = nodes

    @cached_property
    def norms_N(self) -> Tensor:
        return row_norms(self.rows_NF)


class _ChunkScores:
    """Scores of a chunk of queries with own nodes, rounded from float64 to float32. Final.

    Args:
        decoder: In float64.
        rows_QF: ``[Q, F]`` float64 rows of the queried nodes.
        relations_Q: ``[Q]`` int64.
        candidates: The own nodes of the answer's type.
        replaced: The end that is asked for.

    Attributes:
        by_pairs: Whether few pairs are scored, so that each is computed by itself.
    """

    by_pairs = False

    def __init__(
        self, decoder: Decoder, rows_QF: Tensor, relations_Q: Tensor, candidates: _Candidates, replaced: str
    ) -> None:
        self.decoder = decoder
        self.rows_QF = rows_QF
        self.relations_Q = relations_Q
        self.candidates = candidates
        self.replaced = replaced
        candidates_NF = candidates.rows_NF
        self.uses_products = (
            isinstance(decoder, ProductDecoder)
            and candidates_NF.dtype == torch.float32
            and candidates_NF.device.type == "cpu"
            # Another precision of products has no bound that is known here.
            and torch.get_float32_matmul_precision() == "highest"
        )

    def count_above(self, threshold: Tensor) -> Tensor:
        """Return ``[2, Q]`` int64: how many candidates are above and equal to the threshold; NaN is above."""
        if self.uses_products:
            return count_products(self._queries_QF, self.candidates.rows_NF, self.candidates.norms_N, threshold)
        return rank_counts(self._score_QN, threshold.to(self._score_QN.device))

    def score_pairs(self, query_P: Tensor, at_P: Tensor) -> Tensor:
        """Return ``[P]`` float32 on the CPU: scores of queries with candidates, both by number."""
        if self.uses_products:
            return pair_products(self._queries_QF, query_P, self.candidates.rows_NF, at_P)
        device = self.candidates.rows_NF.device
        if self.by_pairs:
            width = 8 * max(1, self.rows_QF.shape[1])
            size = max(1, CHUNK_BYTES // width)
            parts = zip(torch.split(query_P, size), torch.split(at_P, size), strict=True)
            return torch.cat([self._score_block(query.to(device), at.to(device)) for query, at in parts])
        return self._score_QN[query_P.to(device), at_P.to(device)].cpu()

    def _score_block(self, query_P: Tensor, at_P: Tensor) -> Tensor:
        ends = self.rows_QF[query_P], self.candidates.rows_NF[at_P].double()
        heads, tails = ends if self.replaced == "tail" else ends[::-1]
        return self.decoder.score(heads, self.relations_Q[query_P], tails).float().cpu()

    @cached_property
    def _queries_QF(self) -> Tensor:
        assert isinstance(self.decoder, ProductDecoder)
        return self.decoder.link_queries(self.rows_QF, self.relations_Q, replaced=self.replaced).contiguous()

    @cached_property
    def _score_QN(self) -> Tensor:
        given = self.rows_QF, self.relations_Q, self.candidates.rows_NF.double()
        return self.decoder.score_candidates(*given, replaced=self.replaced).float()


def _score_nodes(scored: _ChunkScores, given: Tensor) -> Tensor:
    """Return ``[Q]``: the score of one node of each query, zero where it is no own one."""
    at = find_positions(scored.candidates.nodes, given)
    mine = at >= 0
    scores = torch.zeros(len(given))
    scores[mine] = scored.score_pairs(mine.nonzero()[:, 0], at[mine])
    return scores


def _queries_of_side(links: LinkTriples, side: int) -> _RankingQueries:
    """Return the queries for the tails of links (side 0), or for their heads (side 1)."""
    node, answer = (links.head, links.tail) if side == 0 else (links.tail, links.head)
    return _RankingQueries(node, links.relation, answer)
