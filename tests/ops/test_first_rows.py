"""Rows and the first of them, with the gradient of both."""

import pytest
import torch
from torch import Tensor

from outgrow.ops.linear import with_dst_prefix
from support import normal


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("used", ["both", "all", "first"])
def test_both_and_their_gradients_are_those_of_a_slice(count: int, used: str) -> None:
    def gradient(split: bool) -> Tensor:
        x = normal(5, 3).requires_grad_()
        whole, first = with_dst_prefix(x, count) if split else (x, x[:count])
        assert torch.equal(whole, x)
        assert torch.equal(first, x[:count])
        parts = {"both": (whole, first), "all": (whole,), "first": (first,)}[used]
        total = sum(((part * normal(*part.shape, seed=2)).sum() for part in parts), x.new_zeros(()))
        return torch.autograd.grad(total + 0 * x.sum(), x)[0]

    torch.testing.assert_close(gradient(True), gradient(False), rtol=0, atol=0)


def test_the_gradients_that_came_are_not_written_to() -> None:
    x, kept = normal(4, 2).requires_grad_(), []
    whole, first = with_dst_prefix(x, 2)
    whole.register_hook(lambda grad: kept.append((grad, grad.clone())))
    (whole.sum() + 3 * first.sum()).backward()
    [(grad, copy)] = kept
    assert torch.equal(grad, copy)
    assert x.grad is not None
    assert x.grad[:, 0].tolist() == [4, 4, 1, 1]


def test_constants_stay_constants() -> None:
    whole, first = with_dst_prefix(normal(4, 2), 2)
    assert not whole.requires_grad
    assert not first.requires_grad
