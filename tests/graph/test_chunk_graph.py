"""Chunks against plain selections from the graph, or from its view with self-loops."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.graph.chunk_graph import ChunkGraph, unique_sorted
from outgrow.graph.topology import Topology
from strategies.offload.cut_graphs import dressed, ids, in_edges, multigraphs, sources_of
from support import random_topology, with_edge_features


def view_of(topology: Topology, self_loops: bool) -> Topology:
    return topology.with_self_loops if self_loops else topology


@st.composite
def choices(draw: st.DrawFn) -> tuple[Topology, list[int]]:
    """A graph and some of its nodes: none, one, a range, all, or any."""
    topology = draw(multigraphs())
    every = list(range(topology.num_nodes))
    first = draw(st.integers(0, topology.num_nodes))
    kinds = st.sampled_from([[], every, every[first:], every[:first], every[first : first + 1]])
    return topology, sorted(draw(st.one_of(kinds, st.lists(st.sampled_from(every), unique=True))))


def check_sources(graph: ChunkGraph, view: Topology, nodes: list[int]) -> None:
    assert graph.source_ids(ids(nodes)).tolist() == sources_of(view, nodes)


def check_chunk(graph: ChunkGraph, view: Topology, nodes: list[int], places: list[int], num_src: int) -> None:
    """The same edges with their weights, relations and features, sources at their places, and the ids of the edges."""
    place_V = torch.full((view.num_nodes,), -1, dtype=torch.int32)
    sources = ids(sources_of(view, nodes))
    place_V[sources] = torch.tensor(places[: len(sources)], dtype=torch.int32)
    edges, start = graph.extract_chunk(ids(nodes), place_V, num_src)
    expected = [in_edges(view, node) for node in nodes]
    chosen = torch.tensor([e for row in expected for e in row], dtype=torch.int64)
    assert edges.num_src == num_src
    assert edges.indptr.diff().tolist() == [len(row) for row in expected]
    assert start.tolist() == view.indptr[ids(nodes)].tolist()
    assert edges.indices.tolist() == place_V[view.indices[chosen].long()].tolist()
    assert edges.feature_sizes == view.feature_sizes
    for got, of_view in (
        (edges.relation, view.relation),
        (edges.weight, view.weight),
        (edges.features, view.edge_features),
    ):
        if of_view is None:
            assert got is None
        else:
            assert got is not None
            assert got.dtype == of_view.dtype
            assert torch.equal(got, of_view[chosen])


@settings(deadline=None)
@given(choices(), st.booleans())
def test_sources_are_those_of_the_view(choice: tuple[Topology, list[int]], self_loops: bool) -> None:
    topology, nodes = choice
    check_sources(ChunkGraph(topology, self_loops=self_loops), view_of(topology, self_loops), nodes)


@settings(deadline=None)
@given(choices(), st.booleans(), st.integers(0, 3), st.randoms(use_true_random=False))
def test_chunks_are_those_of_the_view(choice: tuple[Topology, list[int]], self_loops: bool, spare: int, random) -> None:
    """With places of any order, some of which nothing takes."""
    topology, nodes = choice
    view = view_of(topology, self_loops)
    num_src = len(sources_of(view, nodes)) + spare
    places = list(range(num_src))
    if random.random() < 0.7:
        random.shuffle(places)
    check_chunk(ChunkGraph(topology, self_loops=self_loops), view, nodes, places, num_src)


@settings(deadline=None)
@given(choices(), st.booleans())
def test_degrees_and_sizes_are_those_of_the_view(choice: tuple[Topology, list[int]], self_loops: bool) -> None:
    topology, nodes = choice
    graph, view = ChunkGraph(topology, self_loops=self_loops), view_of(topology, self_loops)
    assert torch.equal(graph.degree, view.degree)
    replaced = [self_loops * sum(int(topology.indices[e]) == v for e in in_edges(topology, v)) for v in nodes]
    exact = view.indptr.diff()[ids(nodes)]
    assert graph.row_sizes(ids(nodes)).tolist() == [
        n + loops for n, loops in zip(exact.tolist(), replaced, strict=True)
    ]
    assert graph.count_in_edges(ids(nodes)) == int(exact.sum())


def test_a_large_graph_in_small_and_large_chunks() -> None:
    """Small chunks list their sources, large ones mark them among all nodes; marks are wiped for the next."""
    topology = dressed(with_edge_features(random_topology(3000, 9000, seed=2)), weights=True, relations=3)
    for self_loops in (False, True):
        graph, view = ChunkGraph(topology, self_loops=self_loops), view_of(topology, self_loops)
        for nodes in (range(2000), range(5), range(3000), range(0, 3000, 7), range(2990, 3000)):
            check_sources(graph, view, list(nodes))
            num_src = len(sources_of(view, list(nodes)))
            places = torch.randperm(num_src, generator=torch.Generator().manual_seed(len(nodes))).tolist()
            check_chunk(graph, view, list(nodes), places, num_src)


def test_a_chunk_of_its_own_memory_does_not_write_into_the_graph() -> None:
    topology = dressed(random_topology(40, 200), weights=True, relations=3)
    before = [part.clone() for part in (topology.indices, topology.relation, topology.weight)]
    graph = ChunkGraph(topology, self_loops=True)
    every = torch.arange(40)
    edges, _ = graph.extract_chunk(every, every.int().flip(0), 40)
    for part in (edges.indices, edges.relation, edges.weight):
        part.zero_()
    assert all(map(torch.equal, before, (topology.indices, topology.relation, topology.weight)))


def test_distinct_numbers_ascend() -> None:
    assert unique_sorted(torch.tensor([5, 1, 5, 0])).tolist() == [0, 1, 5]
    assert unique_sorted(torch.empty(0, dtype=torch.int64)).tolist() == []
