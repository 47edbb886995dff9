"""Rows taken from a table, converted on the way, and nodes dealt out to groups: against torch's own indexing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outgrow.ops.rows.gather import add_bincount, gather_rows, group_by_owner
from support import normal

TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("given_type", TYPES)
@pytest.mark.parametrize("wanted_type", TYPES)
@pytest.mark.parametrize("columns", [0, 1, 47, 128])
def test_rows_are_taken_and_converted(given_type: torch.dtype, wanted_type: torch.dtype, columns: int) -> None:
    rows = normal(50, columns).to(given_type)
    at, to = torch.arange(0, 50, 7).flip(0), torch.randperm(8)
    for where, place in ((at, to), (at, None), (None, torch.arange(60).flip(0)[:50]), (None, None)):
        out = torch.full((60, columns), -1.0, dtype=wanted_type)
        expected = out.clone()
        taken = rows[at] if where is not None else rows
        expected[torch.arange(len(taken)) if place is None else place] = taken.to(wanted_type)
        gather_rows(rows, where, out, place)
        assert torch.equal(out, expected)


@pytest.mark.parametrize("wanted_type", [torch.float32, torch.float64])
def test_rows_may_lie_anywhere(wanted_type: torch.dtype) -> None:
    wide = normal(20, 12, dtype=torch.float32)
    at = torch.tensor([19, 0, 3])
    for rows in (wide.t(), wide[:, 2:5], wide[::2, ::3]):
        some = at % len(rows)
        out = torch.empty(3, rows.shape[1], dtype=wanted_type)
        gather_rows(rows, some, out, None)
        assert torch.equal(out, rows[some].to(wanted_type))


def test_no_rows() -> None:
    none = torch.empty(0, dtype=torch.int64)
    out = normal(2, 3)
    gather_rows(normal(4, 3), none, out, none)
    gather_rows(normal(0, 3), None, out, None)
    assert torch.equal(out, normal(2, 3))


def test_threads_side_by_side() -> None:
    rows, wanted = normal(1000, 8), [torch.randperm(1000)[:600] for _ in range(20)]

    def taken(at: Tensor) -> Tensor:
        out = torch.empty(len(at), 8, dtype=torch.float64)
        gather_rows(rows, at, out, None)
        return out

    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(got, rows[at]) for got, at in zip(pool.map(taken, wanted), wanted, strict=True))


@settings(deadline=None)  # the first example compiles
@given(st.lists(st.integers(0, 4), max_size=30), st.data())
def test_nodes_are_dealt_out_in_order(holders: list[int], data: st.DataObject) -> None:
    nodes = data.draw(st.lists(st.integers(0, len(holders) - 1), max_size=40) if holders else st.just([]))
    holder = torch.tensor(holders, dtype=torch.int16)
    places, sizes = group_by_owner(torch.tensor(nodes, dtype=torch.int64), holder, 6)
    by_hand = [[i for i, node in enumerate(nodes) if holders[node] == group] for group in range(6)]
    assert places.tolist() == [i for group in by_hand for i in group]
    assert sizes == [len(group) for group in by_hand]


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_counts_are_added(index: torch.dtype) -> None:
    counts = torch.tensor([1, 0, 5])
    add_bincount(counts, torch.tensor([2, 0, 2], dtype=index))
    assert counts.tolist() == [2, 0, 7]
