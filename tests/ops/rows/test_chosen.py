"""Rows chosen by a mark, and nodes noted at their places."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.ops.rows.gather import masked_select, scatter_nodes


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 3))
def test_those_with_one_of_the_bits(marks: list[int], bits: int) -> None:
    where = [i for i, mark in enumerate(marks) if mark & bits]
    numbers, halves = torch.arange(len(marks)), torch.arange(len(marks), dtype=torch.int32) * 2
    mark = torch.tensor(marks, dtype=torch.uint8)
    found = masked_select(mark, bits, numbers, halves, mark)
    assert [each.tolist() for each in found] == [where, [2 * i for i in where], [marks[i] for i in where]]
    assert [each.dtype for each in found] == [torch.int64, torch.int32, torch.uint8]


def test_nodes_and_their_degrees_are_noted() -> None:
    nodes, degrees = torch.full((6,), -1), torch.full((6,), -1.0, dtype=torch.float64)
    degree = torch.tensor([0.5, 1.5, 2.5, 3.5], dtype=torch.float64)
    scatter_nodes(torch.tensor([3, 0, 2]), torch.tensor([5, 1, 0], dtype=torch.int32), degree, nodes, degrees)
    assert nodes.tolist() == [2, 0, -1, -1, -1, 3]
    assert degrees.tolist() == [2.5, 0.5, -1, -1, -1, 3.5]
