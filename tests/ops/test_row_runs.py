"""Runs and groups of ascending rows: against the definition, and on cases by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.ops.row_runs import add_rows, cut_runs, end_of_group
from support import normal

ASCENDING = st.lists(st.integers(0, 60), min_size=1, unique=True).map(sorted)


def runs_of(rows: list[int], gap_rows: int) -> list[list[int]]:
    """The rows of each run, gaps included."""
    runs = [[rows[0]]]
    for row in rows[1:]:
        if row - runs[-1][-1] - 1 <= gap_rows:
            runs[-1] += range(runs[-1][-1] + 1, row + 1)
        else:
            runs.append([row])
    return runs


@settings(deadline=None, max_examples=100)
@given(rows=ASCENDING, gap_rows=st.integers(0, 9), wide=st.booleans())
def test_runs_hold_the_rows(rows: list[int], gap_rows: int, wide: bool) -> None:
    runs, at = cut_runs(np.array(rows, dtype=np.int64 if wide else np.int32), gap_rows)
    expected = runs_of(rows, gap_rows)
    assert [list(range(first, last)) for first, last, _ in runs.tolist()] == expected
    in_memory = [row for run in expected for row in run]
    assert [in_memory[place] for place in at.tolist()] == rows
    assert runs[:, 2].tolist() == [sum(map(len, expected[:i])) for i in range(len(expected))]


@settings(deadline=None, max_examples=100)
@given(rows=ASCENDING, gap_rows=st.integers(0, 9), group_rows=st.integers(1, 30), group_runs=st.integers(1, 5))
def test_groups_are_the_longest_that_fit(rows: list[int], gap_rows: int, group_rows: int, group_runs: int) -> None:
    def fits(some: list[int]) -> bool:
        runs = runs_of(some, gap_rows)
        return len(runs) <= group_runs and sum(map(len, runs)) <= group_rows

    start, given_rows = 0, np.array(rows, dtype=np.int32)
    while start < len(rows):
        end = end_of_group(given_rows, start, gap_rows, group_rows, group_runs)
        assert start < end <= len(rows)
        assert end == start + 1 or fits(rows[start:end])
        assert end == len(rows) or not fits(rows[start : end + 1])
        start = end


@pytest.mark.parametrize("rows", [[3, 3], [1, 5, 4]])
def test_rows_must_ascend(rows: list[int]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        end_of_group(np.array(rows, dtype=np.int64), 0, 1, 10, 10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_touch_the_named_rows_only(dtype: torch.dtype) -> None:
    table, wide = normal(9, 4, dtype=dtype), normal(6, 9, seed=1)
    values, rows, at = wide[:, 2:6].float(), torch.tensor([0, 4, 8], dtype=torch.int32), torch.tensor([5, 0, 5])
    table[4] = float("nan")
    expected = table.clone()
    expected[0] += values[5]
    expected[4] = values[0]
    expected[8] += values[5]
    add_rows(table, rows, values, at, torch.tensor([False, True, False]))
    assert torch.equal(table, expected)
