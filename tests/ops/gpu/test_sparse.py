"""Products of sparse rows on a CUDA device against dense ones."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from support import normal


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-5), (torch.float64, 1e-12)])
def test_products(twin: ModuleType, call: Callable[..., None], dtype: torch.dtype, limit: float) -> None:
    matrix = normal(7, 9, dtype=dtype) * (normal(7, 9, seed=1, dtype=dtype) > 0.2)
    matrix[2], matrix[:, 4] = 0, 0
    rows = torch.nonzero(matrix)
    indptr = torch.searchsorted(rows[:, 0].contiguous(), torch.arange(8))
    stored = indptr, rows[:, 1].int(), matrix[matrix != 0]
    weight, out = normal(9, 5, seed=2, dtype=dtype), torch.full((7, 5), torch.nan, dtype=dtype)
    call(twin.sparse_product, *stored, weight, out)
    torch.testing.assert_close(out.double(), matrix.double() @ weight.double(), rtol=limit, atol=limit)
    grad, mine = normal(7, 5, seed=3, dtype=dtype), torch.full((9, 5), torch.nan, dtype=dtype)
    call(twin.sparse_gradient, *stored, grad, mine)
    torch.testing.assert_close(mine.double(), matrix.double().T @ grad.double(), rtol=limit, atol=limit)
