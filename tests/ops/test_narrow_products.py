"""Products in bfloat16: as good as its 8 bits, in sums of any length, and only where they are asked for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from outgrow.ops.linear import affine, use_bfloat16_matmul, uses_bfloat16
from support import normal

EPSILON = 2.0**-8
MORE_THAN_A_CHUNK = (1 << 15) + 100


def results(rows: int, width: int, columns: int, x_type: torch.dtype = torch.float32) -> list[Tensor]:
    """Result and gradients of a sum of two products with a bias."""
    x, other = normal(rows, width, dtype=x_type), normal(rows, 5, seed=1, dtype=torch.float32).requires_grad_()
    weights = [
        normal(size, columns, seed=seed, dtype=torch.float32).requires_grad_() for size, seed in ((width, 2), (5, 3))
    ]
    bias = normal(columns, seed=4, dtype=torch.float32).requires_grad_()
    out = affine((x, weights[0]), (other, weights[1]), bias_O=bias)
    grad = normal(rows, columns, seed=5, dtype=torch.float32)
    return [out.detach(), *torch.autograd.grad(out, [other, *weights, bias], grad)]


@pytest.mark.parametrize("x_type", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (1, 1), (70, 7), (5000, 47), (MORE_THAN_A_CHUNK, 16)])
def test_errors_are_those_of_eight_bits(rows: int, columns: int, x_type: torch.dtype) -> None:
    expected = results(rows, 30, columns, x_type)
    with use_bfloat16_matmul():
        found = results(rows, 30, columns, x_type)
    for ours, plain in zip(found, expected, strict=True):
        assert ours.dtype == plain.dtype == torch.float32
        assert ours.shape == plain.shape
        if plain.numel():
            assert (ours - plain).norm() <= 2 * EPSILON * plain.norm()
    if rows:
        assert not torch.equal(found[0], expected[0])
        assert torch.equal(found[-1], expected[-1])  # no product: the gradient of the bias


def test_double_parameters_stay_double() -> None:
    with use_bfloat16_matmul():
        assert affine((normal(9, 4), normal(4, 3))).dtype == torch.float64


def test_the_backward_pass_is_computed_as_the_forward_pass_was() -> None:
    x, weight = normal(50, 8, dtype=torch.float32), normal(8, 4, seed=1, dtype=torch.float32).requires_grad_()
    with use_bfloat16_matmul():
        out = affine((x, weight))
        [inside] = torch.autograd.grad(out.square().sum(), weight, retain_graph=True)
    [outside] = torch.autograd.grad(out.square().sum(), weight)
    assert torch.equal(inside, outside)


def test_it_holds_in_all_threads_until_it_ends() -> None:
    with ThreadPoolExecutor(1) as pool:
        with use_bfloat16_matmul():
            assert uses_bfloat16()
            assert pool.submit(uses_bfloat16).result()
            with use_bfloat16_matmul(enabled=False):
                assert not uses_bfloat16()
            assert uses_bfloat16()
        assert not uses_bfloat16()
        assert not pool.submit(uses_bfloat16).result()


def test_it_ends_with_an_error() -> None:
    with pytest.raises(ZeroDivisionError), use_bfloat16_matmul():
        raise ZeroDivisionError
    assert not uses_bfloat16()
