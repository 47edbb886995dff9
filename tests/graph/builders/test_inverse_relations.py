"""Inverse relations that are asked for: every edge gets its inverse, in memory and in a store alike."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.builders.to_store import convert_to_store
from outgrow.graph.graph import Graph
from outgrow.graph.readers.arrays import ArraySource
from outgrow.graph.readers.source import NodeTableSource

Edge = tuple[int, str, int]


def edges_of(graph: Graph) -> Counter[Edge]:
    heads, tails = graph.edge_index.tolist()
    assert graph.topology.relation is not None
    relations = graph.topology.relation.tolist()
    return Counter((h, graph.relation_names[r], t) for h, r, t in zip(heads, relations, tails, strict=True))


def source_of(facts: list[tuple[int, int, int]], names: tuple[str, ...] = ()) -> ArraySource:
    table = np.array(facts, dtype=np.int64).reshape(-1, 3)
    source = ArraySource(table[:, [0, 2]].T, NodeTableSource(num_nodes=5, relation_names=names), relation=table[:, 1])
    source.adds_inverse_relations = True
    return source


def expected(facts: list[tuple[int, int, int]]) -> Counter[Edge]:
    return Counter([(h, str(r), t) for h, r, t in facts] + [(t, f"{r}^-1", h) for h, r, t in facts])


@given(facts=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=30))
@settings(deadline=None, max_examples=60)
def test_every_edge_has_its_inverse_as_often_as_it_is_there(facts: list[tuple[int, int, int]]) -> None:
    assert edges_of(assemble_graph(source_of(facts))) == expected(facts)


def test_a_store_has_what_memory_has(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    facts = [tuple(each) for each in rng.integers(0, 3, (400, 3)).tolist()]
    made = convert_to_store(source_of(facts), tmp_path / "store", memory_bytes=1 << 12)
    assert edges_of(made) == edges_of(assemble_graph(source_of(facts))) == expected(facts)
    assert made.num_relations == 6


def test_edges_without_relations_have_no_inverse(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n1,2\n")
    with pytest.raises(InputError, match="no relations") as caught:
        og.load(tmp_path / "edges.csv", inverse_relations=True)
    assert "undirected" in caught.value.repair


def test_inverse_relations_are_not_added_twice() -> None:
    with pytest.raises(InputError, match="already") as caught:
        assemble_graph(source_of([(0, 0, 1), (1, 1, 2)], ("part", "part^-1")))
    assert "part^-1" in caught.value.got


def test_both_ways_to_add_reverses_are_not_taken_together() -> None:
    with pytest.raises(InputError, match="twice"):
        assemble_graph(source_of([(0, 0, 1)]), undirected=True)


def test_a_file_of_any_form_with_relations_takes_the_option(tmp_path: Path) -> None:
    np.savez(tmp_path / "graph.npz", edge_index=np.array([[0, 1], [1, 2]]), edge_type=np.array([0, 1]))
    made = og.convert(tmp_path / "graph.npz", tmp_path / "store", inverse_relations=True)
    assert edges_of(made) == expected([(0, 0, 1), (1, 1, 2)])
