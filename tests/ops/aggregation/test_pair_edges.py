"""Edges by pairs of relation and row against a dictionary of lists."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.core.block import Edges
from outgrow.core.errors import InputError
from outgrow.ops.aggregation.pair_edges import PairEdges, add_rows, in_edge_pairs, out_edge_pairs
from support import Drawn, bipartite, destinations_of, normal

RELATIONS = 5


@st.composite
def related(draw: st.DrawFn) -> Edges:
    """Edges of any bipartite multi-graph with relations, of which some have no edges."""
    drawn: Drawn = draw(bipartite())
    kinds = st.lists(st.integers(0, RELATIONS - 2), min_size=len(drawn.pairs), max_size=len(drawn.pairs))
    return replace(drawn.edges(), relation=torch.tensor(draw(kinds), dtype=torch.int8))


def as_dictionary(pairs: PairEdges) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Other ends and positions of the edges of each relation and row."""
    found = {}
    relation = [r for r in range(len(pairs.borders) - 1) for _ in range(pairs.borders[r + 1] - pairs.borders[r])]
    for p, (r, row) in enumerate(zip(relation, pairs.rows.tolist(), strict=True)):
        span = slice(int(pairs.indptr[p]), int(pairs.indptr[p + 1]))
        found[r, row] = list(zip(pairs.indices[span].tolist(), pairs.edge[span].tolist(), strict=True))
    assert len(found) == len(pairs.rows)
    return found


@given(edges=related())
@settings(deadline=None, max_examples=60)
def test_pairs_are_those_that_have_edges(edges: Edges) -> None:
    assert edges.relation is not None
    ends = edges.indices.tolist(), destinations_of(edges).tolist()
    for own, pairs in ((1, in_edge_pairs(edges, RELATIONS)), (0, out_edge_pairs(edges, RELATIONS))):
        expected = dict[tuple[int, int], list[tuple[int, int]]]()
        for e, r in enumerate(edges.relation.tolist()):
            expected.setdefault((r, ends[own][e]), []).append((ends[1 - own][e], e))
        assert as_dictionary(pairs) == expected
        assert list(as_dictionary(pairs)) == sorted(expected)
        assert pairs.num_edges == edges.num_edges


@given(edges=related(), most=st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_chunks_are_all_pairs_in_order(edges: Edges, most: int) -> None:
    pairs = in_edge_pairs(edges, RELATIONS)
    chunks = list(pairs.chunks(most))
    for name in ("rows", "indices", "edge"):
        parts = [getattr(chunk, name) for chunk in chunks]
        assert torch.equal(torch.cat(parts), getattr(pairs, name)) if parts else not len(getattr(pairs, name))
    kinds = [r for chunk in chunks for r, first, last in chunk.spans for _ in range(last - first)]
    assert [kinds.count(r) for r in range(RELATIONS)] == torch.tensor(pairs.borders).diff().tolist()
    assert kinds == sorted(kinds)
    for chunk in chunks:
        assert len(chunk.rows) <= most
        assert chunk.indptr[0] == 0
        assert chunk.indptr[-1] == len(chunk.indices)


def test_they_are_made_once_per_block() -> None:
    edges = replace(Drawn(2, 2, [(0, 0), (1, 0), (1, 1)]).edges(), relation=torch.tensor([1, 0, 1]))
    assert in_edge_pairs(edges, 2) is in_edge_pairs(edges, 2)
    assert out_edge_pairs(edges, 2) is out_edge_pairs(edges, 2)
    assert len(in_edge_pairs(edges, 3).borders) == 4


def test_relations_out_of_range_are_refused() -> None:
    edges = replace(Drawn(2, 1, [(0, 0), (1, 0)]).edges(), relation=torch.tensor([0, 2]))
    for make in (in_edge_pairs, out_edge_pairs):
        with pytest.raises(InputError, match="0 to 2"):
            make(edges, 2)


def test_rows_are_added_where_they_belong() -> None:
    out, rows, values = normal(50, 3), torch.tensor([7, 0, 49]), normal(3, 3, seed=1)
    expected = out.index_add(0, rows, values)
    add_rows(out, rows, values)
    assert torch.equal(out, expected)
