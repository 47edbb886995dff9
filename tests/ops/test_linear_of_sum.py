"""The product of a sum of constants against autograd's, in all precisions that they may have."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outgrow.ops.linear import use_bfloat16_matmul
from outgrow.ops.linear_of_sum import matmul_of_sum
from outgrow.ops.memory_pool import LARGE_ROWS
from support import normal

MANY = LARGE_ROWS + 5


def operands(rows: int, columns: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two constants of 7 columns, a scale and a weight."""
    total, x, weight = normal(rows, 7), normal(rows, 7, seed=1), normal(7, columns, seed=2)
    return total.to(dtype), x.to(dtype), torch.tensor(0.7, dtype=dtype), weight.to(dtype)


def assert_gradients(total: Tensor, x: Tensor, scale: Tensor, weight: Tensor, tolerance: float) -> None:
    """Result and gradients against those of torch in float64; relative to the largest number of all."""
    trained = [scale.clone().requires_grad_(), weight.clone().requires_grad_()]
    out = matmul_of_sum(total, x, *trained)
    grad = normal(*out.shape, seed=3, dtype=out.dtype)
    same = [each.detach().double().requires_grad_() for each in trained]
    expected = (total.double() + same[0] * x.double()) @ same[1]
    found = [out, *torch.autograd.grad(out, trained, grad)]
    wanted = [expected, *torch.autograd.grad(expected, same, grad.double())]
    # The gradient of the scale is a sum of terms as large as those of the weight, which may cancel.
    largest = max([1.0, *(each.abs().max().item() for each in wanted if each.numel())])
    for mine, other in zip(found, wanted, strict=True):
        assert mine.shape == other.shape
        assert mine.dtype == weight.dtype
        torch.testing.assert_close(mine.double(), other, rtol=0, atol=tolerance * largest)


@pytest.mark.parametrize("columns", [1, 5, 47])
@pytest.mark.parametrize("rows", [0, 1, 6, MANY])
def test_gradients_of_scale_and_weight(rows: int, columns: int) -> None:
    assert_gradients(*operands(rows, columns), tolerance=1e-12)
    assert_gradients(*operands(rows, columns, torch.float32), tolerance=1e-5)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_features_in_half_precision(half: torch.dtype) -> None:
    total, x, scale, weight = operands(MANY, 5, torch.float32)
    assert_gradients(total, x.to(half), scale, weight, tolerance=1e-5)


def test_products_in_bfloat16_stay_so_in_the_backward_pass() -> None:
    total, x, scale, weight = operands(40, 5, torch.float32)
    trained = [scale.requires_grad_(), weight.requires_grad_()]
    with use_bfloat16_matmul():
        out = matmul_of_sum(total, x, *trained)
        assert_gradients(total, x, scale.detach(), weight.detach(), tolerance=2e-2)
    narrow = torch.autograd.grad(out, trained, torch.ones_like(out))
    exact = torch.autograd.grad(matmul_of_sum(total, x, *trained), trained, torch.ones_like(out))
    assert not any(torch.equal(one, other) for one, other in zip(narrow, exact, strict=True))


@pytest.mark.parametrize("at", [0, 1])
def test_a_constant_that_needs_a_gradient_is_refused(at: int) -> None:
    given = operands(3, 2)
    given[at].requires_grad_()
    with pytest.raises(ValueError, match="need a gradient"):
        matmul_of_sum(*given)
