"""A kernel of a GPU that writes something else than that of the CPU is found, whatever it does wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from outgrow.ops.gpu_comparison import GpuComparison, copy_to_cpu, describe_difference


class Pair(NamedTuple):
    first: Tensor
    second: Tensor | None


def double(x: Tensor, out: Tensor, *, add: bool = False) -> Tensor:
    """Writes twice ``x``, and returns what it has read."""
    out.copy_(2 * x + (out if add else 0))
    return x.clone()


def wrong_number(x: Tensor, out: Tensor, *, add: bool = False) -> Tensor:
    double(x, out, add=add)
    out[1] += 0.01
    return x.clone()


def nothing_written(x: Tensor, out: Tensor, *, add: bool = False) -> Tensor:
    return x.clone()


def wrong_result(x: Tensor, out: Tensor, *, add: bool = False) -> Tensor:
    return double(x, out, add=add) + 1


def writes_into_its_input(x: Tensor, out: Tensor, *, add: bool = False) -> Tensor:
    double(x, out, add=add)
    found = x.clone()
    x.zero_()
    return found


@pytest.mark.parametrize("counterpart", [wrong_number, nothing_written, wrong_result, writes_into_its_input])
def test_what_is_wrong_is_found(counterpart: Callable[..., Any]) -> None:
    comparison = GpuComparison()
    comparison.run(double, counterpart, (torch.arange(1.0, 4.0), torch.full((3,), torch.nan)), {})
    [name] = comparison.differences
    assert name.endswith(".double")
    assert comparison.num_calls[name] == 1


def test_what_is_right_is_not_found_and_the_result_is_that_of_the_gpu() -> None:
    comparison, x, out = GpuComparison(), torch.arange(3.0), torch.ones(3)
    result = comparison.run(double, double, (x, out), {"add": True})
    assert torch.equal(out, torch.tensor([1.0, 3.0, 5.0]))
    assert torch.equal(result, x)
    assert comparison.differences == {}


def test_a_kernel_in_place_is_compared_with_one_in_place() -> None:
    comparison, x = GpuComparison(), torch.arange(3.0)
    comparison.run(double, double, (x, x), {})
    assert torch.equal(x, torch.tensor([0.0, 2.0, 4.0]))
    assert comparison.differences == {}


@pytest.mark.parametrize(
    ("mine", "says"),
    [
        (torch.tensor([1, 2, 4]), "1 of 3 integers"),
        (torch.tensor([1, 2]), "instead of"),
        (torch.tensor([1, 2, 3], dtype=torch.int32), "instead of"),
        (torch.tensor([1, 2, 3]), ""),
    ],
)
def test_integers_must_be_equal(mine: Tensor, says: str) -> None:
    difference = describe_difference(mine, torch.tensor([1, 2, 3]))
    assert says in difference
    assert bool(says) == bool(difference)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_numbers_may_be_rounded_otherwise(dtype: torch.dtype) -> None:
    expected = torch.tensor([1000.0, 1.0, torch.nan], dtype=dtype)
    rounding = torch.finfo(dtype).eps
    assert describe_difference(expected * (1 + rounding), expected) == ""
    assert "1 of 3 numbers" in describe_difference(expected + torch.tensor([0, 100, 0], dtype=dtype), expected)
    assert "1 of 3 numbers" in describe_difference(torch.tensor([1000.0, 1.0, 0.0], dtype=dtype), expected)
    assert describe_difference(expected[:0], expected[:0]) == ""


def test_copies_share_nothing() -> None:
    x = torch.zeros(2)
    copied = copy_to_cpu((Pair(x, None), {"a": x}, 3))
    x += 1
    assert isinstance(copied[0], Pair)
    assert torch.equal(copied[0].first, torch.zeros(2))
    assert torch.equal(copied[1]["a"], torch.zeros(2))
    assert copied[2] == 3


def test_new_memory_is_filled_and_settings_come_back() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    with GpuComparison().compare_all():
        assert torch.empty(1000).isnan().all()
    assert torch.are_deterministic_algorithms_enabled() == before
