"""The parameter gradients of layer norm on a CUDA device against sums in float64."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from support import normal


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize(("num_rows", "columns"), [(300, 3), (5, 300), (0, 4)])
def test_norm_gradients(
    twin: ModuleType, call: Callable[..., None], dtype: torch.dtype, limit: float, num_rows: int, columns: int
) -> None:
    x, grad = normal(num_rows, columns, dtype=dtype), normal(num_rows, columns, seed=1, dtype=dtype)
    mean, scale = normal(num_rows, seed=2, dtype=dtype), normal(num_rows, seed=3, dtype=dtype).abs()
    d_weight, d_bias = (torch.full((columns,), torch.nan, dtype=torch.float64) for _ in range(2))
    call(twin.layer_norm_gradients, x, mean, scale, grad, d_weight, d_bias)
    centred = (x.double() - mean.double()[:, None]) * scale.double()[:, None]
    torch.testing.assert_close(d_weight, (grad.double() * centred).sum(0), rtol=limit, atol=100 * limit)
    torch.testing.assert_close(d_bias, grad.double().sum(0), rtol=limit, atol=limit)
