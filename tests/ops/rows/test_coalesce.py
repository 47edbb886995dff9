"""Runs and groups of ascending rows: against the definition, and on cases by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.ops.rows.coalesce import coalesce_end, scatter_add_rows, split_groups
from support import normal

ASCENDING = st.lists(st.integers(0, 60), unique=True).map(sorted)


def runs_of(rows: list[int], gap_rows: int, run_rows: int) -> list[list[int]]:
    """The rows of each run, without those in gaps."""
    runs: list[list[int]] = []
    for row in rows:
        if runs and row - runs[-1][-1] - 1 <= gap_rows and row - runs[-1][0] < run_rows:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


def found_runs(rows: np.ndarray, gap_rows: int, run_rows: int) -> list[list[int]]:
    """The rows of each run, as they are found one after another."""
    found, end = [], 0
    while end < len(rows):
        start, end = end, coalesce_end(rows, end, gap_rows, run_rows)
        found.append(rows[start:end].tolist())
    return found


@settings(deadline=None, max_examples=100)
@given(rows=ASCENDING, gap_rows=st.integers(0, 9), run_rows=st.integers(1, 30), wide=st.booleans())
def test_runs_are_the_longest_that_are_allowed(rows: list[int], gap_rows: int, run_rows: int, wide: bool) -> None:
    given_rows = np.array(rows, dtype=np.int64 if wide else np.int32)
    assert found_runs(given_rows, gap_rows, run_rows) == runs_of(rows, gap_rows, run_rows)


@settings(deadline=None, max_examples=100)
@given(rows=ASCENDING, gap_rows=st.integers(0, 9), run_rows=st.integers(1, 30), num_groups=st.integers(1, 9))
def test_groups_are_whole_runs(rows: list[int], gap_rows: int, run_rows: int, num_groups: int) -> None:
    given_rows = np.array(rows, dtype=np.int32)
    starts = split_groups(given_rows, gap_rows, run_rows, num_groups).tolist()
    assert starts[0] == 0
    assert starts[-1] == len(rows)
    assert all(first < last for first, last in pairwise(starts))
    assert len(starts) - 1 <= num_groups
    of_groups = [found_runs(given_rows[a:b], gap_rows, run_rows) for a, b in pairwise(starts)]
    assert [run for group in of_groups for run in group] == runs_of(rows, gap_rows, run_rows)


def test_groups_do_the_same_work() -> None:
    rows = np.concatenate([np.arange(100_000), np.arange(100_000, 800_000, 100)])
    starts = split_groups(rows, 31, 2048, 16)
    work = [len(run) + 31 for run in runs_of(rows.tolist(), 31, 2048)]
    of_groups = [sum(len(run) + 31 for run in runs_of(rows[a:b].tolist(), 31, 2048)) for a, b in pairwise(starts)]
    assert len(of_groups) in (15, 16)
    assert max(of_groups) <= sum(work) / 16 + max(work)


@pytest.mark.parametrize(("num_runs", "num_groups"), [(7, 1), (8, 1), (9, 2), (40, 5), (1000, 16)])
def test_few_short_runs_are_not_cut_up(num_runs: int, num_groups: int) -> None:
    assert len(split_groups(np.arange(num_runs) * 100, 31, 2048, 16)) == num_groups + 1


@pytest.mark.parametrize("rows", [[3, 3], [1, 5, 4]])
def test_rows_must_ascend(rows: list[int]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        split_groups(np.array(rows, dtype=np.int64), 1, 10, 10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_touch_the_named_rows_only(dtype: torch.dtype) -> None:
    table, wide = normal(9, 4, dtype=dtype), normal(6, 9, seed=1)
    values, rows, at = wide[:, 2:6].float(), torch.tensor([0, 4, 8], dtype=torch.int32), torch.tensor([5, 0, 5])
    expected = table.clone()
    expected[0] += values[5]
    expected[4] += values[0]
    expected[8] += values[5]
    scatter_add_rows(table, rows, values, at)
    assert torch.equal(table, expected)
