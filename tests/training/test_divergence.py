"""Which number was the first that was not finite, on one worker."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outgrow.core.errors import TrainingError
from outgrow.nn import Epilogue, GCNConv, Layer, Model
from outgrow.ops.sparse import SparseRows
from outgrow.strategies.base import Problem
from outgrow.strategies.full import Full
from outgrow.training.config import TrainConfig
from outgrow.training.divergence import all_finite
from planted import WIDTH, Planted, planted


class Explodes(torch.autograd.Function):
    """The same numbers, with a gradient that is not finite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * math.inf


def exploding(x: Tensor) -> Tensor:
    return Explodes.apply(x)  # type: ignore[no-any-return, no-untyped-call]


@pytest.fixture(scope="module")
def world() -> Planted:
    return planted()


def three_layers(activation: Any = torch.relu) -> Model:
    torch.manual_seed(0)
    plain = Epilogue(activation=torch.relu)
    layers = [Layer(GCNConv(WIDTH, 6), plain), Layer(GCNConv(6, 6), Epilogue(activation=activation))]
    return Model([*layers, Layer(GCNConv(6, 2))]).double()


def problem_of(world: Planted, model: Model, features: Tensor | SparseRows | None = None) -> Problem:
    problem = world.problem()
    return Problem(
        shard=problem.shard,
        features=world.features if features is None else features,
        targets=problem.targets,
        model=model,
        seed=0,
    )


def error_of(world: Planted, problem: Problem, folder: Path, **options: Any) -> TrainingError:
    trainer = world.trainer(problem, TrainConfig(**{"epochs": 3, "checkpoint_every": 1, **options}), folder=folder)
    with pytest.raises(TrainingError) as caught:
        trainer.run(Full())
    return caught.value


def test_features(world: Planted, tmp_path: Path) -> None:
    features = world.features.clone()
    features[[17, 90], 3] = math.nan
    error = error_of(world, problem_of(world, three_layers(), features), tmp_path)
    assert error.what == (
        "training diverged in epoch 1: the input of layer 1, which are features, is not finite for 2 nodes "
        "(node 17 is the first), on worker 0 of 1"
    )
    assert "nan" in error.got
    assert list(tmp_path.iterdir()) == []


def test_sparse_features(world: Planted, tmp_path: Path) -> None:
    num_nodes = len(world.labels)
    values = torch.ones(num_nodes, dtype=torch.float64)
    values[[30, 31, 40]] = torch.tensor([math.inf, -math.inf, math.nan], dtype=torch.float64)
    indptr, indices = torch.arange(num_nodes + 1), torch.arange(num_nodes, dtype=torch.int32) % WIDTH
    features = SparseRows(indptr=indptr, indices=indices, values=values, num_columns=WIDTH)
    error = error_of(world, problem_of(world, three_layers(), features), tmp_path)
    assert "features, is not finite for 3 nodes (node 30 is the first)" in error.what


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_output_of_a_layer(world: Planted, tmp_path: Path, number: int) -> None:
    model = three_layers(activation=None)
    with torch.no_grad():
        for before in model.layers_list()[: number - 1]:
            before.conv.project.weight.fill_(1.0)
        model.layers_list()[number - 1].conv.project.weight.fill_(1e308)
    error = error_of(world, problem_of(world, model), tmp_path)
    assert f"epoch 1: the output of layer {number} of 3 is not finite for " in error.what
    assert error.what.endswith("on worker 0 of 1")


def test_a_gradient(world: Planted, tmp_path: Path) -> None:
    """The backward pass comes from above: of the layers below, the last one met it first."""
    error = error_of(world, problem_of(world, three_layers(exploding)), tmp_path)
    assert "the gradient of layer 2 of 3 (layers.1." in error.what
    assert "though the output of every layer is; it comes from worker 0 of 1" in error.what
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("steps", [None, 1])
def test_parameters_that_a_step_has_made_infinite_are_not_saved(
    world: Planted, tmp_path: Path, steps: int | None
) -> None:
    model = three_layers()
    trainer = world.trainer(problem_of(world, model), TrainConfig(epochs=2, checkpoint_every=1), folder=tmp_path)
    trainer.run(Full())
    trainer.config = TrainConfig(epochs=9, checkpoint_every=1, checkpoint_steps=steps)
    trainer.optimizer.param_groups[0]["lr"] = math.inf
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(TrainingError, match=r"epoch 3: layer 1 of 3 \(layers\.0\.\S*\) is not finite on any worker"):
        trainer.run(Full())
    assert sorted(path.name for path in tmp_path.iterdir()) == before == ["epoch-00000001.pt", "epoch-00000002.pt"]


def test_numbers_in_half_precision_are_summed_in_more() -> None:
    assert all_finite([torch.full((1000,), 60000.0, dtype=torch.float16), None])
    assert not all_finite([torch.tensor([1.0, math.nan])])
    assert not all_finite([torch.tensor([math.inf, -math.inf])])
    assert all_finite([])
