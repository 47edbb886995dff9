"""Temporal draws: rows are pairs of a node and the time of its seed, and only in-edges before that time exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.sampling.plain_sampler import floyd, repeated_draws

from outgrow.core.block import Block
from outgrow.core.errors import InputError
from outgrow.graph.sampling.batch_numbers import BatchRows, PairNumbers
from outgrow.graph.sampling.edge_sampler import FASTGCN, LABOR, NEIGHBOR, WITH_REPLACEMENT, Fanout, SampledEdges
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.sampling.temporal_sampler import LAST, UNIFORM
from outgrow.graph.topology import NO_TIME, Topology
from outgrow.ops.rng import NEIGHBOURS, fold_in
from outgrow.ops.sampling import temporal, time_order
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


@settings(max_examples=150)
@given(cases())
def test_blocks_are_those_of_plain_python(case: Case) -> None:
    check_case(case)


@settings(max_examples=30)
@given(cases(), st.randoms(use_true_random=False))
def test_a_row_does_not_depend_on_the_batch(case: Case, random: Any) -> None:
    seeds = [*case.seeds]
    random.shuffle(seeds)
    cut = len(seeds) // 2
    whole = kept_of(case.sample())
    for part in (seeds[:cut], seeds[cut:]):
        for layer, rows in enumerate(kept_of(case._replace(seeds=part).sample())):
            for node, kept in rows.items():
                assert whole[layer][node] >= kept


def kept_of(blocks: list[Block]) -> list[dict[int, set[tuple[int, ...]]]]:
    """By layer and node, the sets of edges that rows of the node keep."""
    found = []
    for block in blocks:
        assert block.edge_ids is not None
        rows: dict[int, set[tuple[int, ...]]] = {}
        for number, node in enumerate(block.dst_nodes.tolist()):
            ends = block.edges.indptr[number : number + 2].tolist()
            rows.setdefault(node, set()).add(tuple(block.edge_ids[slice(*ends)].tolist()))
        found.append(rows)
    return found


def test_threads_draw_the_same() -> None:
    graph = timed_graph(60, 900, 3, weighted=True)
    view = graph.sampling_view(self_loops=True)
    make = partial(NeighborSampler, [view, view], (3, -1), SEED, temporal_strategy=UNIFORM)
    batches = list(torch.arange(60).split(7))
    alone = [make().sample_blocks(batch, 0, step) for step, batch in enumerate(batches)]
    together = make()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda step: together.sample_blocks(batches[step], 0, step), range(len(batches))))
    for mine, others in zip(alone, found, strict=True):
        for one, other in zip(mine, others, strict=True):
            assert torch.equal(one.src_nodes, other.src_nodes)
            assert torch.equal(one.edges.indices, other.edges.indices)
            assert torch.equal(one.src_degree, other.src_degree)


def test_a_subgraph_has_the_edges_of_the_blocks() -> None:
    graph = timed_graph(40, 400, 1)
    sampler = NeighborSampler([graph, graph], (3, 3), SEED, temporal_strategy=UNIFORM)
    seeds = torch.arange(9)
    found = sampler.sample_subgraph(seeds, EPOCH, STEP)
    assert found.times is not None
    assert graph.node_time is not None
    assert graph.edge_time is not None
    assert torch.equal(found.times[:9], graph.node_time[seeds])
    source, target = found.edge_index
    assert torch.equal(graph.indices[found.edge_ids].long(), found.nodes[source])
    assert torch.equal(found.times[source], found.times[target])
    assert (graph.edge_time[found.edge_ids] < found.times[target]).all()
    pairs = [*zip(found.nodes.tolist(), found.times.tolist(), strict=True)]
    assert len({*pairs}) == len(pairs) > len({*found.nodes.tolist()})


def test_features_of_edges_are_those_of_the_edges() -> None:
    graph = timed_graph(30, 300, 5)
    graph = replace(graph, edge_features=torch.arange(graph.num_edges, dtype=torch.float32)[:, None] + 1)
    for looped in (False, True):
        case = Case(graph, [*range(20)], (4, 4), UNIFORM, looped)
        for block in case.sample():
            assert block.edge_features is not None
            assert block.edge_ids is not None
            held = graph.with_self_loops if looped else graph
            expected = held.edge_features
            assert expected is not None
            rows = expected[block.edge_ids]
            if looped:
                # A self-loop of the graph may be later than the row: it counts as one that was added.
                rows[held.indices[block.edge_ids] == block.dst_nodes.repeat_interleave(block.edges.indptr.diff())] = 0
            assert torch.equal(block.edge_features, rows)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"sampler": LABOR}, "sampler labor"),
        ({"sampler": FASTGCN}, "sampler fastgcn"),
        ({"weighted": True}, "weighted=True"),
        ({"sampler": WITH_REPLACEMENT, "temporal_strategy": LAST}, "temporal_strategy=last"),
        ({"temporal_strategy": "recent"}, "temporal_strategy"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options: dict[str, Any], part: str) -> None:
    graph = timed_graph(9, 30, 0, weighted=True)
    with pytest.raises(InputError) as error:
        NeighborSampler([graph], (2,), 0, **{"temporal_strategy": UNIFORM, **options})
    assert part in str(error.value)


def test_times_are_needed() -> None:
    graph = random_topology(9, 30)
    with pytest.raises(InputError, match="temporal draws need times"):
        NeighborSampler([graph], (2,), 0, temporal_strategy=UNIFORM)
    timed = replace(graph, edge_time=torch.zeros(graph.num_edges, dtype=torch.int64))
    with pytest.raises(InputError, match="a node without a time cannot be a seed"):
        NeighborSampler([timed], (2,), 0, temporal_strategy=UNIFORM).sample_blocks(torch.arange(2), 0, 0)


@pytest.mark.parametrize("seeds", [[0, 0], [0, 9], [-1]])
def test_seeds_are_distinct_nodes(seeds: list[int]) -> None:
    graph = timed_graph(9, 30, 0)
    with pytest.raises(InputError, match="cannot be the seeds"):
        NeighborSampler([graph], (2,), 0, temporal_strategy=UNIFORM).sample_blocks(torch.tensor(seeds), 0, 0)


@contextmanager
def time_of_the_destination() -> Iterator[None]:
    """Sources are drawn for the time of the node whose in-neighbours they are, not for that of the seed."""
    right = PairNumbers.number_sources

    def number(
        self: PairNumbers, layer: int, sampled: SampledEdges, expanded: BatchRows, known: BatchRows
    ) -> tuple[BatchRows, Any]:
        view = self._sampling.views[0]
        assert isinstance(view, Topology)
        assert view.node_time is not None
        times = view.node_time.numpy()[expanded.nodes]
        return right(self, layer, sampled, expanded._replace(times=times), known)

    with patch.object(PairNumbers, "number_sources", number):
        yield


@contextmanager
def degrees_of_the_whole_graph() -> Iterator[None]:
    """Means and normalisations are over in-edges of any time."""

    def degrees(self: PairNumbers, layer: int, rows: BatchRows) -> torch.Tensor:
        return self._sampling.views[layer].degree[torch.from_numpy(rows.nodes)]

    with patch.object(PairNumbers, "row_degrees", degrees):
        yield


@contextmanager
def edges_at_the_time() -> Iterator[None]:
    """An in-edge at the time of the seed counts as before it."""
    right = time_order.order_by_time

    def order(graph: Any, edge_time: Any, node_time: Any, *, leave_out_loops: bool) -> time_order.TimeOrder:
        found = right(graph, edge_time, node_time, leave_out_loops=leave_out_loops)
        return found._replace(times=found.times - 1)

    with patch("outgrow.graph.topology.order_by_time", order):
        yield


@contextmanager
def draws_without_the_time() -> Iterator[None]:
    """Rows of one node draw alike, whatever their times."""
    right = temporal.find_rows_before

    def find(rows: Any, row_times: Any, pairs: Any, *bounds: Any) -> tuple[int, int]:
        found = right(rows, row_times, pairs, *bounds)
        pairs[:] = rows[0]
        return found

    with patch("outgrow.graph.sampling.temporal_sampler.find_rows_before", find):
        yield


MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each
    for each in (
        time_of_the_destination,
        degrees_of_the_whole_graph,
        edges_at_the_time,
        draws_without_the_time,
    )
}


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    case = Case(timed_graph(25, 200, 4), [*range(9)], (2, 2), UNIFORM, looped=False)
    check_case(case)
    # Another graph object: the order of the first is kept.
    with MUTANTS[name](), pytest.raises(AssertionError):
        check_case(case._replace(topology=timed_graph(25, 200, 4)))
