"""Links set aside: by the pair of nodes, so that nothing leaks, and independent of the rest of the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.core.errors import InputError
from outgrow.graph.link_split import HeldOutLinks, LinkSplit, split_links, take_held_out_links
from outgrow.graph.link_triples import LinkTriples, collect_links
from outgrow.graph.topology import Topology
from outgrow.ops.rng import fold_in
from support import destinations_of, random_topology, topology_of, with_relations

VAL, TEST = 0.2, 0.3
Pair = tuple[int, int]


class Edge(NamedTuple):
    head: int
    tail: int
    relation: int = 0
    weight: float = 1.0

    @property
    def pair(self) -> Pair:
        return min(self.head, self.tail), max(self.head, self.tail)

    @property
    def loop(self) -> bool:
        return self.head == self.tail


def built(num_nodes: int, edges: Iterable[Edge], *, relations: bool, weighted: bool) -> Topology:
    """A topology of edges, sorted as a store sorts them."""
    ordered = sorted(edges, key=lambda edge: (edge.tail, edge.head, edge.relation))
    topology = topology_of(num_nodes, [(edge.head, edge.tail) for edge in ordered])
    return replace(
        topology,
        relation=torch.tensor([edge.relation for edge in ordered], dtype=torch.int8) if relations else None,
        weight=torch.tensor([edge.weight for edge in ordered]) if weighted else None,
    )


def edges_of(topology: Topology) -> list[Edge]:
    """The edges, in their order."""
    none = [0] * topology.num_edges
    relation = none if topology.relation is None else topology.relation.tolist()
    weight = none if topology.weight is None else topology.weight.tolist()
    ends = topology.indices.tolist(), destinations_of(topology.block.edges).tolist()
    return [Edge(*edge) for edge in zip(*ends, relation, weight, strict=True)]


def asked(links: LinkTriples) -> list[Edge]:
    return [Edge(*link) for link in zip(*(each.tolist() for each in links), strict=True)]


def pairs_of(links: LinkTriples) -> set[Pair]:
    return {link.pair for link in asked(links)}


def part_of(edge: Edge, seed: int) -> str:
    """The part that the draw for a pair of nodes puts an edge into, in plain Python."""
    drawn = (fold_in(seed, 6, *edge.pair) >> 11) / 2**53
    if edge.loop or drawn >= VAL + TEST:
        return "train"
    return "test" if drawn < TEST else "val"


@st.composite
def graphs(draw: st.DrawFn) -> Topology:
    """Any small multi-graph with loops and reverses, of which every edge has a weight of its own, if any."""
    num_nodes, relations, least = draw(st.integers(2, 9)), draw(st.integers(0, 2)), draw(st.sampled_from([0, 15, 25]))
    node = st.integers(0, num_nodes - 1)
    found = draw(st.lists(st.tuples(node, node, st.integers(0, max(0, relations - 1))), min_size=least, max_size=40))
    edges = [Edge(*each, weight) for weight, each in enumerate(found)]
    return built(num_nodes, edges, relations=relations > 0, weighted=draw(st.booleans()))


def split(topology: Topology, seed: int) -> LinkSplit | None:
    """The split; None where a part has no links."""
    parts = {part_of(edge, seed) for edge in edges_of(topology) if not edge.loop}
    return split_links(topology, val=VAL, test=TEST, seed=seed) if len(parts) == 3 else None


def directed(topology: Topology) -> bool:
    return topology.relation is not None


any_graph = given(topology=graphs(), seed=st.integers(0, 2**63 - 1))
many = settings(deadline=None, max_examples=150)


@any_graph
@many
def test_no_pair_of_nodes_is_in_two_parts(topology: Topology, seed: int) -> None:
    found = split(topology, seed)
    if found is None:
        return
    train = {edge.pair for edge in edges_of(found.topology) if not edge.loop}
    val, test = pairs_of(found.val), pairs_of(found.test)
    assert not train & val
    assert not train & test
    assert not val & test


@any_graph
@many
def test_edges_are_where_their_pair_is_drawn_to_and_none_is_lost(topology: Topology, seed: int) -> None:
    found = split(topology, seed)
    if found is None:
        return
    edges = edges_of(topology)
    parts = {name: [edge for edge in edges if part_of(edge, seed) == name] for name in ("train", "val", "test")}
    assert edges_of(found.topology) == parts["train"]
    assert found.topology.num_nodes == topology.num_nodes
    assert Counter(edge.loop for edge in parts["train"])[True] == Counter(edge.loop for edge in edges)[True]
    for name, links in (("val", found.val), ("test", found.test)):
        ours = [(*link.pair, link.relation) if not directed(topology) else link[:3] for link in asked(links)]
        theirs = {(*edge.pair, 0) if not directed(topology) else edge[:3] for edge in parts[name]}
        assert len(ours) == len(set(ours))
        assert set(ours) == theirs
    assert [link[:3] for link in asked(found.known_links)] == [edge[:3] for edge in edges]


@any_graph
@many
def test_links_to_predict_are_edges_of_the_graph_as_they_run_there(topology: Topology, seed: int) -> None:
    found = split(topology, seed)
    if found is not None:
        there = {edge[:3] for edge in edges_of(topology)}
        assert all(link[:3] in there for links in (found.val, found.test) for link in asked(links))


@any_graph
@many
def test_a_part_without_links_is_refused(topology: Topology, seed: int) -> None:
    if split(topology, seed) is None:
        with pytest.raises(InputError, match="too few edges"):
            split_links(topology, val=VAL, test=TEST, seed=seed)


@given(topology=graphs(), seed=st.integers(0, 99), kept=st.floats(0.2, 0.9), order=st.randoms(use_true_random=False))
@many
def test_neither_other_edges_nor_their_order_change_a_part(
    topology: Topology, seed: int, kept: float, order: Random
) -> None:
    edges = edges_of(topology)
    some = {pair for pair in sorted({edge.pair for edge in edges}) if order.random() < kept}
    fewer = [edge for edge in edges if edge.pair in some]
    order.shuffle(fewer)
    rest = built(
        topology.num_nodes, fewer, relations=topology.relation is not None, weighted=topology.weight is not None
    )
    whole, part = split(topology, seed), split(rest, seed)
    if whole is None or part is None:
        return
    for name in ("val", "test"):
        ours, theirs = (asked(getattr(each, name)) for each in (part, whole))
        assert set(ours) == {link for link in theirs if link.pair in some}
    assert Counter(edges_of(part.topology)) == Counter(e for e in edges_of(whole.topology) if e.pair in some)


def test_edges_within_a_row_may_be_in_any_order() -> None:
    topology = with_relations(random_topology(40, 400, weighted=True), 3)
    ends = topology.indptr.tolist()
    order = [e for v in range(topology.num_nodes) for e in reversed(range(ends[v], ends[v + 1]))]
    assert topology.relation is not None
    assert topology.weight is not None
    turned = Topology(
        indptr=topology.indptr,
        indices=topology.indices[order],
        relation=topology.relation[order],
        weight=topology.weight[order],
    )
    ours, theirs = (split_links(each, val=VAL, test=TEST, seed=4) for each in (turned, topology))
    assert {*asked(ours.val)} == {*asked(theirs.val)}
    assert {*asked(ours.test)} == {*asked(theirs.test)}
    assert Counter(edges_of(ours.topology)) == Counter(edges_of(theirs.topology))


def test_links_of_a_graph_are_all_its_edges_in_their_order() -> None:
    topology = with_relations(random_topology(12, 60), 3)
    links = collect_links(topology)
    assert len(links) == topology.num_edges
    assert asked(links) == [edge._replace(weight=1.0) for edge in edges_of(topology)]
    assert all(each.dtype == torch.int64 for each in links)
    assert not collect_links(random_topology(12, 60)).relation.any()
    some = links.select_links(torch.tensor([3, 1]))
    assert asked(some) == [asked(links)[3], asked(links)[1]]


def test_shares_are_about_as_asked_for_and_another_seed_is_another_split() -> None:
    topology = random_topology(5000, 60_000)
    pairs = {edge.pair for edge in edges_of(topology) if not edge.loop}
    splits = [split_links(topology, val=0.1, test=0.25, seed=seed) for seed in (0, 1)]
    for found in splits:
        assert len(pairs_of(found.val)) == pytest.approx(0.1 * len(pairs), rel=0.05)
        assert len(pairs_of(found.test)) == pytest.approx(0.25 * len(pairs), rel=0.05)
    both = pairs_of(splits[0].test) & pairs_of(splits[1].test)
    assert len(both) == pytest.approx(0.25 * 0.25 * len(pairs), rel=0.1)


def test_links_to_test_on_do_not_depend_on_how_many_validate() -> None:
    topology = random_topology(100, 900)
    few, many = (split_links(topology, val=val, test=0.2, seed=3) for val in (0.1, 0.4))
    assert asked(few.test) == asked(many.test)
    assert pairs_of(few.val) < pairs_of(many.val)


def test_a_pair_without_relations_is_asked_once_and_with_them_once_for_each() -> None:
    pairs = [(u, v) for u in range(12) for v in range(12) for _ in range(2)]
    plain = topology_of(12, pairs)
    found = split_links(plain, val=VAL, test=TEST, seed=1)
    for links in (found.val, found.test):
        assert len(links) == len(pairs_of(links)) > 0
    related = replace(plain, relation=torch.arange(len(pairs), dtype=torch.int16) % 2)
    found = split_links(related, val=VAL, test=TEST, seed=1)
    for links in (found.val, found.test):
        assert len({*asked(links)}) == len(links) == 4 * len(pairs_of(links))


def test_shares_of_nothing_leave_the_graph_as_it_is() -> None:
    topology = with_relations(random_topology(30, 200, weighted=True), 2)
    found = split_links(topology, val=0.0, test=0.0, seed=0)
    assert edges_of(found.topology) == edges_of(topology)
    assert torch.equal(found.topology.indptr, topology.indptr)
    assert (len(found.val), len(found.test)) == (0, 0)


def test_types_of_arrays_stay() -> None:
    topology = with_relations(random_topology(30, 200, index=torch.int64, weighted=True), 2)
    found = split_links(topology, val=VAL, test=TEST, seed=0).topology
    for name in ("indptr", "indices", "relation", "weight"):
        assert getattr(found, name).dtype == getattr(topology, name).dtype


@pytest.mark.parametrize(
    ("pairs", "val", "test", "lacks"),
    [
        ([], 0.1, 0.1, "0 to train on"),
        ([], 0.0, 0.0, "0 to train on"),
        ([(0, 1), (1, 0), (1, 1)], 0.4, 0.0, "0 to"),
        ([(0, 1), (0, 1)], 0.0, 0.4, "0 to"),
        ([(0, 0), (1, 1)], 0.1, 0.1, "0 to validate on, 0 to test on"),
        ([(0, 0), (1, 1)], 0.0, 0.0, "0 to train on"),
    ],
    ids=str,
)
def test_graphs_with_too_few_edges(pairs: list[Pair], val: float, test: float, lacks: str) -> None:
    with pytest.raises(InputError, match="too few edges") as caught:
        split_links(topology_of(2, pairs), val=val, test=test, seed=0)
    assert lacks in caught.value.got
    assert caught.value.needed.startswith("links to train on")
    assert "val_links" in caught.value.repair


@given(data=st.data(), topology=graphs())
@many
def test_links_that_are_given_are_taken_as_they_are(data: st.DataObject, topology: Topology) -> None:
    node = st.integers(0, topology.num_nodes - 1)
    relation = st.integers(0, 0 if topology.relation is None else 1)
    drawn = [data.draw(st.lists(st.tuples(node, node, relation), max_size=6)) for _ in range(2)]
    tables = [torch.tensor(part, dtype=torch.int64).reshape(-1, 3) for part in drawn]
    val, test = (LinkTriples(*table.unbind(1)) for table in tables)
    links = HeldOutLinks(val, test)
    edges = asked(collect_links(topology))
    if all(link.loop for link in edges):
        with pytest.raises(InputError, match="too few edges"):
            take_held_out_links(topology, links)
        return
    found = take_held_out_links(topology, links)
    assert found.topology is topology
    assert [asked(part) for part in (found.val, found.test)] == [[Edge(*link) for link in part] for part in drawn]
    held = [Edge(*link) for part in drawn for link in part]
    assert asked(found.known_links) == [*edges, *held]
