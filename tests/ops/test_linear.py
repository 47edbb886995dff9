"""Sums of products against torch's: small ones in float64, and many rows of odd widths, which are computed padded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from outgrow.ops import linear
from outgrow.ops.linear import affine
from outgrow.ops.memory_pool import LARGE_ROWS, pooled_empty_rows
from support import normal

MANY = LARGE_ROWS + 5
WIDTHS = [1, 2, 7, 8, 16, 47, 48, 256]
MORE_THAN_A_CHUNK = 8192 + 100


def leaves(rows: int, widths: list[int], columns: int, *, bias: bool, dtype: torch.dtype) -> list[Tensor]:
    """An input and a weight for each width, then a bias."""
    found = []
    for seed, width in enumerate(widths):
        found += [normal(rows, width, seed=seed, dtype=dtype), normal(width, columns, seed=seed + 10, dtype=dtype)]
    return [*found, normal(columns, seed=20, dtype=dtype)] if bias else found


def ours(*given: Tensor) -> Tensor:
    """`affine` of inputs and weights in turn; an odd one at the end is the bias."""
    terms = list(zip(given[0::2], given[1::2], strict=False))
    return affine(*terms, bias_O=given[-1] if len(given) % 2 else None)


def plain(*given: Tensor) -> Tensor:
    total = sum(x @ weight for x, weight in zip(given[0::2], given[1::2], strict=False))
    assert isinstance(total, Tensor)
    return total + given[-1] if len(given) % 2 else total


def assert_same(
    given: list[Tensor], tolerance: float, function: Callable[..., Tensor] = ours, other: Callable[..., Tensor] = plain
) -> None:
    """Result and the gradients of all floats of full precision, against those in float64; relative to the largest."""
    results = []
    for run, dtype in ((function, None), (other, torch.float64)):
        inputs = [x.detach() if dtype is None else x.detach().to(dtype) for x in given]
        trained = [x.requires_grad_() for x, like in zip(inputs, given, strict=True) if like.dtype.itemsize > 2]
        out = run(*inputs)
        grad = normal(*out.shape, seed=30, dtype=out.dtype)
        results.append([out.detach(), *torch.autograd.grad(out, trained, grad)])
    for mine, expected in zip(*results, strict=True):
        assert mine.shape == expected.shape
        scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
        torch.testing.assert_close(mine.double(), expected, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("widths", [[3], [4, 2], [1, 5, 3]])
@pytest.mark.parametrize("rows", [0, 1, 6])
def test_few_rows(rows: int, widths: list[int], bias: bool) -> None:
    given = leaves(rows, widths, 4, bias=bias, dtype=torch.float64)
    assert_same(given, 1e-13)
    if rows:
        assert torch.autograd.gradcheck(ours, [x.requires_grad_() for x in given])


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("width", [1, 7, 16, 47, 256])
def test_many_rows(width: int, columns: int) -> None:
    bias = (width + columns) % 2 == 0
    assert_same(leaves(MANY, [width], columns, bias=bias, dtype=torch.float32), 1e-5)


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("bias", [False, True])
def test_many_rows_of_several_terms(columns: int, bias: bool) -> None:
    assert_same(leaves(MANY, [8, 47, 2], columns, bias=bias, dtype=torch.float32), 1e-5)


@pytest.mark.parametrize("columns", [2, 47, 48])
def test_many_rows_in_double_precision(columns: int) -> None:
    assert_same(leaves(MANY, [7, 47], columns, bias=True, dtype=torch.float64), 1e-13)


@pytest.mark.parametrize("rows", [LARGE_ROWS - 1, LARGE_ROWS])
def test_where_padding_begins(rows: int) -> None:
    assert_same(leaves(rows, [62, 31], 63, bias=True, dtype=torch.float32), 1e-5)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [0, 9, LARGE_ROWS, MORE_THAN_A_CHUNK])
@pytest.mark.parametrize("columns", [2, 47])
def test_constants_in_half_precision(rows: int, columns: int, half: torch.dtype) -> None:
    given = leaves(rows, [5, 31], columns, bias=True, dtype=torch.float32)
    assert_same([given[0].to(half), *given[1:]], 1e-5)
    assert_same([*given[:2], given[2].to(half), *given[3:]], 1e-5)
    assert_same([given[0].to(half), given[1], given[2].to(half), given[3]], 1e-5)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_constants_in_half_precision_with_weights_in_double(half: torch.dtype) -> None:
    given = leaves(MORE_THAN_A_CHUNK, [5], 47, bias=False, dtype=torch.float64)
    assert_same([given[0].to(half), given[1]], 1e-13)


@pytest.mark.parametrize("rows", [6, MANY])
@pytest.mark.parametrize("columns", [2, 47])
def test_inputs_that_are_not_contiguous(rows: int, columns: int) -> None:
    x, weight, bias = leaves(rows, [31], columns, bias=True, dtype=torch.float32)
    base = normal(rows, 48, seed=40, dtype=torch.float32)
    spread = bias.repeat_interleave(2)[::2]
    for strange in (x.T.contiguous().T, base[:, 3:34], base[:, :31], x[:1].expand(rows, 31), x.flip(0).flip(0)):
        assert_same([strange, weight.T.contiguous().T, spread], 1e-5)


@pytest.mark.parametrize("rows", [6, MANY])
@pytest.mark.parametrize("columns", [2, 47])
def test_gradients_that_are_not_contiguous(rows: int, columns: int) -> None:
    given = [x.requires_grad_() for x in leaves(rows, [31], columns, bias=True, dtype=torch.float32)]
    same = [x.detach().double().requires_grad_() for x in given]
    wide, padded = normal(rows, 100, seed=31, dtype=torch.float32), pooled_empty_rows(rows, (columns,), given[0])
    for grad in (
        torch.ones(1, 1).expand(rows, columns),
        wide[:, :columns],
        wide[:, 9 : 9 + columns],
        wide[:, :columns].T.contiguous().T,
        padded.copy_(wide[:, :columns]),
    ):
        found = torch.autograd.grad(ours(*given), given, grad)
        expected = torch.autograd.grad(plain(*same), same, grad.double())
        for mine, other in zip(found, expected, strict=True):
            scale = other.abs().max().item()
            torch.testing.assert_close(mine.double(), other, rtol=0, atol=1e-5 * scale)


def test_what_lies_behind_a_slice_is_neither_read_nor_written() -> None:
    """A slice may look like rows with padding, of which the values mean nothing."""
    behind_x, behind_grad = (normal(MANY, 48, seed=seed, dtype=torch.float32) for seed in (0, 1))
    for base in (behind_x, behind_grad):
        base[:, 47] = torch.nan
    before = behind_x.clone(), behind_grad.clone()
    weight = normal(47, 47, seed=2, dtype=torch.float32).requires_grad_()
    x = behind_x[:, :47].requires_grad_()
    out = affine((x, weight), (x, weight))
    gradients = torch.autograd.grad(out, (x, weight), behind_grad[:, :47])
    for found in (out, *gradients):
        assert bool(found.isfinite().all())
    for base, old in zip((behind_x, behind_grad), before, strict=True):
        torch.testing.assert_close(base.detach(), old, rtol=0, atol=0, equal_nan=True)


def test_padded_rows_feed_the_next_product() -> None:
    given = leaves(MANY, [7], 47, bias=True, dtype=torch.float32)
    second = normal(47, 31, seed=50, dtype=torch.float32), normal(31, seed=51, dtype=torch.float32)

    def twice(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, weight, bias, *then: function(function(x, weight, bias), *then)

    assert affine((given[0], given[1])).stride() == (48, 1)
    assert_same([*given, *second], 2e-5, twice(ours), twice(plain))


def test_only_wanted_gradients_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    products: list[str] = []

    def note(name: str) -> None:
        compute = getattr(linear, name)

        def noted(*given: Tensor) -> Tensor:
            products.append(name)
            return compute(*given)

        monkeypatch.setattr(linear, name, noted)

    note("_padded_matmul")
    note("_weight_gradient")
    given = leaves(6, [3, 2], 4, bias=True, dtype=torch.float64)
    for wanted, expected in [
        ([0], ["_padded_matmul"]),
        ([1], ["_weight_gradient"]),
        ([2, 3], ["_padded_matmul", "_weight_gradient"]),
        ([4], []),
    ]:
        inputs = [x.detach().requires_grad_(at in wanted) for at, x in enumerate(given)]
        out = ours(*inputs)
        products.clear()
        out.backward(normal(*out.shape, seed=8))
        assert products == expected
        assert [at for at, x in enumerate(inputs) if x.grad is not None] == wanted


def test_nothing_is_tracked_where_nothing_trains() -> None:
    assert not ours(*leaves(6, [3, 2], 4, bias=True, dtype=torch.float64)).requires_grad
