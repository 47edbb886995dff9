"""Negatives are drawn in proportion to degrees, without replacement; known answers are found in the graph."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from outgrow.engine.graph_answers import GraphAnswers
from outgrow.engine.link_candidates import TrainingAnswers, encode_queries
from outgrow.engine.negative_draws import DegreeDraws
from outgrow.graph.link_numbers import LinkNumbers, count_link_degrees
from outgrow.graph.link_triples import collect_links, iterate_in_links, mark_relations
from support import random_topology, with_relations

DEGREE = torch.tensor([0, 9, 1, 4, 30, 0, 2, 7, 1, 3])


@pytest.mark.parametrize("count", [2, 7], ids=["one after the other", "all at once"])
def test_sets_are_as_likely_as_in_turn(count: int) -> None:
    """Two drawn one after the other, or all but one at once, which leaves out one node."""
    draws, times = DegreeDraws(DEGREE), 6000
    found = torch.zeros(len(DEGREE))
    for key in range(times):
        drawn = draws.draw(count, key)
        assert len(drawn) == count
        assert torch.equal(drawn, torch.unique(drawn))
        found[drawn] += 1
    assert found[DEGREE == 0].tolist() == [0, 0]
    weight = DEGREE.double().pow(0.75)
    nodes = (DEGREE > 0).nonzero()[:, 0].tolist()
    expected = torch.zeros(len(DEGREE), dtype=torch.float64)
    for order in permutations(nodes, count):
        left, chance = weight.sum(), 1.0
        for node in order:
            chance *= float(weight[node] / left)
            left = left - weight[node]
        expected[[*order]] += chance
    deviation = (expected * (1 - expected) / times).sqrt()
    assert ((found / times - expected).abs() <= 4.5 * deviation + 1e-9).all()


def test_no_more_than_there_are() -> None:
    assert DegreeDraws(DEGREE).draw(50, 3).tolist() == DEGREE.nonzero()[:, 0].tolist()
    assert DegreeDraws(torch.zeros(4, dtype=torch.int64)).draw(2, 3).tolist() == []
    assert DegreeDraws(torch.zeros(0, dtype=torch.int64)).draw(2, 3).tolist() == []


@pytest.mark.parametrize("relations", [None, torch.tensor([0, 2])], ids=["all", "some"])
@pytest.mark.parametrize("typed", [True, False])
def test_links_by_number(relations: torch.Tensor | None, *, typed: bool) -> None:
    graph = random_topology(30, 200)
    if typed:
        graph = with_relations(graph, 3)
    elif relations is not None:
        return
    links = collect_links(graph)
    kept = (links.non_loop_mask & mark_relations(links, relations)).nonzero()[:, 0]
    numbers = LinkNumbers(graph, relations)
    assert len(numbers) == len(kept) < graph.num_edges
    edges = numbers.find_edges(torch.arange(len(numbers)))
    assert torch.equal(edges, kept)
    for mine, theirs in zip(numbers.find_links(edges), links.select_links(kept), strict=True):
        assert torch.equal(mine, theirs)
    ends = torch.cat([links.head[kept], links.tail[kept]])
    assert torch.equal(count_link_degrees(graph, relations), torch.bincount(ends, minlength=30))
    parts = [number for _, number in iterate_in_links(graph, 20)]
    assert len(parts) > 5
    assert torch.equal(torch.cat(parts), torch.arange(graph.num_edges))


@pytest.mark.parametrize("typed", [True, False])
def test_answers_of_the_graph_are_those_of_the_list(*, typed: bool) -> None:
    graph = random_topology(30, 200)
    graph = with_relations(graph, 3) if typed else graph
    every = collect_links(graph)
    links = every.select_links(every.non_loop_mask)
    listed, looked_up = TrainingAnswers(links, 30, directed=typed), GraphAnswers(graph)
    candidates = torch.arange(1, 30, 3)
    some = links.select_links(torch.arange(0, len(links), 3))
    for side in ("tail", "head"):
        query = torch.unique(encode_queries(some, side, looked_up.num_relations))
        mine, theirs = (each.answers_among(query, side, candidates) for each in (looked_up, listed))
        assert len(mine[0]) > 20
        assert all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))
