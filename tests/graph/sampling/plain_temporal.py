"""Temporal draws in plain Python: which in-edges each pair of a node and a time keeps, and what blocks have of them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from tests.graph.sampling.plain_sampler import floyd, repeated_draws

from outgrow.core.block import Block
from outgrow.graph.sampling.edge_sampler import NEIGHBOR, WITH_REPLACEMENT, Fanout
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.sampling.temporal_sampler import LAST, UNIFORM
from outgrow.graph.topology import NO_TIME, Topology
from outgrow.ops.rng import NEIGHBOURS, fold_in
from outgrow.ops.sampling.self_loops import ADDED
from support import random_topology, with_relations

SEED, EPOCH, STEP = 7, 2, 5
Pair = tuple[int, int]


class Case(NamedTuple):
    """A graph with times, and how it is sampled."""

    topology: Topology
    seeds: list[int]
    fanout: tuple[Fanout, ...]
    strategy: str
    looped: bool
    sampler: str = NEIGHBOR

    def sample(self) -> list[Block]:
        view = self.topology.sampling_view(self_loops=self.looped)
        sampler = NeighborSampler(
            [view] * len(self.fanout), self.fanout, SEED, sampler=self.sampler, temporal_strategy=self.strategy
        )
        return sampler.sample_blocks(torch.tensor(self.seeds, dtype=torch.int64), EPOCH, STEP)


def timed_graph(
    num_nodes: int, num_edges: int, seed: int, *, edges: bool = True, relations: int = 0, weighted: bool = False
) -> Topology:
    """A skewed graph with few distinct times, some of them missing."""
    graph = random_topology(num_nodes, num_edges, seed=seed, weighted=weighted)
    random = np.random.default_rng(seed)
    edge_time, node_time = random.integers(0, 9, graph.num_edges), random.integers(1, 9, num_nodes)
    edge_time[random.random(graph.num_edges) < 0.1] = NO_TIME
    if not edges:
        node_time[::7] = NO_TIME
    graph = with_relations(graph, relations) if relations else graph
    return replace(
        graph, edge_time=torch.from_numpy(edge_time) if edges else None, node_time=torch.from_numpy(node_time)
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    relations = draw(st.sampled_from((0, 2)))
    has_edge_times = draw(st.booleans())
    num_nodes, num_edges = draw(st.integers(1, 25)), draw(st.integers(0, 120))
    seed, weighted = draw(st.integers(0, 99)), draw(st.booleans())
    graph = timed_graph(num_nodes, num_edges, seed, edges=has_edge_times, relations=relations, weighted=weighted)
    assert graph.node_time is not None
    known = (graph.node_time != NO_TIME).nonzero()[:, 0].tolist()
    seeds = draw(st.lists(st.sampled_from(known), unique=True, max_size=6)) if known else []
    by_relation = relations and draw(st.booleans())
    hop = st.tuples(*[st.sampled_from((-1, 1, 2))] * 2) if by_relation else st.sampled_from((-1, 1, 2, 4))
    strategy = draw(st.sampled_from((UNIFORM, LAST)))
    sampler = draw(st.sampled_from((NEIGHBOR, WITH_REPLACEMENT)))
    if by_relation or strategy == LAST:
        sampler = NEIGHBOR
    return Case(graph, seeds, draw(st.tuples(hop, hop)), strategy, draw(st.booleans()), sampler)


def edges_before(case: Case, node: int, time: int) -> list[int]:
    """In-edges of a node before a time, the earliest first; without self-loops where one is added."""
    graph = case.topology
    first, last = graph.indptr[node : node + 2].tolist()
    found = []
    for edge in range(first, last):
        source = int(graph.indices[edge])
        when = NO_TIME if graph.edge_time is None else int(graph.edge_time[edge])
        if when == NO_TIME and graph.node_time is not None:
            when = int(graph.node_time[source])
        if when < time and not (case.looped and source == node):
            found.append((when, edge))
    return [edge for _, edge in sorted(found)]


def expected_edges(case: Case, layer: int, pair: Pair) -> list[tuple[int, float]]:
    """The edges of the graph that a row keeps, `ADDED` for its self-loop last, and how many each represents."""
    before = edges_before(case, *pair)
    fanout = case.fanout[-1 - layer]
    key = fold_in(fold_in(SEED, EPOCH, STEP, layer + 1, NEIGHBOURS), fold_in(*(each % 2**64 for each in pair)))
    if isinstance(fanout, tuple):
        assert case.topology.relation is not None
        kept = []
        for relation, most in enumerate(fanout):
            these = [edge for edge in before if int(case.topology.relation[edge]) == relation]
            kept += choose(these, most, fold_in(key, relation), case)
        return [*sorted(kept), *([(ADDED, 1.0)] if case.looped else [])]
    every = [*before, ADDED] if case.looped else before
    if case.sampler == WITH_REPLACEMENT and fanout != -1:
        drawn = repeated_draws(key, None, len(every), fanout) if every else {}
        found = [(every[place], len(every) * count / fanout) for place, count in drawn.items()]
    else:
        found = choose(every, fanout, key, case)
    return sorted(found, key=lambda kept: (kept[0] == ADDED, kept[0]))


def choose(edges: list[int], most: int, key: int, case: Case) -> list[tuple[int, float]]:
    if most == -1 or len(edges) <= most:
        return [(edge, 1.0) for edge in edges]
    places = range(len(edges) - most, len(edges)) if case.strategy == LAST else floyd(key, len(edges), most)
    return [(edges[place], len(edges) / most) for place in places]


def weight_of(graph: Topology, edge: int) -> float:
    return 1.0 if edge == ADDED or graph.weight is None else float(graph.weight[edge])


def check_case(case: Case) -> None:
    """Compare the blocks of a case with what plain Python computes of it."""
    graph = case.topology
    assert graph.node_time is not None
    held = graph.with_self_loops if case.looped else graph
    rows: list[Pair] = [(seed, int(graph.node_time[seed])) for seed in case.seeds]
    for layer, block in reversed([*enumerate(case.sample())]):
        assert block.dst_nodes.tolist() == [node for node, _ in rows]
        known = {pair: number for number, pair in enumerate(rows)}
        edges, indptr = block.edges, block.edges.indptr.tolist()
        assert block.edge_ids is not None
        for number, pair in enumerate([*rows]):
            kept = slice(indptr[number], indptr[number + 1])
            expected = expected_edges(case, layer, pair)
            sources = [pair[0] if edge == ADDED else int(graph.indices[edge]) for edge, _ in expected]
            for source in sources:
                known.setdefault((source, pair[1]), len(known))
            assert edges.indices[kept].tolist() == [known[source, pair[1]] for source in sources]
            ids = block.edge_ids[kept]
            # Numbers in the view, and the data of the edges in the graph.
            assert held.indices[ids].tolist() == sources
            if not case.looped:
                assert ids.tolist() == [edge for edge, _ in expected]
            weights = torch.ones(len(ids)) if edges.weight is None else edges.weight[kept]
            assert weights.tolist() == pytest.approx([weight_of(graph, edge) for edge, _ in expected])
            if edges.relation is not None and graph.relation is not None:
                relations = [-1 if edge == ADDED else int(graph.relation[edge]) for edge, _ in expected]
                assert edges.relation[kept].tolist() == relations
            represented = torch.ones(len(ids)) if block.sample_weight is None else block.sample_weight[kept]
            assert represented.tolist() == pytest.approx([number for _, number in expected], rel=1e-6)
            if block.relation_degree is not None:
                assert block.relation_degree[kept].tolist() == pytest.approx(relation_totals(case, pair, expected))
        rows = list(known)
        assert block.src_nodes.tolist() == [node for node, _ in rows]
        totals = [sum(weight_of(graph, edge) for edge in edges_before(case, *pair)) + case.looped for pair in rows]
        assert block.src_degree.tolist() == pytest.approx(totals, rel=1e-6)
        assert torch.equal(block.dst_degree, block.src_degree[: len(block.dst_nodes)])


def relation_totals(case: Case, pair: Pair, kept: list[tuple[int, float]]) -> list[float]:
    relation = case.topology.relation
    assert relation is not None
    before = edges_before(case, *pair)
    return [
        1.0
        if edge == ADDED
        else sum(weight_of(case.topology, other) for other in before if relation[other] == relation[edge])
        for edge, _ in kept
    ]
