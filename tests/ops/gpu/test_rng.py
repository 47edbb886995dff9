"""Keyed dropout on a CUDA device against the CPU kernel: the same bits."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from outgrow.ops.rng import dropout, dropout_sparse
from outgrow.ops.sparse import SparseRows
from support import normal

KEYS = [0, 1, 5 << 40, 2**63 - 1, 2**63, 2**64 - 1, 0x9E3779B97F4A7C15]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("p", [0.1, 0.7])
def test_drop(twin: ModuleType, call: Callable[..., None], key: int, p: float) -> None:
    x, nodes = normal(10, 33, dtype=torch.float32), torch.arange(10) * 10**11
    out = torch.full_like(x, torch.nan)
    call(twin.write_dropout, x, nodes, key, p, out)
    assert torch.equal(out, dropout(x, nodes, key, p))


@pytest.mark.parametrize("shape", [(3, 300), (0, 4), (4, 0), (1, 1)])
def test_shapes(twin: ModuleType, call: Callable[..., None], shape: tuple[int, int]) -> None:
    x, nodes = normal(*shape), torch.arange(shape[0])
    out = torch.full_like(x, torch.nan)
    call(twin.write_dropout, x, nodes, 7, 0.5, out)
    assert torch.equal(out, dropout(x, nodes, 7, 0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_drop_sparse(twin: ModuleType, call: Callable[..., None], dtype: torch.dtype, index: torch.dtype) -> None:
    indptr, indices = torch.tensor([0, 0, 3, 12, 12]), torch.tensor([0, 5, 9, *range(1, 10)], dtype=index)
    values, nodes = normal(12, dtype=dtype), torch.tensor([4, 3, 10**12, 0])
    out = torch.full_like(values, torch.nan)
    call(twin.write_dropout_sparse, indptr, indices, values, nodes, 2**64 - 3, 0.4, out)
    rows = SparseRows(indptr=indptr, indices=indices, values=values, num_columns=10)
    assert torch.equal(out, dropout_sparse(rows, nodes, 2**64 - 3, 0.4).values)
