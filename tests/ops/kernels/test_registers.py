"""Sums in registers are those of the kernel for all widths, bit by bit."""

import numpy as np
import pytest
import torch

from outgrow.ops.aggregation import spmm as spmm_module
from outgrow.ops.aggregation.spmm import spmm
from outgrow.ops.kernels.registers import MOST_BYTES, fits_in_registers
from outgrow.ops.kernels.work_split import balanced_work, split_rows
from support import Drawn, normal

ROWS, EDGES = 30, 2300
random = np.random.default_rng(0)
SOURCES = random.integers(0, ROWS, EDGES)
DESTINATIONS = np.r_[np.full(2000, 11), random.integers(0, 9, 300)]
DRAWN = Drawn(ROWS, ROWS, list(zip(SOURCES.tolist(), DESTINATIONS.tolist(), strict=True))).edges()
ORDER = torch.randperm(EDGES, generator=torch.Generator().manual_seed(0)).to(torch.int32)
"""Position of the weight of each edge."""


def summed(columns: int, dtype: torch.dtype, edge: torch.Tensor | None, *, weighted: bool) -> torch.Tensor:
    rows, weight = normal(ROWS, 1, columns).to(dtype), normal(EDGES, 1, seed=1).to(dtype) if weighted else None
    out = torch.full((ROWS, 1, columns), torch.nan, dtype=dtype)
    spmm(DRAWN.indptr, DRAWN.indices, edge, weight, rows, out)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [1, 13, 64])
@pytest.mark.parametrize(("edge", "weighted"), [(None, True), (ORDER, True), (None, False)])
def test_the_same_bits(
    columns: int, dtype: torch.dtype, edge: torch.Tensor | None, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spmm_module, "_LARGE", 1 << 60)
    expected = summed(columns, dtype, edge, weighted=weighted)
    monkeypatch.setattr(spmm_module, "_LARGE", 0)
    found = summed(columns, dtype, edge, weighted=weighted)
    assert torch.equal(found, expected)
    assert found.isfinite().all()


def test_a_row_is_cut_and_some_have_no_edges() -> None:
    """Otherwise the test above would not show what becomes of them."""
    assert split_rows(balanced_work(DRAWN.indptr.numpy()), DRAWN.indptr.numpy()).tolist() == [11]
    assert (DRAWN.indptr.diff() == 0).any()


def test_what_fits_into_registers() -> None:
    single, double = np.empty((1, 1), np.float32), np.empty((1, 1), np.float64)
    assert fits_in_registers(single, single, MOST_BYTES // 4)
    assert not fits_in_registers(single, single, MOST_BYTES // 4 + 1)
    assert not fits_in_registers(double, double, MOST_BYTES // 4)
    assert not fits_in_registers(np.empty((1, 1), np.float16), single, 1)


@pytest.mark.parametrize("size", [1, 63, 64])
def test_they_are_for_large_work(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the graph, where the edges are those of a chunk."""
    asked, make = [], spmm_module.make_narrow_spmm

    def noted(columns: int) -> object:
        asked.append(columns)
        return make(columns)

    monkeypatch.setattr(spmm_module, "make_narrow_spmm", noted)
    monkeypatch.setattr(spmm_module, "_LARGE", 64 * 2 * EDGES)
    out = torch.empty(ROWS, 1, size, dtype=torch.float64)
    for num_edges in (None, 2 * EDGES):
        spmm(DRAWN.indptr, DRAWN.indices, None, None, normal(ROWS, 1, size), out, num_edges=num_edges)
    assert asked == ([64] if size == 64 else [])
