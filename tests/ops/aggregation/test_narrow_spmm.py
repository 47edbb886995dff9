"""Sums in registers are those of the kernel for all widths, bit by bit; products with own rows, to rounding."""

import numpy as np
import pytest
import torch

from outgrow.ops.aggregation import spmm as spmm_module
from outgrow.ops.aggregation.narrow_spmm import has_narrow_kernel
from outgrow.ops.aggregation.spmm import spmm, spmm_backward_fused
from outgrow.ops.kernels.work_split import balanced_work, split_rows
from support import Drawn, destinations_of, normal

ROWS, EDGES = 30, 2300
random = np.random.default_rng(0)
SOURCES = random.integers(0, ROWS, EDGES)
DESTINATIONS = np.r_[np.full(2000, 11), random.integers(0, 9, 300)]
DRAWN = Drawn(ROWS, ROWS, list(zip(SOURCES.tolist(), DESTINATIONS.tolist(), strict=True))).edges()
ORDER = torch.randperm(EDGES, generator=torch.Generator().manual_seed(0)).to(torch.int32)
"""Position of the weight of each edge."""


CASES = [(1, 1, torch.float64), (1, 13, torch.float32), (4, 16, torch.float32), (3, 7, torch.float64)]
"""Heads, columns, type; no two take the same kernel, and kernels take seconds to compile."""


def summed(heads: int, columns: int, dtype: torch.dtype, edge: torch.Tensor | None, *, weighted: bool) -> torch.Tensor:
    rows, weight = normal(ROWS, heads, columns).to(dtype), normal(EDGES, heads, seed=1).to(dtype) if weighted else None
    out = torch.full((ROWS, heads, columns), torch.nan, dtype=dtype)
    spmm(DRAWN.indptr, DRAWN.indices, edge, weight, rows, out)
    return out


@pytest.mark.parametrize(("heads", "columns", "dtype"), CASES)
@pytest.mark.parametrize(("edge", "weighted"), [(None, True), (ORDER, True), (None, False)])
def test_the_same_bits(
    heads: int,
    columns: int,
    dtype: torch.dtype,
    edge: torch.Tensor | None,
    weighted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spmm_module, "_LARGE", 1 << 60)
    expected = summed(heads, columns, dtype, edge, weighted=weighted)
    monkeypatch.setattr(spmm_module, "_LARGE", 0)
    found = summed(heads, columns, dtype, edge, weighted=weighted)
    assert torch.equal(found, expected)
    assert found.isfinite().all()


@pytest.mark.parametrize(("heads", "columns", "dtype"), CASES)
def test_both_gradients(heads: int, columns: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients, own = (normal(ROWS, heads, columns, seed=seed).to(dtype) for seed in (0, 2))
    weight = normal(EDGES, heads, seed=1).to(dtype)
    found = []
    for least in (1 << 60, 0):
        monkeypatch.setattr(spmm_module, "_LARGE", least)
        out, d_weight = torch.full_like(own, torch.nan), torch.full_like(weight, torch.nan)
        spmm_backward_fused(DRAWN.indptr, DRAWN.indices, ORDER, weight, gradients, own, out, d_weight)
        found.append((out, d_weight))
    assert torch.equal(found[0][0], found[1][0])
    size = torch.empty_like(weight)
    size[ORDER.long()] = (gradients.abs()[DRAWN.indices.long()] * own.abs()[destinations_of(DRAWN)]).sum(2)
    # Each order of additions rounds `columns` times at most.
    assert ((found[0][1] - found[1][1]).abs() <= 2 * columns * torch.finfo(dtype).eps * size).all()


def test_a_row_is_cut_and_some_have_no_edges() -> None:
    """Otherwise the test above would not show what becomes of them."""
    assert split_rows(balanced_work(DRAWN.indptr.numpy()), DRAWN.indptr.numpy()).tolist() == [11]
    assert (DRAWN.indptr.diff() == 0).any()


def test_what_fits_into_registers() -> None:
    single, double = np.empty((1, 1), np.float32), np.empty((1, 1), np.float64)
    assert has_narrow_kernel((1, 1, 256), single, single)
    assert has_narrow_kernel((4, 4, 64), single, single)
    assert not has_narrow_kernel((1, 1, 257), single, single)
    assert not has_narrow_kernel((1, 1, 129), double, double)
    assert not has_narrow_kernel((4, 1, 8), single, single)  # heads that share a row
    assert not has_narrow_kernel((1, 1, 1), np.empty((1, 1), np.float16), single)


@pytest.mark.parametrize("size", [1, 63, 64])
def test_they_are_for_large_work(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the graph, where the edges are those of a chunk."""
    asked, make = [], spmm_module.make_narrow_spmm

    def noted(heads: int, columns: int) -> object:
        asked.append((heads, columns))
        return make(heads, columns)

    monkeypatch.setattr(spmm_module, "make_narrow_spmm", noted)
    monkeypatch.setattr(spmm_module, "_LARGE", 64 * 2 * EDGES)
    out = torch.empty(ROWS, 1, size, dtype=torch.float64)
    for num_edges in (None, 2 * EDGES):
        spmm(DRAWN.indptr, DRAWN.indices, None, None, normal(ROWS, 1, size), out, num_edges=num_edges)
    assert asked == ([(1, 64)] if size == 64 else [])
