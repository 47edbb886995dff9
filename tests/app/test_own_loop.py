"""Loops of the user's own: the steps of `og.train`, in one process, under torchrun and by `og.launch`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.inference.modes import InferenceChooser

BATCHES: dict[str, Any] = {"batch_size": 64, "fanout": (5, 5)}
STRATEGIES: list[Any] = [
    (og.Full(), {}),
    (og.Offload(chunks=3), {}),
    (og.TensorParallel(), {}),
    (og.Sampled(), BATCHES),
    (og.SplitParallel(), BATCHES),
    (og.Migrate(), BATCHES),
    (og.Orchestrate(hot_ratio=0.0), BATCHES),
]


@pytest.fixture(scope="module")
def graph() -> og.Graph:
    return og.load("products@0.002")


def made(graph: og.Graph) -> Any:
    torch.manual_seed(0)
    return og.nn.SAGE(graph.num_features, 8, graph.num_classes, dropout=0.5)


def own_losses(graph: og.Graph, model: Any, strategy: Any, options: dict[str, Any], epochs: int = 2) -> list[float]:
    """Losses of a plain loop, weighted by seeds as `og.train` reports them."""
    losses = []
    with og.prepare(graph, model, strategy=strategy, **options) as training:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for epoch in range(epochs):
            total = seeds = 0.0
            for step in training.steps(epoch):
                total, seeds = total + step.loss * step.num_seeds, seeds + step.num_seeds
                optimizer.step()
                optimizer.zero_grad()
            losses.append(total / seeds)
    return losses


@pytest.mark.parametrize(("strategy", "options"), STRATEGIES, ids=lambda given: getattr(given, "name", ""))
def test_a_loop_of_ones_own_is_as_the_loop_of_train(graph: og.Graph, strategy: Any, options: dict[str, Any]) -> None:
    trained, looped = made(graph), made(graph)
    og.train(
        graph,
        trained,
        strategy=strategy,
        optimizer="sgd",
        lr=0.1,
        momentum=0.9,
        epochs=2,
        eval="none",
        progress=False,
        **options,
    )
    own_losses(graph, looped, strategy, options)
    for name, value in trained.state_dict().items():
        assert torch.equal(value, looped.state_dict()[name]), name


def test_evaluations_are_those_of_train(graph: og.Graph) -> None:
    model = made(graph)
    run = og.train(graph, model, strategy=og.Full(), epochs=2, patience=None, progress=False, metrics="f1-macro")
    with og.prepare(graph, model, strategy=og.Full(), metrics="f1-macro") as training:
        found = training.evaluate("test")
        assert training.evaluate()["loss"] > 0
    assert found == {name: value for name, value in run.scores["test"].items() if name in found}
    assert set(found) >= {"accuracy", "f1-macro"}


def test_gradients_that_are_not_zeroed_add_up(graph: og.Graph) -> None:
    model = made(graph)
    with og.prepare(graph, model, strategy=og.Sampled(), **BATCHES) as training:
        parameter = next(model.parameters())
        apart = []
        for _ in training.steps(0):
            apart.append(parameter.grad.clone())  # type: ignore[union-attr]
            model.zero_grad()
        assert len(apart) > 1
        for _ in training.steps(0):
            pass
        torch.testing.assert_close(parameter.grad, torch.stack(apart).sum(0))


def added_up(graph: og.Graph) -> torch.Tensor:
    """The sum of the gradients of an epoch."""
    model = made(graph)
    with og.prepare(graph, model, strategy=og.Sampled(), **BATCHES) as training:
        for _ in training.steps(0):
            pass
        gradient = next(model.parameters()).grad
        assert gradient is not None
        return gradient


def test_gradients_of_several_workers_add_up(graph: og.Graph) -> None:
    """They are not counted once for each worker."""
    torch.testing.assert_close(og.launch(added_up, graph, workers=2), added_up(graph), rtol=1e-3, atol=1e-5)


def test_what_is_evaluated_is_found_once(graph: og.Graph) -> None:
    """To find a neighbourhood takes a walk over the graph."""
    with og.prepare(graph, made(graph), strategy=og.Sampled(), eval="exact", **BATCHES) as training:
        with patch.object(InferenceChooser, "choose", autospec=True, side_effect=InferenceChooser.choose) as choose:
            scores = [training.evaluate("test") for _ in range(2)]
        assert choose.call_count == 1
        assert scores[0] == scores[1]


def looped(graph: og.Graph, strategy: Any, options: dict[str, Any]) -> tuple[list[float], dict[str, Any]]:
    model = made(graph)
    losses = own_losses(graph, model, strategy, options)
    return losses, model.state_dict()


@pytest.mark.parametrize(("strategy", "options"), [STRATEGIES[0], STRATEGIES[3]], ids=["full", "sampled"])
def test_launched_workers_take_the_steps_of_one(graph: og.Graph, strategy: Any, options: dict[str, Any]) -> None:
    alone, state = looped(graph, strategy, options)
    together, other = og.launch(looped, graph, strategy, options, workers=2)
    assert together == pytest.approx(alone, rel=1e-4)
    for name, value in state.items():
        torch.testing.assert_close(other[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_loop_under_torchrun(graph: og.Graph, tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(
        "import torch, outgrow as og\n"
        "graph = og.load('products@0.002')\n"
        "torch.manual_seed(0)\n"
        "model = og.nn.GCN(graph.num_features, 8, graph.num_classes)\n"
        "with og.prepare(graph, model, strategy=og.Full()) as training:\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)\n"
        "    for epoch in range(3):\n"
        "        for step in training.steps(epoch):\n"
        "            optimizer.step(); optimizer.zero_grad()\n"
        "    found = training.evaluate('test')\n"
        "    if training.rank == 0: print('found', training.num_workers, step.loss, found['accuracy'])\n"
    )
    found = []
    for start in ([], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]):
        done = subprocess.run(
            [sys.executable, *start, str(script)], capture_output=True, text=True, check=True, env=dict(os.environ)
        )
        [line] = [line for line in done.stdout.splitlines() if line.startswith("found")]
        found.append([float(number) for number in line.split()[1:]])
    assert [each[0] for each in found] == [1, 2]
    assert found[0][1:] == pytest.approx(found[1][1:], rel=1e-4)


def test_mistakes_are_said(graph: og.Graph) -> None:
    model = made(graph)
    for name, value in (("lr", 0.1), ("betas", (0.8, 0.9)), ("warmup", 2), ("monitor", "loss"), ("out", "run")):
        with pytest.raises(InputError, match=f"{name} is an option of the loop"):
            og.prepare(graph, model, **{name: value})
    with pytest.raises(InputError, match="unknown training option"):
        og.prepare(graph, model, batchsize=3)
    training = og.prepare(graph, model, strategy=og.Full())
    with pytest.raises(InputError, match="is not open"):
        next(training.steps(0))
    with training:
        with pytest.raises(InputError, match="no such epoch"):
            next(training.steps(-1))
        with pytest.raises(InputError, match="validation"):
            training.evaluate("validation")
        steps = training.steps(0)
        next(steps)
        with pytest.raises(InputError, match="middle of an epoch"):
            training.evaluate()
        steps.close()
        assert training.evaluate()["accuracy"] >= 0
    with pytest.raises(InputError, match="is not open"):
        training.evaluate()


def test_a_launched_function_starts_no_workers_of_its_own(graph: og.Graph) -> None:
    with pytest.raises(InputError, match="starts workers of its own"):
        og.launch(og.train, graph, made(graph), workers=2)
