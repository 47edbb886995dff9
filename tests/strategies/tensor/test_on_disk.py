"""`tensor` with edges and slices in files: how much of them, and for which models; and what may be apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.engine.shard import FullGraphShard
from outgrow.nn import GAT, GCN, RGCN, SAGE, Decoupled, DecoupledGAT, Model
from outgrow.strategies.base import Problem
from outgrow.strategies.tensor.memory import MemoryNeeds
from outgrow.strategies.tensor.strategy import TensorParallel, _choose_disk_level
from planted import planted

MIB = 1 << 20


def problem_of(model: Model) -> Problem:
    torch.manual_seed(1)
    world = planted()
    problem = world.problem()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return Problem(
        shard=FullGraphShard(world.topology),
        features=world.features,
        targets=problem.targets,
        model=model.double(),
        seed=4,
    )


def level(budget_mib: int, asked: tuple[str, ...] = ("nothing", "edges", "slices")) -> str:
    needs = MemoryNeeds(in_memory=300 * MIB, edges_in_files=200 * MIB, slices_in_files=100 * MIB)
    return _choose_disk_level(f"{budget_mib}MiB", asked, needs, {})


def test_as_little_in_files_as_fits() -> None:
    found = [level(budget) for budget in (300, 299, 200, 199, 100)]
    assert found == ["nothing", "edges", "edges", "slices", "slices"]
    assert level(1000, ("slices",)) == "slices"
    for asked, needed in ((("nothing", "edges", "slices"), 100), (("edges",), 200), (("nothing",), 300)):
        with pytest.raises(InputError) as caught:
            level(99, asked)
        assert f"{needed} MiB" in caught.value.needed
        assert f"--memory {needed}MiB" in caught.value.repair


@pytest.mark.parametrize(
    "make", [lambda: GAT(8, 4, 2, heads=2), lambda: DecoupledGAT(8, 4, 2), lambda: SAGE(8, 4, 2, pool="max")]
)
def test_weights_that_are_not_fixed_are_not_in_files(make: Callable[[], Model]) -> None:
    problem = problem_of(make())
    with pytest.raises(InputError, match="needs the weights of all edges") as caught:
        TensorParallel(on_disk="edges").prepare(problem)
    assert "offload" in caught.value.repair


def test_one_worker_from_files() -> None:
    for build in (lambda: GCN(8, 4, 2), lambda: Decoupled(8, 4, 2)):
        steps = [
            step.loss
            for options in ({}, {"on_disk": "edges"}, {"on_disk": "slices"})
            for step in TensorParallel(**options).prepare(problem_of(build())).steps(1)  # type: ignore[arg-type]
        ]
        assert steps[1:] == [steps[0]] * 2


def test_aggregation_with_trained_weights_is_not_apart_from_the_rest() -> None:
    model = RGCN(8, 4, 2, num_relations=2)
    TensorParallel().validate_model(model)
    TensorParallel(nn_device="cpu").validate_model(GAT(8, 4, 2, heads=2))
    with pytest.raises(InputError, match="parameters on the CPU") as caught:
        TensorParallel(nn_device="cpu").validate_model(model)
    assert "RGCNConv" in caught.value.got
