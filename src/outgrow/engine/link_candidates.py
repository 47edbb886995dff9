"""Candidates that the links of a step have in common, and the queries that are scored with them.

Each link gives two queries: the tail for its head and relation, and the head for its tail. Links with the same query
share its scores. What is drawn depends on the key of the step and on nodes and links alone, not on their owner.

Letters: ``V`` nodes, ``L`` links of a worker, ``U`` queries, ``K`` candidates, ``A`` known answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from outgrow.engine.link_options import DEGREE, IN_BATCH, LinkOptions
from outgrow.engine.negative_draws import DegreeDraws, draw_numbers, smallest_of_each
from outgrow.engine.shard import GraphShard
from outgrow.graph.link_numbers import count_link_degrees
from outgrow.graph.link_triples import LinkTriples, collect_links, mark_relations
from outgrow.nn.link_losses import AllAnswers
from outgrow.ops.backend import as_tensor
from outgrow.ops.pair_draws import PairRange, mark_pairs
from outgrow.ops.rng import fold_in, permute_range
from outgrow.ops.rows.positions import find_answers, find_positions
from outgrow.runtime.distributed.comm import Comm

Side = Literal["tail", "head"]
SIDES: tuple[Side, Side] = ("tail", "head")
_CANDIDATES = 0x43414E44
"""Part of the key of candidates, far from those of layers."""


class CandidateQueries(NamedTuple):
    """Queries of one side for nodes of one type.

    Attributes:
        side: The end that is asked for.
        node: ``[U]`` int64, the node asked about; ascending.
        relation: ``[U]`` int64.
        weight: ``[U]`` float64: the inverse of the number of links with this query, over all workers, for each of the
            worker's links; only for `AllAnswers`, else ones.
        starts: ``[U + 1]`` int64: ends of the links of each query.
        link: ``[L]`` int64, the number of each link, grouped by query.
        candidates: ``[K]`` int64, ascending nodes.
        among: ``[L]`` bool, likewise grouped: whether the link's other end is a candidate, where known answers are
            negatives of other links; None where they are no negatives.
        answer_query: ``[A]`` int64, ascending: the query of each known answer among the candidates that is no negative.
        answer: ``[A]`` int64, the position of the candidate.
        loop_query: Likewise of candidates that are the node asked about, unless that is a negative.
        loop: See ``answer``.
    """

    side: Side
    node: Tensor
    relation: Tensor
    weight: Tensor
    starts: Tensor
    link: Tensor
    among: Tensor | None
    candidates: Tensor
    answer_query: Tensor
    answer: Tensor
    loop_query: Tensor
    loop: Tensor


class LinkAnswers(Protocol):
    """The links to train on, as answers to queries.

    Attributes:
        num_relations: ``R``, at least 1.
    """

    num_relations: int

    def answers_among(self, query: Tensor, side: Side, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Return the query's place and the candidate's position of each answer, ``[A]`` int64 each, each pair once.

        They ascend by place, then by position.

        Args:
            query: ``[U]`` int64, ascending: see `encode_queries`.
            side: The end that is asked for.
            candidates: ``[K]`` int64, ascending nodes.
        """


def encode_queries(links: LinkTriples, side: Side, num_relations: int) -> Tensor:
    """Return ``[L]`` int64: a number of the query of each link for its end ``side``."""
    node = links.head if side == "tail" else links.tail
    return node * num_relations + links.relation


class TrainingAnswers:
    """All links to train on, as answers to queries; 8 bytes a link and side. Final.

    Args:
        links: The links of the whole graph that are predicted, without loops.
        num_nodes: ``V``.
        directed: Whether a link does not imply its reverse, which is an answer too otherwise.
    """

    def __init__(self, links: LinkTriples, num_nodes: int, *, directed: bool = True) -> None:
        self.num_nodes = num_nodes
        self.num_relations = int(links.relation.max()) + 1 if len(links) else 1
        self._links = {side: self._encode_links(links, side).sort().values for side in SIDES}
        self._codes = self._links
        if not directed:
            either = torch.unique(torch.cat([*self._links.values()]))
            self._codes = dict.fromkeys(SIDES, either)

    def answers_among(self, query: Tensor, side: Side, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Return the query's place and the position among candidates of each answer: see `LinkAnswers`."""
        place, answer = self.answers_to(query, side)
        # A search rather than a table: that would have an entry for every node, anew in each step.
        slot = find_positions(candidates, answer)
        known = slot >= 0
        # Parallel edges are one answer, which the sorted codes have side by side.
        place, slot = torch.unique_consecutive(torch.stack([place[known], slot[known]]), dim=1).contiguous()
        return place, slot

    def answers_to(self, query: Tensor, side: Side) -> tuple[Tensor, Tensor]:
        """Return the query's place and the answer of all answers, ``[A]`` int64 each.

        As often as there are links; once where reverses of links are answers too.
        """
        return find_answers(self._codes[side], query, self.num_nodes)

    def links_to(self, query: Tensor, side: Side) -> tuple[Tensor, Tensor]:
        """Return the query's place and the answer of all links with these queries, without reverses."""
        return find_answers(self._links[side], query, self.num_nodes)

    def _encode_links(self, links: LinkTriples, side: Side) -> Tensor:
        answer = links.tail if side == "tail" else links.head
        return encode_queries(links, side, self.num_relations) * self.num_nodes + answer


class CandidatePlanner:
    """Draws the candidates of steps and groups links by query. Final.

    Args:
        options: Options of training.
        answers: The links to train on.
        degree_V: ``[V]`` int64, links of each node; only needed where negatives are drawn by degree.
        comm: Communicator of workers that each know links of their own; None if each knows all links of a step.
    """

    def __init__(
        self, options: LinkOptions, answers: LinkAnswers, degree_V: Tensor | None, comm: Comm | None = None
    ) -> None:
        self.options = options
        self.answers = answers
        self.comm = comm
        ends = options.ends.tolist()
        self._by_degree = (
            [] if degree_V is None else [DegreeDraws(degree_V[first:last]) for first, last in pairwise(ends)]
        )

    @staticmethod
    def for_shard(shard: GraphShard, options: LinkOptions) -> CandidatePlanner:
        """Return the planner of a worker that knows the links into its own nodes, and all links as answers."""
        links = collect_links(shard.topology)
        links = links.select_links(links.non_loop_mask & mark_relations(links, options.relations))
        num_nodes = shard.topology.num_nodes
        # Links without relations are ranked as undirected ones are: training must not score reverses down.
        answers = TrainingAnswers(links, num_nodes, directed=shard.topology.relation is not None)
        degree = count_link_degrees(shard.topology, options.relations) if options.sampling == DEGREE else None
        return CandidatePlanner(options, answers, degree, shard.comm)

    def plan_queries(
        self, links: LinkTriples, number: Tensor, asked: PairRange | None, key: int
    ) -> list[CandidateQueries]:
        """Return the queries of the worker's links of a step. All workers together.

        Args:
            links: The links.
            number: ``[L]`` int64, ids of the edges.
            asked: The pairs that the step asks about; None for all.
            key: Random key of the step.
        """
        return self.group_links(links, self.draw_candidates(links, number, key), asked)

    def draw_candidates(self, links: LinkTriples, number: Tensor, key: int) -> list[Tensor]:
        """Return ``[K]`` int64 for each type: ascending nodes; arguments as in `plan_queries`."""
        kinds = enumerate(pairwise(self.options.ends.tolist()))
        return [self._draw_of_type(links, number, kind, span, fold_in(key, _CANDIDATES, kind)) for kind, span in kinds]

    def group_links(
        self, links: LinkTriples, candidates: list[Tensor], asked: PairRange | None
    ) -> list[CandidateQueries]:
        """Return the queries of some links for candidates of each type; arguments as in `plan_queries`."""
        found = []
        for drawn, (first, last) in zip(candidates, pairwise(self.options.ends.tolist()), strict=True):
            for side in SIDES:
                answer = links.tail if side == "tail" else links.head
                here = ((answer >= first) & (answer < last)).nonzero()[:, 0]
                if len(here):
                    found.append(self._group_links(links, here, side, drawn, asked))
        return found

    def _draw_of_type(self, links: LinkTriples, number: Tensor, kind: int, span: tuple[int, int], key: int) -> Tensor:
        first, last = span
        size, count = last - first, self.options.negatives
        sampling = self.options.sampling
        if self.options.scores_all_nodes:
            return torch.arange(first, last)
        if sampling == IN_BATCH:
            return self._draw_ends(links, number, span, key)
        if sampling == DEGREE:
            return self._by_degree[kind].draw(count, key) + first
        drawn = permute_range(0, min(count, size), size, key) if size else np.arange(0)
        return as_tensor(np.sort(drawn)) + first

    def _draw_ends(self, links: LinkTriples, number: Tensor, span: tuple[int, int], key: int) -> Tensor:
        """Return at most ``negatives`` distinct ends of the links of all workers, as likely as they are frequent."""
        nodes, draws = [], []
        for place, node in enumerate((links.head, links.tail)):
            here = (node >= span[0]) & (node < span[1])
            nodes.append(node[here])
            draws.append(draw_numbers(number[here], fold_in(key, place)))
        # The smallest numbers of each worker hold the smallest of all: one exchange of few numbers is enough.
        count = self.options.negatives
        chosen, drawn_by = smallest_of_each(torch.cat(nodes), torch.cat(draws), count)
        if self.comm is not None:
            every = zip(*self.comm.all_gather_object((chosen, drawn_by)), strict=True)
            nodes_of_all, draws_of_all = (torch.cat(parts) for parts in every)
            chosen, _ = smallest_of_each(nodes_of_all, draws_of_all, count)
        return chosen.sort().values

    def _group_links(
        self, links: LinkTriples, here: Tensor, side: Side, candidates: Tensor, asked: PairRange | None
    ) -> CandidateQueries:
        code = encode_queries(links.select_links(here), side, self.answers.num_relations)
        code, order = code.sort(stable=True)
        query, counts = torch.unique_consecutive(code, return_counts=True)
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        node = query // self.answers.num_relations
        weight = torch.ones(len(query), dtype=torch.float64)
        among, place, answer = None, query.new_empty(0), query.new_empty(0)
        if self.options.filters_negatives:
            place, answer = self.answers.answers_among(query, side, candidates)
            if isinstance(self.options.loss, AllAnswers):
                assert isinstance(self.answers, TrainingAnswers)
                linked_place, linked = self.answers.links_to(query, side)
                of_type = find_positions(candidates, linked) >= 0
                weight = counts / self._count_asked(node, linked_place[of_type], linked[of_type], asked)
        else:
            ends = links.tail if side == "tail" else links.head
            among = find_positions(candidates, ends[here[order]]) >= 0
        itself = find_positions(candidates, node)
        loops = (itself >= 0).nonzero()[:, 0] if not self.options.ranks_self else query.new_empty(0)
        return CandidateQueries(
            side=side,
            node=node,
            relation=query % self.answers.num_relations,
            weight=weight,
            starts=starts,
            link=here[order],
            among=among,
            candidates=candidates,
            answer_query=place,
            answer=answer,
            loop_query=loops,
            loop=itself[loops],
        )

    @staticmethod
    def _count_asked(node: Tensor, place: Tensor, answer: Tensor, asked: PairRange | None) -> Tensor:
        """Return ``[U]`` float64: the number of links of a query that a step asks about, over all workers."""
        mark = torch.ones(len(place), dtype=torch.bool) if asked is None else mark_pairs(node[place], answer, asked)
        return torch.bincount(place[mark], minlength=len(node)).double()


def iterate_blocks(starts: Tensor, size: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of ``size`` queries."""
    for first in range(0, len(starts) - 1, size):
        yield first, min(first + size, len(starts) - 1)
