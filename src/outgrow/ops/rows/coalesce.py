"""Coalescing of ascending file rows into runs and groups, and sums into rows.

A run is a range of rows that is read at once, together with the gaps in it. A group is a number of whole
runs, the work of one thread; groups are processed in parallel. Letters: ``V`` rows of the table, ``M`` of the
values, ``N`` rows requested, ``G`` groups.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import as_numpy, parallel_kernel, prange, serial_kernel
from outgrow.ops.kernels.numerics import LINE_BYTES, prefetch_distance, prefetch_line
from outgrow.ops.kernels.work_split import PARTS

Array = NDArray[Any]

# Handing a group to a thread takes longer than reading a few short runs from memory.
_LEAST_RUNS = 8
_LEAST_NUMBERS = 1 << 14
"""Fewest numbers that a thread adds: fewer cost more to hand out."""


@serial_kernel
def coalesce_end(rows: Array, start: int, gap_rows: int, run_rows: int) -> int:
    """Return the end of the run of ``rows[start]``: the longest with small gaps and few rows.

    Args:
        rows: ``[N]`` integer, ascending and distinct.
        start: Position of the run's first row.
        gap_rows: Most rows between two neighbours.
        run_rows: Most rows, those in gaps included; at least 1.
    """
    end = start + 1
    while end < len(rows) and rows[end] - rows[end - 1] <= gap_rows + 1 and rows[end] - rows[start] < run_rows:
        end += 1
    return end


def split_groups(rows_N: Array, gap_rows: int, run_rows: int, num_groups: int) -> Array:
    """Cut rows into groups of about equal cost; a run costs as much as ``gap_rows`` more rows.

    Args:
        rows_N: ``[N]`` integer, ascending and distinct.
        gap_rows: Most rows between two neighbours of one run.
        run_rows: Most rows of a run, those in gaps included; at least 1.
        num_groups: Wanted number of groups; there are fewer if the runs are few.

    Returns:
        ``[G + 1]`` int64: where each group begins among the rows, and their number. The runs of a group are
        those of all rows.

    Raises:
        ValueError: The rows are not ascending and distinct.
    """
    starts = np.zeros(num_groups + 2, dtype=np.int64)
    found = _split_groups(rows_N, gap_rows, run_rows, num_groups, starts)
    if found < 0:
        raise ValueError("rows must be ascending and distinct")
    return starts[: found + 1]


def scatter_add_rows(table_VW: Tensor, rows_N: Tensor, values_MW: Tensor, at_N: Tensor) -> None:
    """Add ``values[at[i]]`` to ``table[rows[i]]``, on all threads. Touches no other row.

    Rows are distinct, so that each number gets one addend, whatever the number of threads.

    Args:
        table_VW: ``[V, W]`` float32 or float64, changed.
        rows_N: ``[N]`` integer, distinct.
        values_MW: ``[M, W]`` float32 or float64.
        at_N: ``[N]`` integer.
    """
    rows = as_numpy(rows_N)
    parts = max(1, min(PARTS, rows.size * table_VW.shape[1] // _LEAST_NUMBERS))
    _scatter_add_parts(table_VW.numpy(), rows, values_MW.detach().numpy(), as_numpy(at_N), parts)


@parallel_kernel
def _scatter_add_parts(table: Array, rows: Array, values: Array, at: Array, parts: int) -> None:
    columns = table.shape[1]
    ahead = prefetch_distance(columns * table.itemsize)
    line = LINE_BYTES // table.itemsize
    for part in prange(parts):
        end = (part + 1) * len(rows) // parts
        for i in range(part * len(rows) // parts, end):
            # Rows of the table are far apart: without a request ahead each waits for memory by itself.
            following = rows[min(i + ahead, end - 1)]
            for column in range(0, columns, line):
                prefetch_line(table, following, column)
            row, source = rows[i], at[i]
            for column in range(columns):
                table[row, column] += values[source, column]


@serial_kernel
def scatter_add_range(table: Array, first: int, rows: Array, start: int, end: int, values: Array, at: Array) -> None:
    """Apply `scatter_add_rows` to a range of the rows on one thread, in a table that begins at row ``first``."""
    for i in range(start, end):
        row, source = rows[i] - first, at[i]
        for column in range(table.shape[1]):
            table[row, column] += values[source, column]


@serial_kernel
def scatter_range(table: Array, first: int, rows: Array, start: int, end: int, values: Array, at: Array) -> None:
    """Set ``table[rows[i]] = values[at[i]]`` for a range of the rows, in a table that begins at row ``first``."""
    for i in range(start, end):
        row, source = rows[i] - first, at[i]
        for column in range(table.shape[1]):
            table[row, column] = values[source, column]


@serial_kernel
def _split_groups(rows: Array, gap_rows: int, run_rows: int, num_groups: int, starts: Array) -> int:
    for i in range(1, len(rows)):
        if rows[i] <= rows[i - 1]:
            return -1
    # A first pass sums the cost, a second one cuts: runs are never split, since a run is one read.
    work = 0
    end = 0
    while end < len(rows):
        start, end = end, coalesce_end(rows, end, gap_rows, run_rows)
        work += rows[end - 1] - rows[start] + 1 + gap_rows
    share = max(-(-work // num_groups), _LEAST_RUNS * (gap_rows + 1))
    group = 0
    work = 0
    end = 0
    while end < len(rows):
        start, end = end, coalesce_end(rows, end, gap_rows, run_rows)
        work += rows[end - 1] - rows[start] + 1 + gap_rows
        if work >= share or end == len(rows):
            group, work = group + 1, 0
            starts[group] = end
    return group
