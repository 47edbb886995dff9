"""Scores of pairs of rows and their gradients, against torch with a row per pair."""

from __future__ import annotations

import importlib
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outgrow.ops.kernels import work_split
from outgrow.ops.link_scores import NodePairs, pair_scores
from support import normal, one_kernel_thread

TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-12}


class Given(NamedTuple):
    """Both rows and the relation of each pair, as they were given."""

    first: Tensor
    second: Tensor
    relation: Tensor

    def pairs(self, num_rows: int) -> NodePairs:
        return NodePairs.from_endpoints(*self, num_rows)


def random_pairs(num_rows: int, count: int, relations: int, seed: int = 0) -> Given:
    """Some pairs occur twice, some are of a row with itself."""
    generator = torch.Generator().manual_seed(seed)
    first, second = (torch.randint(num_rows, (count,), generator=generator) for _ in range(2))
    second[::7] = first[::7]
    relation = torch.randint(relations, (count,), generator=generator)
    return Given(*(torch.cat([each, each[: count // 5]]) for each in (first, second, relation)))


def dense(x: Tensor, scale: Tensor, given: Given) -> Tensor:
    return (x[given.first] * scale[given.relation] * x[given.second]).sum(1)


def assert_like_dense(given: Given, num_rows: int, columns: int, relations: int, dtype: torch.dtype) -> None:
    pairs = given.pairs(num_rows)
    results = []
    for ours in (True, False):
        x = normal(num_rows, columns, seed=1, dtype=dtype).requires_grad_()
        scale = normal(relations, columns, seed=2, dtype=dtype).requires_grad_()
        out = pair_scores(x, pairs, scale) if ours else dense(x, scale, given)[pairs.order.long()]
        probe = normal(len(given.first), seed=3, dtype=dtype)[pairs.order.long()]
        results.append([out.detach(), *torch.autograd.grad((out * probe).sum(), [x, scale])])
    for mine, expected in zip(*results, strict=True):
        assert mine.dtype == dtype
        bound = TOLERANCE[dtype] * max(1.0, expected.abs().max().item() if expected.numel() else 0)
        torch.testing.assert_close(mine, expected, rtol=TOLERANCE[dtype], atol=bound)


@st.composite
def any_pairs(draw: st.DrawFn) -> tuple[Given, int, int]:
    """Any few pairs, how many rows there are, and how many relations."""
    rows, relations = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    row = st.integers(0, rows - 1)
    found = draw(st.lists(st.tuples(row, row, st.integers(0, relations - 1)), max_size=25))
    table = torch.tensor(found, dtype=torch.int64).reshape(-1, 3)
    return Given(*(table[:, column].contiguous() for column in range(3))), rows, relations


@given(drawn=any_pairs(), columns=st.integers(1, 5))
@settings(deadline=None, max_examples=60)
def test_any_few_pairs(drawn: tuple[Given, int, int], columns: int) -> None:
    given, rows, relations = drawn
    assert_like_dense(given, rows, columns, relations, torch.float64)


@given(drawn=any_pairs())
@settings(deadline=None, max_examples=60)
def test_pairs_are_in_the_order_of_their_first_rows_and_know_their_numbers(drawn: tuple[Given, int, int]) -> None:
    given, rows, _ = drawn
    pairs, order = given.pairs(rows), []
    for row in range(rows):
        order += [number for number, first in enumerate(given.first.tolist()) if first == row]
    assert pairs.order.tolist() == order
    assert pairs.edges.num_dst == pairs.edges.num_src == rows
    assert pairs.edges.indptr.diff().tolist() == given.first.bincount(minlength=rows).tolist()
    assert torch.equal(pairs.edges.indices.long(), given.second[pairs.order.long()])
    assert torch.equal(pairs.relation, given.relation[pairs.order.long()])
    assert not pairs.with_relation_zero.relation.any()
    assert torch.equal(pairs.with_relation_zero.order, pairs.order)


@pytest.mark.parametrize("rows", [0, 5])
def test_no_pairs(rows: int) -> None:
    assert_like_dense(random_pairs(max(1, rows), 0, 2), rows, 4, 2, torch.float64)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("columns", [1, 16, 33])
def test_many_pairs(dtype: torch.dtype, columns: int) -> None:
    assert_like_dense(random_pairs(200, 3000, 4), 200, columns, 4, dtype)


@pytest.mark.parametrize("end", [0, 1])
def test_a_row_in_thousands_of_pairs(end: int) -> None:
    given = random_pairs(50, 9000, 3)
    given[end][500:] = 7
    assert_like_dense(given, 50, 9, 3, torch.float64)


@pytest.mark.parametrize("columns", [19])
def test_kernels_of_a_fixed_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_split, "_LARGE", 1)
    assert_like_dense(random_pairs(90, 2000, 3), 90, columns, 3, torch.float64)


def test_gradients_are_those_of_finite_differences() -> None:
    pairs = random_pairs(5, 20, 2).pairs(5)
    x, scale = normal(5, 3, seed=1).requires_grad_(), normal(2, 3, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, scale: pair_scores(x, pairs, scale), (x, scale))


def test_only_the_gradients_that_are_asked_for() -> None:
    given = random_pairs(9, 40, 2)
    pairs, x, scale = given.pairs(9), normal(9, 3, seed=1), normal(2, 3, seed=2)
    for wanted in (x, scale):
        wanted.requires_grad_()
        (mine,) = torch.autograd.grad(pair_scores(x, pairs, scale).sum(), wanted)
        (expected,) = torch.autograd.grad(dense(x, scale, given).sum(), wanted)
        torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)
        wanted.requires_grad_(False)
    assert not pair_scores(x, pairs, scale).requires_grad


def test_threads_do_not_matter() -> None:
    pairs = random_pairs(300, 8000, 3).pairs(300)
    x = normal(300, 17, dtype=torch.float32).requires_grad_()
    scale = normal(3, 17, dtype=torch.float32).requires_grad_()

    def everything() -> list[Tensor]:
        out = pair_scores(x, pairs, scale)
        return [out, *torch.autograd.grad(out.square().sum(), [x, scale])]

    many = everything()
    with one_kernel_thread():
        one = everything()
    assert all(map(torch.equal, many, one))


@pytest.mark.parametrize("bytes_at_a_time", [1, 500, 64 << 20])
def test_the_twin_for_devices_gives_the_same(bytes_at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="the twins need triton")
    gpu_twin = importlib.import_module("outgrow.ops.gpu.link_scores")
    monkeypatch.setattr(gpu_twin, "_BYTES", bytes_at_a_time)
    pairs, x, scale = random_pairs(30, 200, 3).pairs(30), normal(30, 6, seed=1), normal(3, 6, seed=2)
    out = torch.full((len(pairs.relation),), torch.nan, dtype=torch.float64)
    gpu_twin.distmult_scores(pairs.edges.indptr, pairs.edges.indices, pairs.relation, scale, x, out)
    torch.testing.assert_close(out, pair_scores(x, pairs, scale), rtol=1e-12, atol=1e-12)
