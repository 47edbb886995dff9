"""Runs with a schedule, clipping and averaged weights: what a trainer scores and saves of them, and goes on with."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from outgrow.core.errors import InputError
from outgrow.strategies.full import Full
from outgrow.training import checkpoint
from outgrow.training.config import TrainConfig
from outgrow.training.trainer import Trainer
from planted import Planted, planted, unscored


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.fixture(scope="module")
def world() -> Planted:
    return planted()


ALL: dict[str, Any] = {
    "optimizer": "sgd", "momentum": 0.9, "lr": 0.3, "schedule": "cosine", "warmup": 1, "clip_grad_norm": 0.1,
    "ema": 0.9,
}  # fmt: skip


def trainer_of(world: Planted, folder: Path | None, **options: Any) -> Trainer:
    config = TrainConfig(epochs=6, checkpoint_every=3).with_options(**options)
    return world.trainer(world.problem(), config, folder=folder)


@pytest.mark.parametrize("kind", ["gcn", "gat"])
def test_a_run_is_a_plain_loop(world: Planted, kind: str) -> None:
    """The same bits, where the loop of a user takes the same gradients."""
    ours, theirs = world.problem(kind=kind), world.problem(kind=kind)
    trainer = world.trainer(ours, TrainConfig(epochs=6, eval="none").with_options(**ALL))
    losses = trainer.run(Full()).progress.loss
    model = theirs.model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    ramp = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.5, total_iters=1)
    # The constructor of a schedule begins at the rate that the optimizer has.
    optimizer.param_groups[0]["lr"] = 0.3
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    optimizer.param_groups[0]["lr"] = 0.15
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [ramp, cosine], [1])
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    execution, found = Full().prepare(theirs), []
    for epoch in range(1, 7):
        model.train()
        for step in execution.steps(epoch):
            found.append(step.loss)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            averaged.update_parameters(model)
        schedule.step()
    execution.close()
    assert found == losses
    assert_equal(averaged.module, ours.model)


@pytest.mark.parametrize(
    "options", [ALL, {"schedule": "plateau", "factor": 0.5, "optimizer": "rmsprop"}, {"optimizer": "nadam"}]
)
def test_a_run_goes_on_with_the_same_bits(world: Planted, tmp_path: Path, options: dict[str, Any]) -> None:
    straight = trainer_of(world, tmp_path, **options)
    expected = straight.run(Full())
    (tmp_path / "epoch-00000006.pt").unlink()
    resumed = trainer_of(world, None, **options)
    resumed.resume(tmp_path / "epoch-00000003.pt")
    outcome = resumed.run(Full())
    assert outcome.progress.loss == expected.progress.loss
    assert outcome.progress.val_score == expected.progress.val_score
    assert_equal(resumed.problem.model, straight.problem.model)


@pytest.mark.parametrize(
    "options",
    [{}, {**ALL, "optimizer": "adam"}, {**ALL, "schedule": "linear"}, {**ALL, "ema": None}, {**ALL, "epochs": 9}],
)
def test_another_optimizer_or_schedule_does_not_go_on(world: Planted, tmp_path: Path, options: dict[str, Any]) -> None:
    trainer_of(world, tmp_path, **{**ALL, "epochs": 3}).run(Full())
    options = {
        name: value for name, value in options.items() if options.get("optimizer") == "sgd" or name != "momentum"
    }
    with pytest.raises(InputError, match="another optimizer or schedule"):
        trainer_of(world, None, **options).resume(tmp_path / "epoch-00000003.pt")


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("schedule", None), ("schedule", {}), ("signature", 5), ("num_batches", -1), ("num_seeds", 1.5), ("asked", []),
        ("asked", [["a", 0.0]]), ("averages", {"nothing": torch.ones(1)}), ("sums", [1]),
        ("schedule", {"scheduler": 1}),
    ],
)  # fmt: skip
def test_a_state_of_the_loop_of_another_kind(world: Planted, tmp_path: Path, part: str, value: object) -> None:
    trainer_of(world, tmp_path, **ALL).run(Full())
    path = tmp_path / "epoch-00000006.pt"
    saved = checkpoint.load_checkpoint(path)
    saved["loop"][part] = value
    fresh = trainer_of(world, None, **ALL)
    with pytest.raises(InputError):
        checkpoint.restore_checkpoint(saved, path, fresh.problem.model, fresh.optimizer, fresh.optimization)


def test_averaged_weights_are_scored_and_are_the_result(world: Planted) -> None:
    plain, averaged = trainer_of(world, None), trainer_of(world, None, ema=0.9)
    results = [each.run(Full()) for each in (plain, averaged)]
    assert results[0].progress.loss == results[1].progress.loss
    assert averaged.progress.best_model is not None
    assert plain.progress.best_model is not None
    assert not all(
        torch.equal(value, plain.progress.best_model[name]) for name, value in averaged.progress.best_model.items()
    )
    problem = world.problem()
    last = Trainer(problem, unscored(problem), TrainConfig(epochs=6, ema=0.9))
    last.run(Full())
    assert all(torch.equal(last.optimization.averages[name], value) for name, value in problem.model.named_parameters())


def test_numbers_of_numpy_come_back(world: Planted, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.3),
        "schedule": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: np.float64(0.9) ** t),
    }
    expected = trainer_of(world, tmp_path, **options).run(Full())
    resumed = trainer_of(world, None, **options)
    resumed.resume(tmp_path / "epoch-00000003.pt")
    assert resumed.run(Full()).progress.loss == expected.progress.loss


class Remembering(torch.optim.SGD):
    """Keeps an object of its own in its state."""

    def step(self, closure: Any = None) -> None:
        super().step()
        self.state[self.param_groups[0]["params"][0]]["memory"] = Path()


def test_a_state_that_no_checkpoint_can_hold(world: Planted) -> None:
    with pytest.raises(InputError, match="optimizer has a state that checkpoints cannot hold"):
        trainer_of(world, None, optimizer=Remembering).run(Full())


def test_plateau_without_validation_nodes(world: Planted) -> None:
    problem = world.problem()
    trainer = Trainer(problem, unscored(problem), TrainConfig(epochs=6, schedule="plateau"))
    with pytest.raises(InputError, match="plateau reads"):
        trainer.run(Full())
    assert trainer.progress.finished_epochs == 0


def test_records_have_objects_by_name() -> None:
    given = TrainConfig(optimizer=assert_equal, schedule=trainer_of)
    record = given.as_record()
    name = f"{assert_equal.__module__}.assert_equal"
    assert record["optimizer"] == {"given_as": name}
    read = TrainConfig().with_options(**record)
    assert read.as_record() == record
    assert read.optimizer_name == given.optimizer_name == name
    with pytest.raises(InputError, match="given as an object in Python"):
        read.make_optimizer(nn.Linear(1, 1))
    named = TrainConfig().with_options(optimizer=functools.partial(torch.optim.SGD, momentum=0.5), lr=0.1)
    assert TrainConfig().with_options(**named.as_record()) == named
