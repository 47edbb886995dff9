"""A run that dies within an epoch goes on from its last step that was saved, as if nothing had happened."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from failing import Failing, Lost
from outgrow.core.errors import InputError, TrainingError
from outgrow.engine.batches import BatchConfig
from outgrow.strategies.base import Strategy
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.training import checkpoint
from outgrow.training.config import TrainConfig
from outgrow.training.trainer import Trainer
from planted import Planted, planted

BATCHES = BatchConfig(size=9, fanout=(3, 2))  # five steps an epoch
HOT = Orchestrate(hot_ratio=0.3, super_batch=1)


@pytest.fixture(scope="module")
def world() -> Planted:
    return planted()


def trainer_of(world: Planted, folder: Path | None = None, **options: int) -> Trainer:
    steps = options.get("checkpoint_steps")
    problem = replace(world.problem(kind="sage"), batches=BATCHES, checkpoint_steps=steps)
    return world.trainer(problem, TrainConfig(epochs=4, lr=0.05, **options), folder=folder)


def left_by(folder: Path) -> Path:
    path = checkpoint.latest_checkpoint(folder)
    assert path is not None
    return path


@pytest.mark.parametrize("strategy", [Sampled(), Migrate(), SplitParallel(), HOT], ids=lambda each: each.name)
@pytest.mark.parametrize(("step", "saved"), [(0, "epoch-00000002-step-00000004"), (3, "epoch-00000002-step-00000002")])
def test_the_curve_is_the_same_bit_by_bit(
    world: Planted, tmp_path: Path, strategy: Strategy, step: int, saved: str
) -> None:
    straight = trainer_of(world, checkpoint_steps=2)
    expected = straight.run(strategy).progress
    with pytest.raises(Lost):
        trainer_of(world, tmp_path, checkpoint_steps=2, checkpoint_every=100).run(
            Failing(strategy, 3 + (step == 0), step)
        )
    assert left_by(tmp_path).stem == saved
    resumed = trainer_of(world, tmp_path, checkpoint_steps=2)
    resumed.resume(left_by(tmp_path))
    assert resumed.progress.step > 0
    found = resumed.run(strategy).progress
    assert (found.loss, found.val_score, found.best_epoch) == (expected.loss, expected.val_score, expected.best_epoch)
    for mine, theirs in zip(resumed.problem.model.parameters(), straight.problem.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_it_goes_on_under_another_strategy(world: Planted, tmp_path: Path) -> None:
    expected = trainer_of(world).run(Sampled()).progress
    with pytest.raises(Lost):
        trainer_of(world, tmp_path, checkpoint_steps=1).run(Failing(SplitParallel(), 2, 3))
    resumed = trainer_of(world)
    resumed.resume(left_by(tmp_path))
    assert (resumed.progress.finished_epochs, resumed.progress.step) == (1, 3)
    assert resumed.run(Migrate()).progress.loss == pytest.approx(expected.loss, rel=1e-12)


@pytest.mark.parametrize("strategies", [(HOT, Sampled()), (Sampled(), HOT)], ids=lambda each: each[0].name)
def test_hot_nodes_may_come_and_go(world: Planted, tmp_path: Path, strategies: tuple[Strategy, Strategy]) -> None:
    """What a strategy trained before the loss stays; what another trains afterwards is its own."""
    before, after = strategies
    expected = [trainer_of(world, checkpoint_steps=2).run(each).progress.loss for each in strategies]
    with pytest.raises(Lost):
        trainer_of(world, tmp_path, checkpoint_steps=2).run(Failing(before, 3, 3))
    resumed = trainer_of(world, tmp_path, checkpoint_steps=2)
    resumed.resume(left_by(tmp_path))
    assert (resumed.progress.finished_epochs, resumed.progress.step) == (2, 2)
    found = resumed.run(after).progress.loss
    hits = resumed.ledger.counters["cache_hits"]
    assert found[:2] == expected[0][:2]
    assert found[2:] != expected[0][2:]
    assert len(found) == 4
    assert expected[0] != expected[1]
    assert (hits > 0) == (after is HOT)


def test_what_is_saved_within_an_epoch_changes_nothing(world: Planted) -> None:
    """Hot nodes stay warm over a step that is saved, since their parameters are saved with it."""
    curves = [trainer_of(world, checkpoint_steps=steps).run(HOT).progress.loss for steps in (1, 2, 5)]
    alone = trainer_of(world).run(HOT).progress.loss
    assert all(curve == alone for curve in curves)
    assert alone != trainer_of(world).run(Sampled()).progress.loss


def test_seconds_before_the_loss_count(world: Planted, tmp_path: Path) -> None:
    with pytest.raises(Lost):
        trainer_of(world, tmp_path, checkpoint_steps=1).run(Failing(Sampled(), 1, 3))
    resumed = trainer_of(world)
    resumed.resume(left_by(tmp_path))
    resumed.progress.seconds_so_far += 1000
    assert 1000 < resumed.run(Sampled()).progress.epoch_seconds[0] < 1100


def test_a_step_that_diverged_is_not_saved(world: Planted, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="diverged in epoch 2"):
        trainer_of(world, tmp_path, checkpoint_steps=1).run(Failing(Sampled(), 2, 2, math.nan))
    assert left_by(tmp_path).name == "epoch-00000001-step-00000002.pt"


def test_without_it_nothing_is_saved_within_an_epoch(world: Planted, tmp_path: Path) -> None:
    with pytest.raises(Lost):
        trainer_of(world, tmp_path, checkpoint_every=1).run(Failing(Sampled(), 2, 3))
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-00000001.pt"]


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({"seed": 1}, BATCHES),
        ({}, replace(BATCHES, size=30)),
        ({}, replace(BATCHES, size=None)),
        ({}, replace(BATCHES, fanout=(2, 2))),
        ({"epochs": 1}, BATCHES),
    ],
)
def test_an_epoch_ends_as_it_began(
    world: Planted, tmp_path: Path, options: dict[str, int], batches: BatchConfig
) -> None:
    with pytest.raises(Lost):
        trainer_of(world, tmp_path, checkpoint_steps=1).run(Failing(Sampled(), 2, 3))
    problem = replace(world.problem(kind="sage", seed=options.get("seed", 0)), batches=batches)
    config = TrainConfig(
        **{"epochs": 4, "lr": 0.05, **options},
        batch_size=batches.size,
        fanout=batches.fanout,  # type: ignore[arg-type]
    )
    with pytest.raises(InputError, match="is a mid-epoch checkpoint") as caught:
        world.trainer(problem, config).resume(left_by(tmp_path))
    assert caught.value.needed != caught.value.got


def test_it_is_a_positive_number() -> None:
    with pytest.raises(InputError, match="checkpoint_steps"):
        TrainConfig(checkpoint_steps=0)
