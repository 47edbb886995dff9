"""Cross-entropy of labelled rows against torch's of the gathered rows."""

from __future__ import annotations

from collections.abc import Iterator

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from outgrow.ops.cross_entropy import cross_entropy
from outgrow.ops.memory_pool import LARGE_ROWS, pooled_empty_rows
from support import normal

DTYPES = [torch.float32, torch.float64]
INFINITY, NAN = float("inf"), float("nan")


def labels_of(count: int, classes: int, seed: int = 5) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, classes, count))


def rows_of(count: int, num_rows: int, seed: int = 6) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).permutation(num_rows)[:count])


def ours(logits: Tensor, labels: Tensor, rows: Tensor | None, grad: float = 1.0) -> tuple[Tensor, Tensor]:
    leaf = logits.detach().requires_grad_()
    loss = cross_entropy(leaf, labels, rows)
    return loss.detach(), torch.autograd.grad(loss, leaf, loss.new_tensor(grad))[0]


def expected(logits: Tensor, labels: Tensor, rows: Tensor, grad: float = 1.0) -> tuple[Tensor, Tensor]:
    leaf = logits.detach().clone().requires_grad_()
    loss = functional.cross_entropy(leaf[rows], labels, reduction="sum")
    return loss.detach(), torch.autograd.grad(loss, leaf, loss.new_tensor(grad))[0]


def assert_alike(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> None:
    tolerance = 1e-5 if found[0].dtype == torch.float32 else 1e-12
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance / 10, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "classes", "count"), [(300, 7, 120), (65, 47, 65), (200, 1, 50), (1, 3, 1)])
def test_loss_and_gradient_are_those_of_torch(num_rows: int, classes: int, count: int, dtype: torch.dtype) -> None:
    logits, rows = 3 * normal(num_rows, classes, dtype=dtype), rows_of(count, num_rows)
    labels = labels_of(count, classes)
    assert_alike(ours(logits, labels, rows, 0.37), expected(logits, labels, rows, 0.37))


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_rows_in_any_order_and_more_than_once(data: st.DataObject) -> None:
    num_rows, classes = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 9))
    rows = torch.tensor(data.draw(st.lists(st.integers(0, num_rows - 1), max_size=90)), dtype=torch.int64)
    labels = labels_of(len(rows), classes)
    logits = normal(num_rows, classes)
    assert_alike(ours(logits, labels, rows), expected(logits, labels, rows))


def test_the_order_of_rows_changes_no_bit() -> None:
    logits, labels, rows = normal(500, 6), labels_of(200, 6), rows_of(200, 500)
    order = torch.argsort(rows)
    assert all(map(torch.equal, ours(logits, labels, rows), ours(logits, labels[order], rows[order])))


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_rows_all_are_labelled(dtype: torch.dtype) -> None:
    logits, labels = normal(90, 5, dtype=dtype), labels_of(90, 5)
    assert all(map(torch.equal, ours(logits, labels, None), ours(logits, labels, torch.arange(90))))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [torch.arange(100), torch.arange(LARGE_ROWS, LARGE_ROWS + 100), rows_of(3000, 5000)])
def test_many_rows_are_padded_and_so_is_the_gradient(rows: Tensor, dtype: torch.dtype) -> None:
    logits = pooled_empty_rows(5000, (47,), torch.empty(0), dtype).copy_(normal(5000, 47, dtype=dtype))
    assert not logits.is_contiguous()
    labels = labels_of(len(rows), 47)
    found = ours(logits, labels, rows)
    assert_alike(found, expected(logits, labels, rows))
    assert found[1].stride() == logits.stride()


@pytest.mark.parametrize("logits", [normal(5, 30).T, normal(30, 9)[:, 2:7], normal(1, 5).expand(30, 5)])
def test_logits_laid_out_in_any_way(logits: Tensor) -> None:
    labels, rows = labels_of(12, 5), rows_of(12, 30)
    assert_alike(ours(logits, labels, rows), expected(logits, labels, rows))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "row",
    [
        [1e4, -1e4, 9999.0],
        [-1e4, -1e4 - 1, -1e4 - 2],
        [-1e30, 0.0, 1e30],
        [0.0, -INFINITY, 1.0],
        [-INFINITY] * 3,
        [INFINITY, 0.0, 1.0],
        [NAN, 0.0, 1.0],
        [0.0, NAN, 1.0],
    ],
)
@pytest.mark.parametrize("label", [0, 1, 2])
def test_logits_that_are_large_or_no_numbers(row: list[float], label: int, dtype: torch.dtype) -> None:
    logits, labels, rows = torch.tensor([[0.0] * 3, row], dtype=dtype), torch.tensor([label]), torch.tensor([1])
    assert_alike(ours(logits, labels, rows), expected(logits, labels, rows))


def test_the_sum_of_many_is_as_precise_as_the_single_losses() -> None:
    logits, labels = normal(40_000, 3, dtype=torch.float32), labels_of(40_000, 3)
    wanted, _ = expected(logits.double(), labels, torch.arange(40_000))
    assert ours(logits, labels, None)[0].item() == pytest.approx(wanted.item(), rel=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_labelled_rows_there_is_nothing_to_learn(dtype: torch.dtype) -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    for num_rows in (0, 70):
        loss, gradient = ours(normal(num_rows, 4, dtype=dtype), nothing, nothing)
        assert loss.item() == 0
        assert torch.equal(gradient, torch.zeros(num_rows, 4, dtype=dtype))


@pytest.mark.parametrize(
    ("labels", "rows", "message"),
    [
        ([0, 3], [0, 1], "labels must be from 0 to 2, got 0 to 3"),
        ([-1, 0], [0, 1], "labels must be"),
        ([0, 1], [0, 10], "rows must be from 0 to 9, got 0 to 10"),
        ([0, 1], [-1, 3], "rows must be"),
        ([0, 1], [3], "2 labels and 1 rows"),
    ],
)
def test_rows_and_labels_out_of_range_are_refused(labels: list[int], rows: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cross_entropy(normal(10, 3), torch.tensor(labels), torch.tensor(rows))


@pytest.fixture
def threads() -> Iterator[list[int]]:
    before = numba.get_num_threads()
    yield [1, min(2, numba.config.NUMBA_NUM_THREADS)]
    numba.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_number_of_threads_changes_no_bit(threads: list[int], dtype: torch.dtype) -> None:
    logits, labels, rows = normal(5000, 33, dtype=dtype), labels_of(2000, 33), rows_of(2000, 5000)
    by_threads = []
    for count in threads:
        numba.set_num_threads(count)
        by_threads.append(ours(logits, labels, rows))
    assert all(map(torch.equal, *by_threads))
