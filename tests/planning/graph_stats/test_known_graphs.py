"""Graphs that are known by their published sizes."""

from __future__ import annotations

import pytest

from outgrow.core.errors import InputError
from outgrow.planning.graph_stats.known_graphs import known_graph, list_known_graphs, load_graph_facts


@pytest.mark.parametrize("name", list_known_graphs())
def test_those_that_come_with_outgrow_are_whole(name: str) -> None:
    facts = load_graph_facts(name)
    graph = known_graph(facts)
    assert facts["name"] == name
    assert 0 < facts["train"] <= facts["nodes"]
    assert len(facts["source"]) > 50
    assert graph.degrees.num_nodes == pytest.approx(facts["nodes"])
    assert graph.degrees.num_edges == pytest.approx(facts["edges"])
    one, four = (graph.partition_stats("metis", parts) for parts in (1, 4))
    assert one.halo.sum() == 0
    assert four.nodes.sum() == facts["nodes"]


@pytest.mark.parametrize("name", [name for name in list_known_graphs() if "replication" in load_graph_facts(name)])
@pytest.mark.parametrize("parts", [2, 32, 512])
def test_parts_have_as_many_neighbours_as_published(name: str, parts: int) -> None:
    """HongTu, table 3: in-neighbours of all parts over all nodes, own ones among them."""
    facts = load_graph_facts(name)
    graph = known_graph(facts)
    kept = graph.edge_locality("metis", parts)
    sources = graph.degrees.expected_sources(kept) + (parts - 1) * graph.degrees.expected_sources(
        (1 - kept) / (parts - 1)
    )
    assert sources / facts["nodes"] == pytest.approx(facts["replication"][str(parts)], rel=0.15)


def test_the_nearest_name_is_told() -> None:
    with pytest.raises(InputError, match="papers100M"):
        load_graph_facts("paper100M")
