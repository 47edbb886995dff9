"""What held-out links share with training: counted as loops count it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.core.user_warnings import DataWarning
from outgrow.graph import link_leakage
from outgrow.graph.graph import Graph
from outgrow.graph.link_leakage import (
    InversePair,
    LinkLeakage,
    SharedLinks,
    describe_leakage,
    find_leakage,
    warn_of_leakage,
)
from outgrow.graph.link_split import HeldOutLinks
from outgrow.graph.link_triples import LinkTriples
from outgrow.graph.topology import Topology

Fact = tuple[int, int, int]
"""Head, relation and tail."""
NODES = 5


def links_of(facts: list[Fact]) -> LinkTriples:
    table = torch.tensor(facts, dtype=torch.int64).reshape(-1, 3)
    return LinkTriples(*(table[:, column].contiguous() for column in (0, 2, 1)))


def graph_of(train: list[Fact], val: list[Fact], test: list[Fact], names: tuple[str, ...] = ()) -> Graph:
    edges = sorted(train, key=lambda fact: (fact[2], fact[0], fact[1]))
    counts = torch.bincount(torch.tensor([t for _, _, t in edges], dtype=torch.int64), minlength=NODES)
    relation = torch.tensor([r for _, r, _ in edges], dtype=torch.int8) if names else None
    topology = Topology(
        indptr=torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
        indices=torch.tensor([h for h, _, _ in edges], dtype=torch.int32),
        relation=relation,
    )
    held = HeldOutLinks(links_of(val), links_of(test))
    return Graph(name="facts", topology=topology, relation_names=names, held_out_links=held)


def shared(part: list[Fact], train: list[Fact], val: list[Fact] | None = None) -> SharedLinks:
    facts, pairs = {*train}, {(h, t) for h, _, t in train}
    return SharedLinks(
        total=len(part),
        repeated=len(part) - len({*part}),
        duplicates=sum(fact in facts for fact in part),
        inverses=sum(h != t and (t, h) in pairs for h, _, t in part),
        parallels=sum(any((h, t) == (a, b) and r != s for a, s, b in facts) for h, r, t in part),
        validated=sum(fact in (val or []) for fact in part),
        unseen=sum(not {h, t} <= {end for a, _, b in train for end in (a, b)} for h, _, t in part),
    )


def inverse_pairs(train: list[Fact], held: int, names: tuple[str, ...]) -> dict[tuple[str, str], float]:
    plain = [(h, r, t) for h, r, t in train if h != t]
    totals = Counter(r for _, r, _ in plain)
    back = Counter((r, s) for h, r, t in plain for s in {s for a, s, b in plain if (a, b) == (t, h)})
    least = 0.99 - held / max(1, held + len(plain))
    return {(names[r], names[s]): count / totals[r] for (r, s), count in back.items() if count >= least * totals[r]}


def facts(relations: int) -> st.SearchStrategy[list[Fact]]:
    node = st.integers(0, NODES - 1)
    return st.lists(st.tuples(node, st.integers(0, relations - 1), node), max_size=25)


@given(data=st.data(), relations=st.integers(0, 3), block=st.sampled_from([1, 3, 1 << 22]))
@settings(deadline=None, max_examples=100)
def test_counts_are_those_of_loops(data: st.DataObject, relations: int, block: int) -> None:
    train, val, test = (data.draw(facts(max(1, relations))) for _ in range(3))
    names = tuple("abc"[:relations])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link_leakage, "_BLOCK_EDGES", block)
        found = find_leakage(graph_of(train, val, test, names))
    assert found is not None
    assert found.val == shared(val, train)
    assert found.test == shared(test, train, val)
    expected = inverse_pairs(train, len(val) + len(test), names) if names else {}
    assert {(pair.relation, pair.inverse): pair.share for pair in found.near_inverse} == pytest.approx(expected)
    assert [pair.share for pair in found.near_inverse] == sorted((p.share for p in found.near_inverse), reverse=True)
    plain = [(h, t) for h, _, t in train if h != t]
    back = sum((t, h) in plain for h, t in plain)
    assert found.reversed_share == pytest.approx(back / max(1, len(plain)))


TRAIN: list[Fact] = [(0, 0, 1), (1, 1, 0), (1, 0, 2), (2, 1, 1), (2, 0, 3), (3, 1, 2), (4, 0, 4)]


def test_relations_that_invert_one_another_are_named() -> None:
    graph = graph_of(TRAIN, [(0, 0, 3)], [(1, 0, 0), (0, 0, 1), (0, 0, 3)], ("part", "whole"))
    found = find_leakage(graph)
    assert found == LinkLeakage(
        val=SharedLinks(total=1, repeated=0, duplicates=0, inverses=0, parallels=0),
        test=SharedLinks(total=3, repeated=0, duplicates=1, inverses=2, parallels=1, validated=1),
        near_inverse=(InversePair("part", "whole", 1.0), InversePair("whole", "part", 1.0)),
        reversed_share=1.0,
    )
    facts = describe_leakage(graph)
    assert facts["near-inverse relations"] == "part and whole (100%), whole and part (100%)"
    assert facts["validation links"].startswith("1: none")
    assert "2 (66.7%) have their inverse in training" in facts["test links"]
    with pytest.warns(DataWarning, match="facts leaks: of 3 test links 1 .33.3%. are training links too"):
        warn_of_leakage(graph, found)


def test_inverses_that_were_added_do_not_count() -> None:
    names = ("part", "whole")
    plain = graph_of(TRAIN, [(0, 0, 3)], [(1, 0, 0)], names)
    added = [*TRAIN, *((t, r + 2, h) for h, r, t in TRAIN)]
    graph = graph_of(added, [(0, 0, 3)], [(1, 0, 0)], (*names, *(f"{name}^-1" for name in names)))
    assert find_leakage(graph) == find_leakage(plain)


def test_what_is_clean_gives_no_warning() -> None:
    graph = graph_of([(0, 0, 1), (1, 0, 2), (2, 0, 3)], [(0, 0, 2)], [(0, 0, 3)], ("part",))
    found = find_leakage(graph)
    assert found is not None
    warn_of_leakage(graph, found)
    assert find_leakage(replace(graph, held_out_links=None)) is None
    assert describe_leakage(replace(graph, held_out_links=None)) == {}
