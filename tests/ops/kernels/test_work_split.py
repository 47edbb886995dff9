"""Where kernels cut their work: every edge and every row once, in order, and the pieces of a cut row added up."""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from outgrow.ops.kernels import work_split
from outgrow.ops.kernels.work_split import (
    EDGE,
    END_EDGE,
    END_ROW,
    ROW,
    add_split_rows,
    as_kernel_array,
    balanced_work,
    continues_row,
    covers_row,
    first_owner,
    launch_balanced,
    row_span,
    specialised_width,
    split_rows,
    store_row,
)
from support import normal

Array = NDArray[Any]


def ends_of(degrees: list[int], origin: int = 0) -> NDArray[np.int64]:
    """``indptr`` of rows with these numbers of edges."""
    return origin + np.concatenate(([0], np.cumsum(np.array(degrees, dtype=np.int64))))


LAST_EDGE = [255, 257, 255]
"""A cut falls behind the last edge of the middle row, which is heavier than a part: nothing of it is left to go on."""

SIZES = st.one_of(st.integers(0, 3), st.integers(0, 400), st.integers(250, 260), st.integers(0, 40_000))
ROWS = st.one_of(
    st.lists(SIZES, max_size=30),
    st.tuples(st.integers(0, 3000), st.lists(SIZES, max_size=4), st.integers(0, 3000)).map(
        lambda given: [1] * given[0] + given[1] + [0] * given[2]
    ),
)


@given(degrees=ROWS, origin=st.sampled_from([0, 0, 7, 100_000]))
@settings(deadline=None, max_examples=300)
def test_parts_cover_every_edge_and_every_row_once(degrees: list[int], origin: int) -> None:
    indptr = ends_of(degrees, origin)
    parts = balanced_work(indptr)
    assert 1 <= len(parts) <= 64
    assert parts[0, ROW] == 0
    assert parts[0, EDGE] == origin
    assert parts[-1, END_ROW] == len(degrees)
    assert parts[-1, END_EDGE] == indptr[-1]
    assert np.array_equal(parts[1:, EDGE], parts[:-1, END_EDGE])

    begun, edges = [], []
    for part in range(len(parts)):
        for row in range(parts[part, ROW], parts[part, END_ROW]):
            if continues_row(parts, part, indptr, row):
                assert row == parts[part, ROW]
            else:
                begun.append(row)
            first, last = row_span(parts, part, indptr, row)
            assert indptr[row] <= first <= last <= indptr[row + 1]
            if first < last:
                edges.append((first, last))
    assert begun == list(range(len(degrees)))
    assert [first for first, _ in edges] == [origin, *(last for _, last in edges[:-1])][: len(edges)]
    assert sum(last - first for first, last in edges) == sum(degrees)


@given(degrees=ROWS)
@settings(deadline=None, max_examples=300)
def test_parts_are_even(degrees: list[int]) -> None:
    indptr = ends_of(degrees)
    parts = balanced_work(indptr)
    size = (sum(degrees) + len(degrees)) / len(parts)
    for row, end_row, edge, end_edge in parts.tolist():
        assert end_edge - edge + end_row - row <= 2 * size + 2
    for row in split_rows(parts, indptr):
        assert degrees[row] >= size - 1


def check_cut_rows(degrees: list[int]) -> None:
    """What is said of cut rows agrees: a row is whole in one part, or it is cut and whole in none."""
    indptr = ends_of(degrees)
    parts, firsts = balanced_work(indptr), first_owner(balanced_work(indptr), indptr)
    cut = split_rows(parts, indptr).tolist()
    assert cut == sorted(set(cut))
    start, whole = {}, []
    for part in range(len(parts)):
        for row in range(parts[part, ROW], parts[part, END_ROW]):
            if not continues_row(parts, part, indptr, row):
                start[row] = part
            if row == parts[part, ROW]:
                assert firsts[part] == start[row]
            if covers_row(parts, part, indptr, row):
                whole.append(row)
    assert sorted(whole + cut) == list(range(len(degrees)))


@given(degrees=ROWS)
@settings(deadline=None, max_examples=300)
def test_a_row_is_whole_or_cut(degrees: list[int]) -> None:
    check_cut_rows(degrees)


def test_a_row_of_which_all_edges_are_in_one_part_is_not_cut() -> None:
    check_cut_rows(LAST_EDGE)


@pytest.mark.parametrize(
    ("degrees", "count", "cut"),
    [
        ([], 1, []),
        ([0], 1, []),
        ([5], 1, []),
        ([0] * 1000, 3, []),
        ([100_000], 64, [0]),
        ([0, 0, 100_000, 0], 64, [2]),
        ([1] * 500 + [100_000] + [1] * 500, 64, [500]),
        ([255] * 100, 64, []),
    ],
)
def test_how_many_parts_there_are_and_which_rows_are_cut(degrees: list[int], count: int, cut: list[int]) -> None:
    indptr = ends_of(degrees)
    parts = balanced_work(indptr)
    assert len(parts) == count
    assert split_rows(parts, indptr).tolist() == cut


@cache
def add_rows_of(fixed: int | None) -> Any:
    """A kernel over parts: sums of rows, times a factor that is no tensor."""

    @numba.njit(parallel=True)  # not kept on disk: what is kept does not notice changes of the functions that it calls
    def add_rows(
        parts: Array, indptr: Array, indices: Array, rows: Array, factor: float, columns: int, out: Array, cut: Array
    ) -> None:
        width = columns if fixed is None else fixed
        for part in numba.prange(len(parts)):
            total = np.empty(width, out.dtype)
            for m in range(parts[part, ROW], parts[part, END_ROW]):
                total[:] = 0
                for i in range(*row_span(parts, part, indptr, m)):
                    for f in range(width):
                        total[f] += factor * rows[indices[i], f]
                store_row(parts, part, indptr, m, total, out, cut)
        add_split_rows(parts, indptr, out, cut)

    return add_rows


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    "degrees",
    [[20_000], [3, 0, 20_000, 5, 30_000, 0], [1] * 3000, LAST_EDGE, [0, 0]],
    ids=lambda given: str(len(given)),
)
def test_pieces_add_up(degrees: list[int], large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr(work_split, "_LARGE", 0)
    asked = []

    def make(fixed: int | None) -> Any:
        asked.append(fixed)
        return add_rows_of(fixed)

    rows = torch.randint(-8, 8, (50, 3), generator=torch.Generator().manual_seed(0)).double()
    indices = torch.randint(0, 50, (sum(degrees),), generator=torch.Generator().manual_seed(1))
    out = torch.full((len(degrees), 3), torch.nan, dtype=torch.float64)
    launch_balanced(make, torch.from_numpy(ends_of(degrees)), indices, rows, 0.5, out=out)
    sums = [part.sum(0) for part in (0.5 * rows[indices]).split(degrees)]
    assert torch.equal(out, torch.stack(sums))  # all numbers are halves, so no order of summation rounds
    assert asked == [3 if large else None]


def test_the_width_is_fixed_where_the_work_is_large() -> None:
    assert specialised_width((1 << 18) - 1, 64) is None
    assert specialised_width(1 << 18, 64) == 64


def test_operands_of_kernels_over_parts() -> None:
    assert as_kernel_array(normal(5)).shape == (5,)
    assert as_kernel_array(normal(5, 2, 3)).shape == (5, 6)
    x = normal(5, 2, 3)
    as_kernel_array(x)[4, 5] = 7
    assert x[4, 1, 2] == 7
