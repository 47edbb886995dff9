"""The kernels under the weighted sum, one by one, against a row per edge; and asking for memory ahead."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.aggregation import spmm as spmm_module
from outgrow.ops.aggregation.spmm import sddmm_dot, spmm, spmm_backward_fused, spmm_sum_heads
from outgrow.ops.kernels.numerics import prefetch_distance, prefetch_line
from outgrow.ops.kernels.work_split import balanced_work, split_rows
from outgrow.ops.memory_pool import LARGE_ROWS, pooled_empty_rows, with_padding
from support import Drawn, destinations_of, normal

RESULTS, GIVEN, COLUMNS = 40, 30, 19
PAIRS = [(1, 1), (4, 4), (4, 1)]
"""Weights of an edge and channels of a row."""
HALVES = [torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def heavy_rows() -> Drawn:
    """Rows without edges, small rows, and one that is cut."""
    random = np.random.default_rng(0)
    src, dst = random.integers(0, GIVEN, 2300), random.integers(0, RESULTS - 3, 2300)
    dst[:2000] = 11
    return Drawn(GIVEN, RESULTS, list(zip(src.tolist(), dst.tolist(), strict=True)))


EDGES = heavy_rows().edges()
INDPTR, INDICES, OWNER, SOURCE = EDGES.indptr, EDGES.indices, destinations_of(EDGES), EDGES.indices.long()
PLACE = torch.randperm(EDGES.num_edges, generator=torch.Generator().manual_seed(0)).to(torch.int32)
"""Position of the weight of each edge."""


@pytest.fixture(params=[False, True], ids=["any-width", "fixed-width"])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel for all widths, and the one that is compiled for the width."""
    monkeypatch.setattr(spmm_module, "_LARGE", 0 if request.param else 1 << 60)


def total(message_EKF: Tensor, rows: int = RESULTS) -> Tensor:
    return message_EKF.new_zeros(rows, *message_EKF.shape[1:]).index_add(0, OWNER, message_EKF)


def unset(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.full(shape, torch.nan, dtype=dtype)


def assert_close(found: Tensor, expected: Tensor) -> None:
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=TOLERANCE[found.dtype] * scale)


def test_one_row_is_cut() -> None:
    """Otherwise the tests below would not show that pieces are added up."""
    assert split_rows(balanced_work(INDPTR.numpy()), INDPTR.numpy()).tolist() == [11]


@pytest.mark.usefixtures("width")
@pytest.mark.parametrize(("weights", "channels"), PAIRS)
@pytest.mark.parametrize("edge", [PLACE, None], ids=["permuted", "in-order"])
def test_gather(weights: int, channels: int, edge: Tensor | None) -> None:
    weight, rows = normal(EDGES.num_edges, weights), normal(GIVEN, channels, COLUMNS, seed=1)
    out = unset(RESULTS, weights, COLUMNS)
    spmm(INDPTR, INDICES, edge, weight, rows, out)
    factor = weight if edge is None else weight[edge.long()]
    assert_close(out, total(factor[:, :, None] * rows[SOURCE]))


@pytest.mark.usefixtures("width")
@pytest.mark.parametrize("edge", [PLACE, None], ids=["permuted", "in-order"])
def test_gather_without_weights(edge: Tensor | None) -> None:
    rows, out = normal(GIVEN, 1, COLUMNS), unset(RESULTS, 1, COLUMNS)
    spmm(INDPTR, INDICES, edge, None, rows, out)
    assert_close(out, total(rows[SOURCE]))


@pytest.mark.parametrize("columns", [7, 64])
@pytest.mark.parametrize(("weights", "channels"), PAIRS)
@pytest.mark.parametrize("edge", [PLACE, None], ids=["permuted", "in-order"])
def test_kernels_for_a_width_write_the_bits_of_that_for_all(
    weights: int, channels: int, edge: Tensor | None, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One takes the place of the other in the middle of a run."""
    weight = normal(EDGES.num_edges, weights, dtype=torch.float32)
    rows = normal(GIVEN, channels, columns, seed=1, dtype=torch.float32)
    found = []
    for least in (1 << 60, 0):
        monkeypatch.setattr(spmm_module, "_LARGE", least)
        found.append(unset(RESULTS, weights, columns, dtype=torch.float32))
        spmm(INDPTR, INDICES, edge, weight, rows, found[-1])
    assert torch.equal(*found)


@pytest.mark.usefixtures("width")
@pytest.mark.parametrize("weights", [1, 4])
def test_reduce(weights: int) -> None:
    weight, rows = normal(EDGES.num_edges, weights), normal(GIVEN, weights, COLUMNS, seed=1)
    out = unset(RESULTS, 1, COLUMNS)
    spmm_sum_heads(INDPTR, INDICES, PLACE, weight, rows, out)
    assert_close(out, total((weight[PLACE.long(), :, None] * rows[SOURCE]).sum(1, keepdim=True)))


@pytest.mark.usefixtures("width")
@pytest.mark.parametrize(("weights", "channels"), PAIRS)
def test_dot(weights: int, channels: int) -> None:
    rows, other = normal(GIVEN, channels, COLUMNS), normal(RESULTS, weights, COLUMNS, seed=1)
    out = unset(EDGES.num_edges, weights)
    sddmm_dot(INDPTR, INDICES, rows, other, out)
    assert_close(out, (other[OWNER] * rows[SOURCE]).sum(2))


@pytest.mark.usefixtures("width")
@pytest.mark.parametrize(("weights", "channels"), PAIRS)
def test_spread_does_what_two_others_do(weights: int, channels: int) -> None:
    weight, rows = normal(EDGES.num_edges, weights), normal(GIVEN, weights, COLUMNS, seed=1)
    own = normal(RESULTS, channels, COLUMNS, seed=2)
    out, d_weight = unset(RESULTS, channels, COLUMNS), unset(EDGES.num_edges, weights)
    spmm_backward_fused(INDPTR, INDICES, PLACE, weight, rows, own, out, d_weight)

    sums = unset(RESULTS, channels, COLUMNS)
    if channels < weights:
        spmm_sum_heads(INDPTR, INDICES, PLACE, weight, rows, sums)
    else:
        spmm(INDPTR, INDICES, PLACE, weight, rows, sums)
    assert_close(out, sums)
    dots = torch.empty_like(d_weight)
    dots[PLACE.long()] = (own[OWNER] * rows[SOURCE]).sum(2)
    assert_close(d_weight, dots)


@pytest.mark.usefixtures("width")
@pytest.mark.parametrize("half", HALVES)
def test_rows_in_half_precision_are_their_floats(half: torch.dtype) -> None:
    weights, channels = 4, 1
    rows, weight = normal(GIVEN, channels, COLUMNS, dtype=half), normal(EDGES.num_edges, weights, dtype=torch.float32)
    other = normal(RESULTS, weights, COLUMNS, seed=1, dtype=torch.float32)
    sums, dots = [], []
    for given in (rows, rows.float()):
        sums.append(unset(RESULTS, weights, COLUMNS, dtype=torch.float32))
        spmm(INDPTR, INDICES, None, weight, given, sums[-1])
        dots.append(unset(EDGES.num_edges, weights, dtype=torch.float32))
        sddmm_dot(INDPTR, INDICES, given, other, dots[-1])
    assert torch.equal(*sums)
    # The products of a dot are added in the order that suits the processor, which may differ where widening a number
    # takes several instructions; each order rounds `COLUMNS` times at most.
    size = (other.double().abs()[OWNER] * rows.double().abs()[SOURCE]).sum(2)
    assert ((dots[0] - dots[1]).abs() <= 2 * COLUMNS * torch.finfo(torch.float32).eps * size).all()
    assert_close(sums[0], total(weight[:, :, None].double() * rows[SOURCE].double()))


@pytest.mark.parametrize("half", HALVES)
def test_rows_in_half_precision_that_are_not_contiguous(half: torch.dtype) -> None:
    rows, out = normal(GIVEN, 7, COLUMNS, dtype=half)[:, 2:3], unset(RESULTS, 1, COLUMNS, dtype=torch.float32)
    spmm(INDPTR, INDICES, None, None, rows, out)
    assert_close(out, total(rows[SOURCE].float()))


@pytest.mark.usefixtures("width")
@pytest.mark.parametrize(("results", "given"), [(LARGE_ROWS, LARGE_ROWS), (LARGE_ROWS, GIVEN), (RESULTS, LARGE_ROWS)])
def test_rows_with_padding(results: int, given: int) -> None:
    """What is behind rows of 31 columns, up to 32, means nothing."""
    indptr = torch.cat([INDPTR, INDPTR.new_full((results - RESULTS,), EDGES.num_edges)])
    rows, guarded = (pooled_empty_rows(count, (1, 31), unset(0)) for count in (given, results + 1))
    for padded in (rows, guarded):
        with_padding(padded.flatten(1)).fill_(torch.nan)
    out = guarded[:-1]
    rows.copy_(normal(given, 1, 31))
    assert any(padded.stride(0) == 32 for padded in (rows, out))
    weight = normal(EDGES.num_edges, 1, seed=1)
    spmm(indptr, INDICES, PLACE, weight, rows, out)
    assert_close(out, total(weight[PLACE.long(), :, None] * rows[SOURCE], results))
    assert bool(guarded[-1].isnan().all())


@pytest.mark.usefixtures("width")
def test_a_part_of_the_rows() -> None:
    """The edges of the first row need not be the first edges."""
    weight, rows = normal(EDGES.num_edges, 1), normal(GIVEN, 1, COLUMNS, seed=1)
    whole, part = unset(RESULTS, 1, COLUMNS), unset(RESULTS - 9, 1, COLUMNS)
    spmm(INDPTR, INDICES, PLACE, weight, rows, whole)
    spmm(INDPTR[9:], INDICES, PLACE, weight, rows, part)
    assert_close(part, whole[9:])


@pytest.mark.parametrize("rows", [0, 3])
def test_no_edges(rows: int) -> None:
    indptr, nothing = torch.zeros(rows + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int32)
    weight, given, d_weight = normal(0, 4), normal(2, 4, COLUMNS), unset(0, 4)
    narrow, wide = unset(rows, 1, COLUMNS), unset(rows, 4, COLUMNS)
    spmm(indptr, nothing, nothing, weight, given, wide)
    spmm_sum_heads(indptr, nothing, nothing, weight, given, narrow)
    assert not wide.any()
    assert not narrow.any()
    out = unset(rows, 4, COLUMNS)
    spmm_backward_fused(indptr, nothing, nothing, weight, given, wide, out, d_weight)
    assert not out.any()
    sddmm_dot(indptr, nothing, given, wide, d_weight)


@pytest.mark.parametrize("size", [1, 31, 32])
def test_kernels_of_a_fixed_width_are_for_large_work(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, make = [], spmm_module._make_spmm_kernel

    def noted(fixed: tuple[int, int, int] | None) -> Any:
        asked.append(fixed)
        return make(None)

    monkeypatch.setattr(spmm_module, "_make_spmm_kernel", noted)
    monkeypatch.setattr(spmm_module, "_LARGE", 64 * EDGES.num_edges)
    weight = normal(EDGES.num_edges, 2)
    spmm(INDPTR, INDICES, None, weight, normal(GIVEN, 1, size), unset(RESULTS, 2, size))
    assert asked == [(2, 1, 32) if size == 32 else None]


@numba.njit  # not kept on disk: what is kept does not notice changes of the functions that it calls
def prefetched_sum(rows: NDArray[Any], indices: NDArray[Any], ahead: int) -> float:
    total = 0.0
    for i in range(len(indices)):
        prefetch_line(rows, indices[min(i + ahead, len(indices) - 1)], 0)
        prefetch_line(rows, indices[i], rows.shape[1] - 1)
        total += rows[indices[i], 0]
    return total


@pytest.mark.parametrize("dtype", [np.float64, np.uint16])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_asking_for_memory_changes_nothing(dtype: type[Any], index: type[Any]) -> None:
    random = np.random.default_rng(0)
    rows, indices = random.integers(0, 100, (50, 30)).astype(dtype), random.integers(0, 50, 200).astype(index)
    before = rows.copy()
    assert prefetched_sum(rows, indices, 16) == rows[indices, 0].sum()
    assert np.array_equal(rows, before)


def test_wide_rows_are_asked_for_fewer_edges_ahead() -> None:
    ahead = [prefetch_distance(size) for size in (0, 4, 64, 256, 257, 512, 1024, 4096, 1 << 20)]
    assert ahead == [16, 16, 16, 16, 15, 8, 4, 2, 2]


@pytest.mark.parametrize(("weights", "channels"), PAIRS)
@pytest.mark.parametrize("columns", [COLUMNS, 32])
def test_sums_that_go_on_from_what_is_there(width: None, columns: int, weights: int, channels: int) -> None:
    """Also in rows of whole cache lines; rows without edges are left as they are, to the bit."""
    rows, weight = normal(GIVEN, channels, columns), normal(EDGES.num_edges, weights, seed=1)
    there = normal(RESULTS, weights, columns, seed=2)
    out = pooled_empty_rows(RESULTS, (weights, columns), there).copy_(there)
    spmm(INDPTR, INDICES, PLACE, weight, rows, out, add=True)
    new = total(weight[PLACE.long()][:, :, None] * rows[SOURCE])
    torch.testing.assert_close(out, there + new, rtol=1e-12, atol=1e-12)
    bare = INDPTR.diff() == 0
    assert bare.any()
    assert torch.equal(out[bare], there[bare])
