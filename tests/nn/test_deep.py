"""Deep stacks, as the papers configure them: they are what they should be, and they learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.nn import GCN, Epilogue, FiLM, GCNConv, Layer, Model, SAGEConv
from outgrow.strategies.full import Full
from planted import WIDTH, planted


def deep_gcn() -> Model:
    return GCN(WIDTH, 16, 2, layers=7, norm=True, residual=True, dropout=0.1)


def deep_film() -> Model:
    return FiLM(WIDTH, 16, 2, layers=10, norm=True, residual=True, dropout=0.1)


@pytest.mark.parametrize(("make", "depth"), [(deep_gcn, 7), (deep_film, 10)])
def test_depth_and_residuals(make: Callable[[], Model], depth: int) -> None:
    stages = make().layers_list()
    assert len(stages) == depth
    assert [layer.epilogue.residual for layer in stages] == [False, *[True] * (depth - 2), False]
    assert all(layer.norm is not None for layer in stages[:-1])


@pytest.mark.parametrize("make", [deep_gcn, deep_film])
def test_a_deep_stack_learns(make: Callable[[], Model]) -> None:
    torch.manual_seed(0)
    data, model = planted(), make().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    execution = Full().prepare(replace(data.problem(), model=model))
    losses = []
    for epoch in range(30):
        optimizer.zero_grad()
        for step in execution.steps(epoch):
            losses.append(step.loss)
            optimizer.step()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    assert min(losses[-5:]) < 0.5 * losses[0]


def test_a_residual_needs_equal_widths() -> None:
    with pytest.raises(InputError, match="in 4, out 5"):
        Layer(GCNConv(4, 5), Epilogue(residual=True))


def test_a_residual_takes_no_sparse_input() -> None:
    conv = SAGEConv(4, 4, project_first=True)
    assert Layer(conv).accepts_sparse
    assert not Layer(conv, Epilogue(residual=True)).accepts_sparse
