"""Links of chosen relations alone are held out and ranked; edges of others stay, but beside held-out links."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.test_link_split import TEST, VAL, Edge, asked, built, edges_of, part_of

from outgrow.core.errors import InputError
from outgrow.graph.link_split import HeldOutLinks, split_links, take_held_out_links
from outgrow.graph.link_triples import LinkTriples
from support import random_topology, with_relations

many = settings(deadline=None, max_examples=150)


@st.composite
def related_edges(draw: st.DrawFn) -> tuple[int, list[Edge]]:
    """A small multi-graph of three relations."""
    num_nodes = draw(st.integers(2, 9))
    node = st.integers(0, num_nodes - 1)
    found = draw(st.lists(st.tuples(node, node, st.integers(0, 2)), min_size=10, max_size=40))
    return num_nodes, [Edge(*each) for each in found]


@given(graph=related_edges(), seed=st.integers(0, 2**63 - 1), chosen=st.sets(st.integers(0, 2), min_size=1, max_size=2))
@many
def test_edges_are_where_plain_python_puts_them(graph: tuple[int, list[Edge]], seed: int, chosen: set[int]) -> None:
    num_nodes, edges = graph
    topology = built(num_nodes, edges, relations=True, weighted=False)
    edges = edges_of(topology)
    predicted = [edge for edge in edges if edge.relation in chosen]
    parts = {name: [edge for edge in predicted if part_of(edge, seed) == name] for name in ("train", "val", "test")}
    relations = torch.tensor(sorted(chosen))
    if not all(any(not edge.loop for edge in part) for part in parts.values()):
        with pytest.raises(InputError, match="too few edges"):
            split_links(topology, val=VAL, test=TEST, seed=seed, relations=relations)
        return
    found = split_links(topology, val=VAL, test=TEST, seed=seed, relations=relations)
    held = {edge.pair for edge in (*parts["val"], *parts["test"])}
    # No edge of any relation is left between two nodes whose link is held out, and no other edge is gone.
    assert edges_of(found.topology) == [edge for edge in edges if edge.pair not in held]
    for name, links in (("val", found.val), ("test", found.test)):
        assert {edge[:3] for edge in asked(links)} == {edge[:3] for edge in parts[name]}
    assert [edge[:3] for edge in asked(found.known_links)] == [edge[:3] for edge in predicted]


def test_all_relations_chosen_are_none_chosen() -> None:
    topology = with_relations(random_topology(40, 250), 3)
    ours = split_links(topology, val=VAL, test=TEST, seed=3, relations=torch.arange(3))
    theirs = split_links(topology, val=VAL, test=TEST, seed=3)
    assert edges_of(ours.topology) == edges_of(theirs.topology)
    for mine, other in zip((*ours[1:3], ours.known_links), (*theirs[1:3], theirs.known_links), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))


def test_given_links_of_other_relations_are_passed_over() -> None:
    topology = with_relations(random_topology(40, 250), 3)
    ends = torch.arange(9)
    links = LinkTriples(ends, ends + 1, ends % 3)
    found = take_held_out_links(topology, HeldOutLinks(links, links), torch.tensor([1]))
    assert found.topology is topology
    assert found.val.relation.tolist() == found.test.relation.tolist() == [1, 1, 1]
    assert set(found.known_links.relation.tolist()) == {1}
