"""Ascending rows of a file cut into groups and runs, and sums into rows. One thread each: groups are read side by side.

A run is rows that are read at once, with the gaps between them. A group is runs that share one piece of memory.
Letters: ``V`` rows of the table, ``M`` of the values, ``N`` rows named, ``R`` runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import array, sequential, tensor

Array = NDArray[Any]


def end_of_group(rows_N: Array, start: int, gap_rows: int, group_rows: int, group_runs: int) -> int:
    """Where the group of ``rows[start]`` ends: the longest whose runs are few enough and hold few enough rows.

    Args:
        rows_N: ``[N]`` integer, ascending and distinct.
        start: Place of the group's first row.
        gap_rows: Most rows between two neighbours of one run.
        group_rows: Most rows of a group, those in gaps included; at least 1.
        group_runs: Most runs of a group; at least 1.

    Raises:
        ValueError: The rows are not ascending and distinct.
    """
    end = _end_of_group(rows_N, start, gap_rows, group_rows, group_runs)
    if end < 0:
        raise ValueError("rows must be ascending and distinct")
    return end


def cut_runs(rows_n: Array, gap_rows: int) -> tuple[Array, Tensor]:
    """The runs of a group, and where its rows lie in memory that holds the runs one after another.

    Args:
        rows_n: ``[n]`` integer, ascending and distinct; at least one.
        gap_rows: Most rows between two neighbours of one run.

    Returns:
        ``[R, 3]`` int64: first row, row behind the last, and where the run begins in memory, counted in rows;
        and ``[n]`` int64, the place of each row in memory.
    """
    runs = np.empty((1 + int(np.count_nonzero(np.diff(rows_n) > gap_rows + 1)), 3), dtype=np.int64)
    at = np.empty(len(rows_n), dtype=np.int64)
    _cut_runs(rows_n, gap_rows, runs, at)
    return runs, tensor(at)


def add_rows(table_VW: Tensor, rows_N: Tensor, values_MW: Tensor, at_N: Tensor, fresh_N: Tensor) -> None:
    """``table[rows[i]] = values[at[i]] + (0 if fresh[i] else table[rows[i]])``. Touches no other row.

    Args:
        table_VW: ``[V, W]`` float32 or float64, changed.
        rows_N: ``[N]`` integer, distinct.
        values_MW: ``[M, W]`` float32 or float64.
        at_N: ``[N]`` integer.
        fresh_N: ``[N]`` bool.
    """
    _add_rows(table_VW.numpy(), array(rows_N), values_MW.detach().numpy(), array(at_N), array(fresh_N))


@sequential
def _end_of_group(rows: Array, start: int, gap_rows: int, group_rows: int, group_runs: int) -> int:
    used, runs = 1, 1
    for i in range(start + 1, len(rows)):
        step = rows[i] - rows[i - 1]
        if step <= 0:
            return -1
        if step > gap_rows + 1:
            used, runs = used + 1, runs + 1
        else:
            used += step
        if used > group_rows or runs > group_runs:
            return i
    return len(rows)


@sequential
def _cut_runs(rows: Array, gap_rows: int, runs: Array, at: Array) -> None:
    run, used = -1, 0
    for i in range(len(rows)):
        row = rows[i]
        if i == 0 or row - rows[i - 1] > gap_rows + 1:
            if run >= 0:
                used += runs[run, 1] - runs[run, 0]
            run += 1
            runs[run, 0], runs[run, 2] = row, used
        runs[run, 1] = row + 1
        at[i] = used + row - runs[run, 0]


@sequential
def _add_rows(table: Array, rows: Array, values: Array, at: Array, fresh: Array) -> None:
    for i in range(len(rows)):
        row, place = rows[i], at[i]
        if fresh[i]:
            for column in range(table.shape[1]):
                table[row, column] = values[place, column]
        else:
            for column in range(table.shape[1]):
                table[row, column] += values[place, column]
