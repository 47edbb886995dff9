"""Rows taken on a CUDA device, from there and from pinned memory, against the CPU kernels, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from outgrow.ops.rows.gather import gather_rows
from support import normal

ROWS, COUNT = 37, 19


def places(count: int, index: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))[:count].to(index)


@pytest.mark.parametrize("given", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("columns", [1, 7, 300])
def test_rows_to_their_places(
    twin: ModuleType, call: Callable[..., None], columns: int, index: torch.dtype, given: torch.dtype
) -> None:
    rows = normal(ROWS, columns).to(given)
    at, to = places(COUNT, index, 1), places(COUNT, index, 2)
    expected = torch.full((ROWS, columns), 7.0, dtype=torch.promote_types(given, torch.float32))
    mine = expected.clone()
    gather_rows(rows, at, expected, to)
    call(twin.gather_rows, rows, at, mine, to)
    assert torch.equal(mine, expected)


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("placed", [False, True])
def test_rows_in_order(twin: ModuleType, call: Callable[..., None], chosen: bool, placed: bool) -> None:
    rows = normal(ROWS, 5)
    at = places(COUNT, torch.int64, 1) if chosen else None
    count = COUNT if chosen else ROWS
    to = places(count, torch.int64, 2) if placed else None
    expected, mine = torch.zeros(ROWS, 5, dtype=torch.float64), torch.zeros(ROWS, 5, dtype=torch.float64)
    gather_rows(rows, at, expected, to)
    call(twin.gather_rows, rows, at, mine, to)
    assert torch.equal(mine, expected)


def test_no_rows(twin: ModuleType, call: Callable[..., None]) -> None:
    out, none = torch.ones(3, 2), torch.zeros(0, dtype=torch.int64)
    call(twin.gather_rows, torch.zeros(4, 2), none, out, none)
    assert out.eq(1).all()


@pytest.mark.gpu
def test_pinned_memory_is_read_where_it_lies(twin: ModuleType, device: str) -> None:
    rows = torch.arange(4000.0).view(-1, 4).pin_memory()
    at = torch.tensor([999, 0, 5])
    out = torch.zeros(3, 4, device=device)
    twin.gather_rows(rows, at.to(device), out, None)
    assert torch.equal(out.cpu(), rows[at])
