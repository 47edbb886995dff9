"""The external build: any memory gives the graph of the definition, and the bound on memory is kept."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph.handmade import Edge, Listed, edges_of, expected, same
from outgrow.graph.builders.edge_order import (
    DirectedPolicy,
    EdgeColumns,
    UndirectedPolicy,
)
from outgrow.graph.builders.edge_policies import InverseRelationPolicy
from outgrow.graph.builders.external_sort import ExternalSorter
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.builders.to_store import convert_to_store
from outgrow.graph.readers.source import EdgeChunk, NodeTableSource

ids = st.integers(0, 5)
edge_lists = st.lists(st.builds(Edge, ids, ids, st.integers(0, 1), st.integers(0, 3).map(float)), max_size=200)


@given(
    edges=edge_lists,
    undirected=st.booleans(),
    typed=st.booleans(),
    weighted=st.booleans(),
    at_once=st.integers(1, 90),
)
@settings(deadline=None, max_examples=80)
def test_small_memory_gives_the_graph_of_the_definition(tmp_path_factory, edges, undirected, typed, weighted, at_once):
    """Sixteen edges fit, so rows, and pairs of nodes, have more edges than fit."""
    names = ("p", "q") if typed else ()
    listed = Listed(
        edges, NodeTableSource(num_nodes=9, relation_names=names), typed=typed, weighted=weighted, at_once=at_once
    )
    dest = tmp_path_factory.mktemp("built") / "store"
    built = convert_to_store(listed, dest, undirected=undirected, memory_bytes=1024)
    same(built, assemble_graph(listed, undirected=undirected))
    wanted = expected(edges, undirected=undirected, num_relations=len(names))
    assert [e[:3] for e in edges_of(built)] == [e[:3] for e in wanted]
    if weighted and edges:
        assert [e.weight for e in edges_of(built)] == [e.weight for e in wanted]


class Random:
    """Chunks of random edges with one heavy row, made when they are asked for."""

    def __init__(self, typed, weighted):
        self.typed, self.weighted = typed, weighted

    def chunks(self):
        for seed in range(60):
            rng = np.random.default_rng(seed)
            dst = np.where(rng.random(20_000) < 0.5, 7, rng.integers(0, 1000, 20_000))
            yield EdgeChunk(
                rng.integers(0, 1000, 20_000),
                dst,
                rng.integers(0, 5, 20_000) if self.typed else None,
                rng.random(20_000, dtype=np.float32) if self.weighted else None,
            )


@pytest.mark.parametrize("rule", [DirectedPolicy(), UndirectedPolicy()], ids=["directed", "undirected"])
@pytest.mark.parametrize(("typed", "weighted"), [(False, False), (True, False), (False, True), (True, True)])
def test_memory_stays_below_its_bound(tmp_path, rule, typed, weighted):
    """Most bytes that NumPy holds while 1.2 million edges are sorted in 4 MiB, 2 to 20 times less than they take."""
    bound, total = 1 << 22, 0
    edges = Random(typed, weighted)
    tracemalloc.start()
    with ExternalSorter(tmp_path, rule, bound) as spill:
        for chunk in edges.chunks():
            spill.add_edges(rule.make_columns(chunk))
        tracemalloc.reset_peak()
        last = 0
        for piece in spill.iter_sorted_ranges():
            assert int(piece.key[0]) >= last
            last = int(piece.key[-1])
            total += len(piece)
        peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < bound
    assert total == 1_200_000 if rule.keeps_parallel_edges else 0 < total < 2_400_000


@pytest.mark.parametrize("weighted", [False, True])
def test_memory_stays_below_its_bound_with_the_inverse_of_every_edge(tmp_path, weighted):
    bound, rule = 1 << 22, InverseRelationPolicy()
    tracemalloc.start()
    with ExternalSorter(tmp_path, rule, bound) as spill:
        for chunk in Random(True, weighted).chunks():
            spill.add_edges(rule.make_columns(chunk))
        tracemalloc.reset_peak()
        total = sum(len(piece) for piece in spill.iter_sorted_ranges())
        peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < bound
    assert total == 2_400_000


def test_memory_stays_below_its_bound_while_edges_come_in(tmp_path):
    bound = 1 << 22
    with ExternalSorter(tmp_path, UndirectedPolicy(), bound) as spill:
        chunk = next(iter(Random(typed=True, weighted=True).chunks()))
        columns = UndirectedPolicy().make_columns(chunk)
        tracemalloc.start()
        for _ in range(20):
            spill.add_edges(columns)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert 0 < peak < bound


def test_one_pair_with_more_edges_than_fit_keeps_the_order_of_input(tmp_path):
    weight = np.arange(5000, dtype=np.float32)
    key = np.full(5000, 3, dtype=np.uint64)
    with ExternalSorter(tmp_path, DirectedPolicy(), 1024) as spill:
        spill.add_edges(EdgeColumns(key, np.zeros(5000, dtype=np.int32), weight))
        pieces = [piece.weight.copy() for piece in spill.iter_sorted_ranges()]
    assert len(pieces) > 100
    assert np.array_equal(np.concatenate(pieces), weight)
