"""In-edges dealt out to who takes their sum, and the sums a worker is asked for: against loops in plain Python."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.strategies.split.partial_sum_kernels import (
    RemoteEdgeCounts,
    SplitEdges,
    count_remote_edges,
    pack_partial_sums,
    split_in_edges,
)
from support import Drawn, naive_sum, normal

Row = list[tuple[int, int]]


class Cut(NamedTuple):
    """In-edges of a block by destination, and to whom its sources belong.

    Attributes:
        edges: The in-edges.
        num_own: Own sources.
        wanted: Sources of each worker besides.
        summed: Whether each sends sums.
    """

    edges: Edges
    num_own: int
    wanted: tuple[int, ...]
    summed: tuple[bool, ...]

    @property
    def rows(self) -> list[Row]:
        """For each destination the number and the source of each of its in-edges."""
        ends, indices = self.edges.indptr.tolist(), self.edges.indices.tolist()
        return [[(e, indices[e]) for e in range(low, high)] for low, high in pairwise(ends)]

    def first(self, peer: int) -> int:
        """The first source that a worker has."""
        return self.num_own + sum(self.wanted[:peer])

    def owner(self, source: int) -> int:
        """The worker of a source; -1 if it is an own one."""
        return -1 if source < self.num_own else max(p for p in range(len(self.wanted)) if source >= self.first(p))

    def of_peer(self, peer: int) -> list[Row]:
        """The in-edges from a worker, by destination, of those that have some."""
        rows = [[edge for edge in row if self.owner(edge[1]) == peer] for row in self.rows]
        return [row for row in rows if row]

    @property
    def crossing(self) -> RemoteEdgeCounts:
        """What crosses."""
        return count_remote_edges(self.edges, self.num_own, self.wanted)

    @property
    def dealt(self) -> SplitEdges:
        """The edges, dealt out."""
        return split_in_edges(self.edges, self.num_own, self.wanted, self.crossing, self.summed)


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    """Any small one; a worker whose sources have no edges sends no sums: that is never worth it."""
    num_own = draw(st.integers(0, 4))
    wanted = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=4)))
    num_src, num_dst = num_own + sum(wanted), draw(st.integers(0, 5))
    pair = st.tuples(st.integers(0, max(0, num_src - 1)), st.integers(0, max(0, num_dst - 1)))
    pairs = draw(st.lists(pair, max_size=25)) if num_src and num_dst else []
    edges = Drawn(num_src, num_dst, pairs).edges(draw(st.sampled_from((torch.int32, torch.int64))))
    cut = Cut(edges, num_own, wanted, (False,) * len(wanted))
    return cut._replace(summed=tuple(draw(st.booleans()) and bool(cut.of_peer(p)) for p in range(len(wanted))))


@given(cuts())
@settings(deadline=None, max_examples=150)
def test_how_much_crosses(cut: Cut) -> None:
    found, rows = cut.crossing, [cut.of_peer(peer) for peer in range(len(cut.wanted))]
    assert found.edges.dtype == found.destinations.dtype == torch.int64
    assert found.edges.tolist() == [sum(map(len, each)) for each in rows]
    assert found.destinations.tolist() == [*map(len, rows)]


@given(cuts())
@settings(deadline=None, max_examples=150)
def test_edges_from_own_sources(cut: Cut) -> None:
    sums, mine = cut.dealt, [[edge for edge in row if cut.owner(edge[1]) == -1] for row in cut.rows]
    assert sums.local_edge_ids.tolist() == [e for row in mine for e, _ in row]
    assert sums.local.indices.tolist() == [source for row in mine for _, source in row]
    assert sums.local.indptr.diff().tolist() == [*map(len, mine)]
    assert sums.local.num_src == cut.num_own
    assert sums.local.num_dst == cut.edges.num_dst


@given(cuts())
@settings(deadline=None, max_examples=150)
def test_rows_that_come_and_what_is_told_for_them(cut: Cut) -> None:
    """Of workers that send sources each edge takes one; of those that send sums each destination takes one of each."""
    sums, told, told_edge = cut.dealt, list[int](), list[int]()
    sizes = [len(cut.of_peer(p)) if cut.summed[p] else count for p, count in enumerate(cut.wanted)]
    assert sums.remote_row_counts == tuple(sizes)
    assert sums.remote.num_src == sum(sizes)
    for peer in (p for p in range(len(cut.wanted)) if cut.summed[p]):
        rows = cut.of_peer(peer)
        told += [*map(len, rows), *(source - cut.first(peer) for row in rows for _, source in row)]
        told_edge += [e for row in rows for e, _ in row]
    assert sums.sum_requests.dtype == torch.int32
    assert sums.sum_requests.tolist() == told
    assert sums.sum_request_edge_ids.tolist() == told_edge
    taken, ends = [0] * len(sizes), sums.remote.indptr.tolist()
    for v, row in enumerate(cut.rows):
        expected = list[tuple[int, int]]()
        for peer in range(len(sizes)):
            of_peer = [(e, source) for e, source in row if cut.owner(source) == peer]
            if of_peer and cut.summed[peer]:
                expected.append((-1, sum(sizes[:peer]) + taken[peer]))
                taken[peer] += 1
            elif of_peer:
                expected += [(e, sum(sizes[:peer]) + source - cut.first(peer)) for e, source in of_peer]
        at = slice(ends[v], ends[v + 1])
        found = zip(sums.remote_edge_ids[at].tolist(), sums.remote.indices[at].tolist(), strict=True)
        assert sorted(found) == sorted(expected)


class Asked(NamedTuple):
    """What workers want: the rows in general, or some sums over them; with or without weights of their edges."""

    rows: list[list[int]]
    sums: list[list[list[int]]]
    weighed: list[bool]
    num_own: int

    @property
    def counts(self) -> Tensor:
        """Sums, edges of these and weights of these that each worker has told."""
        edges = [sum(map(len, each)) for each in self.sums]
        weights = [count if has else 0 for count, has in zip(edges, self.weighed, strict=True)]
        return torch.tensor([[*map(len, self.sums)], edges, weights])

    @property
    def told(self) -> Tensor:
        """What they have told."""
        numbers = [[*map(len, each), *(source for row in each for source in row)] for each in self.sums]
        return torch.tensor([*chain.from_iterable(numbers)], dtype=torch.int32)


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    num_own, workers = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    rows = [draw(st.lists(st.integers(0, num_own - 1), unique=True)) for _ in range(workers)]
    sums: list[list[list[int]]] = []
    for mine in rows:
        of_one = st.lists(st.integers(0, max(0, len(mine) - 1)), min_size=1, max_size=4)
        sums.append(draw(st.lists(of_one, max_size=4)) if mine else [])
    return Asked(rows, sums, draw(st.lists(st.booleans(), min_size=workers, max_size=workers)), num_own)


@given(asked())
@settings(deadline=None, max_examples=150)
def test_what_a_worker_sends(want: Asked) -> None:
    rows = torch.tensor([*chain.from_iterable(want.rows)], dtype=torch.int64)
    edges, has_weight = pack_partial_sums(rows, tuple(map(len, want.rows)), want.counts, want.told, want.num_own)
    sources, weighed = list[list[int]](), list[bool]()
    for mine, sums, has in zip(want.rows, want.sums, want.weighed, strict=True):
        sources += [[mine[place] for place in row] for row in sums] if sums else [[row] for row in mine]
        weighed += [has and bool(sums)] * (sum(map(len, sums)) if sums else len(mine))
    assert edges.num_src == want.num_own
    assert edges.indptr.tolist() == torch.tensor([0, *map(len, sources)]).cumsum(0).tolist()
    assert edges.indices.tolist() == [*chain.from_iterable(sources)]
    assert has_weight.dtype == torch.bool
    assert has_weight.tolist() == weighed


@pytest.mark.parametrize("is_summed", [False, True])
def test_both_sides_together_give_the_sum(is_summed: bool) -> None:
    """Each edge counts once, with its weight: at the worker of its source, or where the row is used."""
    pairs = [(src, dst) for dst in range(6) for src in range(9) if (src * dst + src) % 3]
    cut = Cut(Drawn(9, 6, pairs).edges(), 4, (0, 5), (False, is_summed))
    rows, weight, sums = normal(9, 1, 2), normal(len(pairs), 1, seed=1), cut.dealt
    counts = (
        torch.tensor([[len(cut.of_peer(1))], [len(sums.sum_request_edge_ids)], [len(sums.sum_request_edge_ids)]])
        * is_summed
    )
    sent, has_weight = pack_partial_sums(torch.arange(5), (5,), counts, sums.sum_requests, 5)
    assert has_weight.tolist() == [is_summed] * sent.num_edges
    theirs = naive_sum(sent, rows[4:], weight[sums.sum_request_edge_ids] if is_summed else None)
    one = torch.where(sums.remote_edge_ids[:, None] < 0, 1.0, weight[sums.remote_edge_ids])
    found = naive_sum(sums.local, rows[:4], weight[sums.local_edge_ids]) + naive_sum(sums.remote, theirs, one)
    torch.testing.assert_close(found, naive_sum(cut.edges, rows, weight))
