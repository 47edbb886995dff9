"""Layer norm against torch's, whose gradients depend on the number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from outgrow.ops.epilogue import layer_norm
from support import normal


def leaves(rows: int, columns: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    tensors = (
        normal(rows, columns, dtype=dtype),
        normal(columns, seed=1, dtype=dtype),
        normal(columns, seed=2, dtype=dtype),
    )
    return [tensor.requires_grad_() for tensor in tensors]


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("rows", "columns"), [(50, 7), (3, 64), (20, 65), (9, 200), (0, 5), (1, 1), (6, 1)])
def test_it_is_that_of_torch(rows: int, columns: int) -> None:
    ours, theirs = leaves(rows, columns), leaves(rows, columns)
    out, expected = layer_norm(*ours, 1e-5), functional.layer_norm(theirs[0], (columns,), *theirs[1:], 1e-5)
    assert torch.equal(out, expected)
    grad = normal(rows, columns, seed=3)
    for mine, other in zip(
        torch.autograd.grad(out, ours, grad), torch.autograd.grad(expected, theirs, grad), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-11)


def test_gradients_are_those_of_finite_differences() -> None:
    assert torch.autograd.gradcheck(lambda x, w, b: layer_norm(x, w, b, 1e-5), leaves(5, 6))


@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_changes_no_bit() -> None:
    inputs, grad = leaves(4001, 33, torch.float32), normal(4001, 33, seed=3, dtype=torch.float32)
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(torch.autograd.grad(layer_norm(*inputs, 1e-5), inputs, grad))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
