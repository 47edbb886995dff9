"""Counts over edges, components, homophily and degrees: by hand, and against NetworkX, NumPy and PyG."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.graph.graph import Graph
from outgrow.graph.statistics import components, degrees, edges, homophily
from outgrow.graph.statistics.components import count_components, find_components
from outgrow.graph.statistics.degrees import find_count_quantiles, find_degree_quantiles
from outgrow.graph.statistics.edges import count_edge_kinds, count_sampled_kinds, sample_edges
from outgrow.graph.statistics.homophily import count_class_edges, count_sampled_class_edges, measure_homophily
from outgrow.graph.statistics.labels import count_classes, count_labelled
from outgrow.graph.topology import Topology
from support import random_topology, topology_of, with_relations

nx = pytest.importorskip("networkx", reason="needs the extra networkx")
PAIRS = st.integers(1, 8).flatmap(
    lambda nodes: st.tuples(
        st.just(nodes), st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), max_size=24)
    )
)


def test_edges_counted_by_hand() -> None:
    # 0 <-> 1 with one of them twice, 2 -> 3 one way, a loop at 3, and node 4 alone.
    graph = topology_of(5, [(0, 1), (0, 1), (1, 0), (2, 3), (3, 3)])
    found = count_edge_kinds(graph)
    assert (found.num_edges, found.self_loops, found.duplicates, found.reciprocal) == (5, 1, 1, 3)
    assert found.out_degree is not None
    assert found.out_degree.tolist() == [2, 1, 1, 1, 0]
    assert count_edge_kinds(graph, reciprocal=False).reciprocal is None
    assert find_components(graph).tolist() == [0, 0, 2, 2, 4]
    assert count_components(graph) == (3, 2)


def test_edges_of_other_relations_are_no_duplicates_but_go_back() -> None:
    graph = topology_of(2, [(0, 1), (0, 1), (1, 0)])
    typed = replace(graph, relation=torch.tensor([2, 0, 1], dtype=torch.int8))
    assert count_edge_kinds(typed)[1:4] == (0, 0, 3)
    same = replace(graph, relation=torch.tensor([2, 1, 1], dtype=torch.int8))
    assert count_edge_kinds(same).duplicates == 1


@settings(deadline=None)
@given(PAIRS)
def test_edges_and_components_are_those_of_networkx(drawn: tuple[int, list[tuple[int, int]]]) -> None:
    nodes, pairs = drawn
    graph = topology_of(nodes, pairs)
    reference = nx.DiGraph(pairs)
    reference.add_nodes_from(range(nodes))
    found = count_edge_kinds(graph)
    assert found.self_loops == sum(u == v for u, v in pairs)
    assert found.duplicates == len(pairs) - reference.number_of_edges()
    assert found.reciprocal == sum(u != v and reference.has_edge(v, u) for u, v in pairs)
    groups = sorted(map(sorted, nx.weakly_connected_components(reference)))
    assert count_components(graph) == (len(groups), max(map(len, groups)))
    assert find_components(graph).tolist() == [
        next(group[0] for group in groups if node in group) for node in range(nodes)
    ]


@settings(deadline=None)
@given(PAIRS)
def test_a_sample_of_all_edges_counts_as_all_do(drawn: tuple[int, list[tuple[int, int]]]) -> None:
    nodes, pairs = drawn
    graph = topology_of(nodes, pairs)
    graph = with_relations(graph, 2) if len(pairs) % 2 else graph
    sample = sample_edges(graph)
    assert count_sampled_kinds(graph, sample)[:4] == count_edge_kinds(graph)[:4]
    labels = np.arange(nodes) % 3 - 1
    counted = count_class_edges(graph, labels, 2)
    for one, other in zip(counted, count_sampled_class_edges(sample, labels, 2), strict=True):
        assert one.tolist() == other.tolist()


def test_samples_are_the_same_each_time_and_close_to_all() -> None:
    graph = random_topology(2000, 60_000)
    sample = sample_edges(graph, 8000)
    assert sample.number.tolist() == sample_edges(graph, 8000).number.tolist()
    assert len(np.unique(sample.number)) == 8000
    dst = np.repeat(np.arange(2000), np.diff(graph.indptr.numpy()))
    assert sample.dst.tolist() == dst[sample.number].tolist()
    whole, part = count_edge_kinds(graph), count_sampled_kinds(graph, sample)
    assert whole.reciprocal is not None
    assert part.reciprocal is not None
    assert part.reciprocal / 8000 == pytest.approx(whole.reciprocal / whole.num_edges, abs=0.03)
    assert part.duplicates / 8000 == pytest.approx(whole.duplicates / whole.num_edges, abs=0.03)


def test_homophily_counted_by_hand() -> None:
    # Both ways: 0-1 of class 0, 1-2 across, 2-3 of class 1; node 4 is unknown, and its edge and the loop do not count.
    pairs = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), (4, 0), (0, 4), (3, 3)]
    labels = np.array([0, 0, 1, 1, -1])
    counts = count_class_edges(topology_of(5, pairs), labels, 2)
    assert [each.tolist() for each in counts] == [[2, 2], [3, 3], [3, 3]]
    found = measure_homophily(counts, np.array([2, 2]))
    assert found is not None
    assert found.edge == pytest.approx(4 / 6)
    # Each class has 2/3 of its edges within, and is half of the nodes; 0.5 is expected of the degrees.
    assert found.class_insensitive == pytest.approx(2 * (2 / 3 - 1 / 2))
    assert found.adjusted == pytest.approx((4 / 6 - 1 / 2) / (1 - 1 / 2))


def test_without_edges_between_known_classes_there_is_no_homophily() -> None:
    counts = count_class_edges(topology_of(2, [(0, 1)]), np.array([0, -1]), 2)
    assert measure_homophily(counts, np.array([1, 0])) is None
    one_class = count_class_edges(topology_of(2, [(0, 1)]), np.array([0, 0]), 1)
    found = measure_homophily(one_class, np.array([2]))
    assert found is not None
    assert np.isnan(found.adjusted)


@pytest.fixture(scope="module")
def pyg() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch_geometric.utils", reason="needs the extra pyg")


@settings(deadline=None, max_examples=30)
@given(drawn=PAIRS, given_labels=st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_homophily_is_that_of_pyg_and_networkx(
    pyg: Any, drawn: tuple[int, list[tuple[int, int]]], given_labels: list[int]
) -> None:
    reference = pyg.homophily
    nodes, pairs = drawn
    simple = sorted({(u, v) for u, v in pairs if u != v} | {(v, u) for u, v in pairs if u != v})
    labels = np.array(given_labels[:nodes])
    if not simple or labels.max() == 0:
        return
    graph = topology_of(nodes, simple)
    classes = int(labels.max()) + 1
    found = measure_homophily(count_class_edges(graph, labels, classes), np.bincount(labels))
    assert found is not None
    index, y = torch.tensor(simple).T, torch.from_numpy(labels)
    assert found.edge == pytest.approx(reference(index, y, method="edge"), abs=1e-6)
    assert found.class_insensitive == pytest.approx(reference(index, y, method="edge_insensitive"), abs=1e-6)
    undirected = nx.Graph(simple)
    nx.set_node_attributes(undirected, dict(enumerate(labels.tolist())), "label")
    # For symmetric edges, adjusted homophily is the assortativity of Newman (2003).
    if not np.isnan(found.adjusted):
        expected = nx.attribute_assortativity_coefficient(undirected, "label")
        assert found.adjusted == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(2, 40))
def test_quantiles_are_those_of_numpy(counts: list[int], large: int) -> None:
    # A small table, so that both halves of the method are used.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(degrees, "_LARGE", large)
        patch.setattr(degrees, "_BLOCK", 7)
        found = find_degree_quantiles(np.concatenate([[0], np.cumsum(counts)]))
    expected = np.quantile(counts, [p / 100 for p in degrees.PERCENTS], method="inverted_cdf")
    assert list(found.values()) == expected.astype(int).tolist()
    assert list(found) == ["0", "25", "50", "75", "90", "99", "100"]


def test_no_nodes_have_no_quantiles() -> None:
    assert find_count_quantiles(iter([np.empty(0, np.int64)])) == {}


def graph_with(labels: torch.Tensor, num_classes: int) -> Graph:
    return Graph(name="g", topology=topology_of(len(labels), []), labels=labels, num_classes=num_classes)


def test_classes_are_counted_by_part() -> None:
    graph = graph_with(torch.tensor([0, 1, -1, 1], dtype=torch.int16), 3)
    found = count_classes(graph, {"nodes": slice(None), "train": np.array([1, 3])})
    assert {name: part.tolist() for name, part in found.items()} == {"nodes": [1, 2, 0], "train": [0, 2, 0]}
    assert count_labelled(graph) == 3
    several = graph_with(torch.tensor([[1, 0], [1, 1], [0, 0]], dtype=torch.uint8), 2)
    assert count_classes(several, {"nodes": slice(None)})["nodes"].tolist() == [2, 1]
    assert count_labelled(several) == 3
    numbers = graph_with(torch.tensor([0.5, float("nan")]), 1)
    assert count_classes(numbers, {"nodes": slice(None)}) == {}
    assert count_labelled(numbers) == 1


def changed(module: Any, name: str, value: Any) -> Callable[[], Iterator[None]]:
    @contextmanager
    def apply() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, value(getattr(module, name)))
            yield

    return apply  # type: ignore[return-value]


def _forget_relations(whole: Callable[..., Any]) -> Callable[..., Any]:
    return lambda topology, **options: whole(replace(topology, relation=None), **options)


def _join_first_only(_: object) -> Callable[..., None]:
    def join(indptr: np.ndarray, indices: np.ndarray, parent: np.ndarray) -> None:
        for v in range(len(parent)):
            for u in indices[indptr[v] : indptr[v + 1]]:
                parent[v] = min(parent[v], parent[u])

    return join


def _count_loops_too(_: object) -> Callable[..., None]:
    def count(indptr: np.ndarray, indices: np.ndarray, labels: np.ndarray, counts: np.ndarray) -> None:
        for v in range(len(indptr) - 1):
            for u in indices[indptr[v] : indptr[v + 1]]:
                if labels[v] >= 0 and labels[u] >= 0:
                    counts[1, labels[u]] += 1
                    counts[2, labels[v]] += 1
                    counts[0, labels[v]] += labels[u] == labels[v]

    return count


def by_hand() -> None:
    test_edges_counted_by_hand()
    assert edges.count_edge_kinds(with_relations_apart()).duplicates == 0
    test_homophily_counted_by_hand()
    chain = topology_of(3, [(2, 0), (2, 1)])
    assert count_components(chain) == (1, 3)


def with_relations_apart() -> Topology:
    return replace(topology_of(2, [(0, 1), (0, 1)]), relation=torch.tensor([0, 1], dtype=torch.int8))


MUTANTS = {
    "info_counts_relations_as_duplicates": (
        "Edges of different relations count as duplicates.",
        changed(edges, "count_edge_kinds", _forget_relations),
    ),
    "info_joins_no_trees": (
        "Components are joined by their nodes, not by their roots.",
        changed(components, "_join_components", _join_first_only),
    ),
    "info_counts_loops_as_homophily": (
        "Self-loops count as edges between equal labels.",
        changed(homophily, "_count_class_edges", _count_loops_too),
    ),
}


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(mutant: str) -> None:
    by_hand()
    with MUTANTS[mutant][1](), pytest.raises(AssertionError):  # type: ignore[attr-defined]
        by_hand()
