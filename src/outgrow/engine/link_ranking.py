"""Ranking of true links among all possible ones: mean reciprocal rank and hits at k.

Each link gives two queries: the tail for this head and relation, and the head for this tail. Candidates are
all nodes of the answer's type except the queried node, since loops are no links. Other true answers of any
part of the split do not count ("filtered"; Bordes et al., NeurIPS 2013). Half of the candidates with an equal
score count as better.

Letters: ``n`` own nodes, ``F`` columns, ``Q`` queries, ``A`` known answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.shard import GraphShard
from outgrow.graph.link_split import LinkTriples
from outgrow.nn.decoder import Decoder, ProductDecoder
from outgrow.ops.link_scores import rank_counts
from outgrow.ops.rows.gather import concat_ranges

HITS = (1, 3, 10)
"""The ``k`` of hits at k."""
CHUNK_BYTES = 64 << 20
"""Most bytes of the scores held at a time."""


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
        links: The links, without loops.
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
        names = self._encode_triples(queries._replace(answer=torch.zeros_like(queries.answer)))
        # Names ascend with the answer last, so all answers to a query are consecutive.
        first = torch.searchsorted(known, names)
        count = torch.searchsorted(known, names + self._num_nodes) - first
        return torch.repeat_interleave(count), known[concat_ranges(first, count)] % self._num_nodes

    def _encode_triples(self, queries: _RankingQueries) -> Tensor:
        """Return one number for a node, a relation and an answer."""
        return (queries.node * self._relations + queries.relation) * self._num_nodes + queries.answer


class LinkRanks(NamedTuple):
    """Ranks of the answers to all queries.

    Attributes:
        rank: ``[Q]`` float64, from 1.
    """

    rank: Tensor

    def compute_metrics(self) -> dict[str, float]:
        """Return ``mrr``, and ``hits@k`` for some k; NaN if there are no queries."""
        known = {"mrr": 1 / self.rank} | {f"hits@{k}": (self.rank <= k).double() for k in HITS}
        return {name: values.mean().item() for name, values in known.items()}


class LinkRanker:
    """Ranks links by the output of a model. Final.

    All workers process the same queries; each compares the correct answer with the nodes that it owns.

    Args:
        shard: Gives the nodes that the worker owns.
        decoder: Scores links.
        links: The links to rank.
        known_links: All known links, whose answers are filtered out.
        ends: ``[T + 1]`` int64: nodes ``ends[t]`` to ``ends[t + 1] - 1`` are of type ``t``.
    """

    def __init__(
        self, shard: GraphShard, decoder: Decoder, links: LinkTriples, known_links: KnownLinks, ends: Tensor
    ) -> None:
        self.shard = shard
        self.decoder = decoder
        self.links = links
        self.known_links = known_links
        self.ends = ends

    @torch.no_grad()
    def rank_links(self, out: Tensor) -> LinkRanks:
        """Return the ranks of all answers. All workers together.

        Args:
            out: ``[n, F]`` of the own nodes.
        """
        own = self.shard.owned_nodes
        found = list[Tensor]()
        for first, last in pairwise(self.ends.tolist()):
            low, high = torch.searchsorted(own, torch.tensor([first, last])).tolist()
            candidates = out[low:high].double()
            nodes = own[low:high]
            for asked, side in self._iterate_queries(first, last):
                found.append(self._rank_chunk(out, asked, side, candidates, nodes))
        return LinkRanks(torch.cat(found) if found else torch.empty(0, dtype=torch.float64))

    def _iterate_queries(self, first: int, last: int) -> Iterator[tuple[_RankingQueries, int]]:
        """Yield chunks of queries with answers from ``first`` to ``last - 1``, and their side."""
        share = self.shard
        # The same chunks on all workers, since each chunk takes part in an exchange.
        size = max(1, CHUNK_BYTES * share.comm.size // (8 * max(1, share.topology.num_nodes)))
        for side in (0, 1):
            asked = _queries_of_side(self.links, side)
            here = ((asked.answer >= first) & (asked.answer < last)).nonzero()[:, 0]
            for part in torch.split(here, size) if len(here) else ():
                yield asked.select_rows(part), side

    def _rank_chunk(
        self, out: Tensor, queries: _RankingQueries, side: int, candidates: Tensor, nodes: Tensor
    ) -> Tensor:
        comm = self.shard.comm
        # In float64, since rounding of products depends on the position of a row among others.
        score_QN = (self._query_rows(out, queries).double() @ candidates.T).float()
        at, mine = _positions_in(nodes, queries.answer)
        right = score_QN.new_zeros(len(at))
        right[mine] = score_QN[mine, at[mine]]
        comm.all_reduce(right)
        question, answer = self.known_links.answers_to(queries, side)
        itself = torch.arange(len(queries.node))
        question = torch.cat([question, itself])
        answer = torch.cat([answer, queries.node])
        at, mine = _positions_in(nodes, answer)
        question = question[mine]
        at = at[mine]
        # Count all candidates first, then subtract the filtered ones: that needs no mask of queries by nodes.
        better = rank_counts(score_QN, right)
        theirs = score_QN[question, at]
        bar = right[question]
        for row, taken in enumerate((~(theirs <= bar), theirs == bar)):
            better[row] -= torch.bincount(question[taken.cpu()], minlength=len(queries.node))
        # Every candidate belongs to one worker, so the counts of all workers add up.
        above, same = torch.unbind(comm.all_reduce(better).double())
        return 1 + above + same / 2

    def _query_rows(self, out: Tensor, ranking_queries: _RankingQueries) -> Tensor:
        """Return the query rows on all workers, ``[Q, F]``, from the owner of each node."""
        at, mine = _positions_in(self.shard.owned_nodes, ranking_queries.node)
        queries = out.new_zeros(len(at), out.shape[1])
        assert isinstance(self.decoder, ProductDecoder)
        # Zero on the workers that do not own the node, so a sum hands each row to all of them.
        queries[mine] = self.decoder.link_queries(out[at[mine]], ranking_queries.relation[mine].to(out.device))
        return self.shard.comm.all_reduce(queries, Kind.ACTIVATIONS)


def _queries_of_side(links: LinkTriples, side: int) -> _RankingQueries:
    """Return the queries for the tails of links (side 0), or for their heads (side 1)."""
    node, answer = (links.head, links.tail) if side == 0 else (links.tail, links.head)
    return _RankingQueries(node, links.relation, answer)


def _positions_in(own: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of nodes in ascending ``own``, and which are there, ``[N]`` int64 and bool."""
    at = torch.searchsorted(own, nodes).clamp(max=max(0, len(own) - 1))
    there = own[at] == nodes if len(own) else torch.zeros(len(nodes), dtype=torch.bool)
    return at, there
