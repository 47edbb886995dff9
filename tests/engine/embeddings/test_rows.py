"""Rows of node embeddings: sections in memory and in files, gradients by row, and optimizers as torch has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outgrow.engine.embeddings.row_gradients import (
    DenseGradients,
    RowGradients,
    SparseGradients,
    squared_norm,
    sum_by_row,
)
from outgrow.engine.embeddings.row_optimizers import RowOptimizer
from outgrow.engine.embeddings.row_sections import FileSections, RowSection, SectionGroup, TensorSections
from outgrow.runtime.storage.row_file import IoPool
from support import normal

ROWS, DIM = 11, 3
CPU, DOUBLE = torch.device("cpu"), torch.float64


@pytest.fixture(params=["memory", "file", "joined"])
def section(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RowSection]:
    if request.param == "memory":
        yield TensorSections(CPU).make("rows", ROWS, DIM, DOUBLE)
        return
    with closing(IoPool()) as pool:
        files = FileSections(tmp_path, pool)
        if request.param == "joined":
            with closing(files.make_group("rows", 3, ROWS, DIM, DOUBLE)) as group:
                yield group.sections[1]
            return
        with closing(files.make("rows", ROWS, DIM, DOUBLE)) as made:
            yield made


def test_a_section_keeps_what_is_written(section: RowSection) -> None:
    expected = torch.zeros(ROWS, DIM, dtype=DOUBLE)
    assert torch.equal(section.read_range(0, ROWS), expected)
    expected[2:6] = normal(4, DIM)
    section.write_range(2, expected[2:6])
    rows = torch.tensor([0, 3, 4, 10])
    expected[rows] = normal(4, DIM, seed=1)
    section.write_rows(rows, expected[rows])
    assert torch.equal(section.read_range(0, ROWS), expected)
    assert torch.equal(section.read_rows(torch.tensor([1, 3, 9])), expected[[1, 3, 9]])


@pytest.mark.parametrize("in_files", [False, True])
def test_sections_of_a_group_are_written_together_and_read_apart(in_files: bool, tmp_path: Path) -> None:
    with closing(IoPool()) as pool:
        maker = FileSections(tmp_path, pool) if in_files else TensorSections(CPU)
        group: SectionGroup
        with closing(maker.make_group("rows", 3, ROWS, DIM, DOUBLE)) as group:
            expected = [torch.zeros(ROWS, DIM, dtype=DOUBLE) for _ in range(3)]
            for number, rows in enumerate([slice(2, 9), torch.tensor([0, 3, 10]), slice(0, 1), torch.tensor([5])]):
                for at, each in enumerate(expected):
                    each[rows] = normal(ROWS, DIM, seed=10 * number + at)[rows]
                group.write(rows, [each[rows] for each in expected])
                found = group.read(rows)
                assert all(torch.equal(mine, each[rows]) for mine, each in zip(found, expected, strict=True))
            expected[1][4:6] = 7.0
            group.sections[1].write_range(4, expected[1][4:6])
            for section, each in zip(group.sections, expected, strict=True):
                assert torch.equal(section.read_range(0, ROWS), each)
                assert torch.equal(section.read_rows(torch.tensor([1, 4, 10])), each[[1, 4, 10]])


@given(st.lists(st.integers(-1, ROWS - 1), max_size=30))
def test_gradients_are_summed_by_row(rows: list[int]) -> None:
    at, grad = torch.tensor(rows, dtype=torch.int64), normal(len(rows), DIM)
    found, sums = sum_by_row(at, grad)
    expected = torch.zeros(ROWS, DIM, dtype=DOUBLE)
    for row, each in zip(rows, grad, strict=True):
        if row >= 0:
            expected[row] += each
    assert found.tolist() == sorted({*rows} - {-1})
    assert torch.allclose(sums, expected[found])


def gradients(kind: str) -> RowGradients:
    if kind == "dense":
        return DenseGradients(TensorSections(CPU).make("gradients", ROWS, DIM, DOUBLE), drops_zeros=True)
    return SparseGradients(DIM, DOUBLE, CPU, drops_zeros=True)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("all_rows", [False, True])
@given(st.lists(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=6), max_size=4))
def test_gradients_of_some_steps(kind: str, all_rows: bool, steps: list[list[int]]) -> None:
    given_ones = gradients(kind)
    for _ in range(2):  # the second time after they were cleared
        expected, touched = torch.zeros(ROWS, DIM, dtype=DOUBLE), set[int]()
        for number, rows in enumerate([[2, 3, 4], *steps]):
            grad = normal(len(rows), DIM, seed=number)
            given_ones.add(torch.tensor(rows), grad)
            expected.index_add_(0, torch.tensor(rows), grad)
            touched |= {*rows}
        found, seen = torch.zeros(ROWS, DIM, dtype=DOUBLE), list[int]()
        for rows_n, grad_nF in given_ones.blocks(ROWS, 4, all_rows=all_rows):
            found[rows_n] = grad_nF
            seen += torch.arange(ROWS)[rows_n].tolist()
        assert seen == (list(range(ROWS)) if all_rows else sorted(touched))
        assert torch.allclose(found, expected)
        assert squared_norm(given_ones, ROWS, 4) == pytest.approx(float(expected.square().sum()))
        given_ones.clear()


def test_rows_of_zeros_count_as_rows_without_a_gradient() -> None:
    """A backward pass over a whole graph gives zeros to nodes that the loss does not depend on."""
    held = gradients("dense")
    held.add(torch.arange(ROWS), torch.zeros(ROWS, DIM, dtype=DOUBLE))
    assert not [*held.blocks(ROWS, 4, all_rows=False)]
    grad = normal(ROWS, DIM)
    grad[[0, 4, 9]] = 0
    held.add(torch.arange(ROWS), grad)
    held.add(torch.tensor([4, 5]), torch.zeros(2, DIM, dtype=DOUBLE))
    rows = [row for rows_n, _ in held.blocks(ROWS, 4, all_rows=False) for row in torch.arange(ROWS)[rows_n].tolist()]
    assert rows == [1, 2, 3, 5, 6, 7, 8, 10]


def test_gradients_of_a_batch_are_scaled_once() -> None:
    held = gradients("sparse")
    held.add(torch.tensor([1, 2]), torch.ones(2, DIM, dtype=DOUBLE))
    held.scale_new(3.0)
    held.add(torch.tensor([2, 5]), torch.ones(2, DIM, dtype=DOUBLE))
    held.scale_new(5.0)
    [(rows, grad)] = held.blocks(ROWS, ROWS, all_rows=False)
    assert torch.as_tensor(rows).tolist() == [1, 2, 5]
    assert grad[:, 0].tolist() == [3.0, 8.0, 5.0]


@pytest.mark.parametrize("name", ["adam", "adagrad", "sparse-adam"])
def test_all_rows_as_torch_updates_them(name: str) -> None:
    mine, theirs = normal(ROWS, DIM), torch.nn.Parameter(normal(ROWS, DIM))
    optimizer = RowOptimizer(name=name, lr=0.05)
    kinds = {"adagrad": torch.optim.Adagrad}
    reference = kinds.get(name, torch.optim.Adam)([theirs], lr=0.05)
    states = [torch.zeros_like(mine) for _ in optimizer.state_names]
    for step in range(1, 6):
        grad = normal(ROWS, DIM, seed=step)
        theirs.grad = grad.clone()
        reference.step()
        optimizer.update_rows(mine, grad, states, step, 0.05)
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-12)


def test_rows_without_a_gradient_stay_with_sparse_adam() -> None:
    """As torch's SparseAdam, but for where the epsilon is added."""
    mine, theirs = normal(ROWS, DIM), torch.nn.Parameter(normal(ROWS, DIM))
    optimizer = RowOptimizer(name="sparse-adam", lr=0.05, eps=0.0)
    reference = torch.optim.SparseAdam([theirs], lr=0.05, eps=1e-30)
    states = [torch.zeros_like(mine) for _ in optimizer.state_names]
    for step in range(1, 6):
        rows = torch.tensor([step, step + 3])
        grad = normal(2, DIM, seed=step)
        theirs.grad = torch.sparse_coo_tensor(rows[None], grad, (ROWS, DIM), check_invariants=True)
        reference.step()
        values, some = mine[rows], [each[rows] for each in states]
        optimizer.update_rows(values, grad, some, step, 0.05)
        mine[rows] = values
        for whole, part in zip(states, some, strict=True):
            whole[rows] = part
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-12)
