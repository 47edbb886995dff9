"""What is monitored, which direction is better, and what a resumed run forgets."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from metric_objects import SINGLE, MeanOfMeans, WithoutDirection
from outgrow.core.errors import InputError
from outgrow.strategies.full import Full
from outgrow.training.checkpoint import TrainingProgress, load_checkpoint, restore_checkpoint, save_checkpoint
from outgrow.training.config import TrainConfig
from outgrow.training.evaluation import NodeEvaluation
from outgrow.training.metric_fit import make_node_metrics
from outgrow.training.metric_request import parse_metrics
from outgrow.training.monitor import Monitor, choose_link_monitor, choose_node_monitor
from outgrow.training.trainer import Trainer
from planted import planted

FOUND = make_node_metrics(
    parse_metrics({"mean": MeanOfMeans(), "other": WithoutDirection()}), SINGLE, torch.empty(0, dtype=torch.int64), 3
)


@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        (None, None, Monitor("accuracy", True)),
        (None, "min", Monitor("accuracy", False)),
        ("loss", None, Monitor("loss", False)),
        ("mean", None, Monitor("mean", True)),
        ("other", "min", Monitor("other", False)),
    ],
)
def test_of_nodes(name: str | None, mode: str | None, expected: Monitor) -> None:
    assert choose_node_monitor(name, mode, SINGLE, FOUND) == expected


@pytest.mark.parametrize(
    ("name", "says"), [("other", "monitor_mode"), ("auroc", "--metric auroc"), ("main", "did you mean mean")]
)
def test_of_nodes_in_vain(name: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        choose_node_monitor(name, None, SINGLE, FOUND)


def test_of_links() -> None:
    assert choose_link_monitor(None, None) == Monitor("mrr", True)
    assert choose_link_monitor("hits@3", None) == Monitor("hits@3", True)
    with pytest.raises(InputError, match=r"hits@10"):
        choose_link_monitor("loss", None)


@pytest.mark.parametrize("higher", [True, False])
def test_what_is_better(higher: bool) -> None:
    monitor = Monitor("it", higher)
    assert monitor.is_better(2.0, 1.0) == higher
    assert monitor.is_better(1.0, 2.0) != higher
    assert not monitor.is_better(1.0, 1.0)
    assert not monitor.is_better(math.nan, monitor.worst)
    assert monitor.is_better(0.0, monitor.worst)


def progress_of(monitor: Monitor) -> TrainingProgress:
    progress = TrainingProgress.at_start(monitor)
    progress.loss, progress.val_score, progress.epoch_seconds = [1.0], [0.5], [0.1]
    progress.best_epoch, progress.best_score, progress.best_loss = 1, 0.5, 1.0
    progress.best_model = {}
    return progress


def test_another_monitor_forgets_what_was_best() -> None:
    for later in (Monitor("auroc"), Monitor("accuracy", False)):
        progress = progress_of(Monitor("accuracy"))
        assert not progress.adopt_monitor(Monitor("accuracy"), default="accuracy")
        assert progress.best_epoch == 1
        assert progress.adopt_monitor(later, default="accuracy")
        assert (progress.best_epoch, progress.val_score, progress.best_model) == (0, [None], None)
        assert progress.best_score == later.worst
        assert (progress.monitor, progress.monitor_mode) == (later.name, later.mode)


def test_checkpoints_of_before_monitored_the_own_metric(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    path = save_checkpoint(tmp_path, model, optimizer, progress_of(Monitor("accuracy")))
    saved = load_checkpoint(path)
    del saved["progress"]["monitor"], saved["progress"]["monitor_mode"]
    for monitor, forgets in ((Monitor("accuracy"), False), (Monitor("loss", False), True)):
        progress = restore_checkpoint(saved, path, model, optimizer)
        assert progress.adopt_monitor(monitor, default="accuracy") == forgets


def test_the_epoch_with_the_lowest_loss_is_kept() -> None:
    """With a learning rate that makes the validation loss rise again."""
    world = planted()
    problem = world.problem()
    evaluation = NodeEvaluation(problem, world.val, world.test, monitor=Monitor("loss", False))
    losses = []

    class Watch:
        def on_epoch(self, report) -> None:  # type: ignore[no-untyped-def]
            losses.append(report.scores["loss"])

    trainer = Trainer(problem, evaluation, TrainConfig(epochs=30, lr=0.2))
    trainer.add_callbacks(Watch())
    result = trainer.run(Full())
    assert losses[result.progress.best_epoch - 1] == min(losses) == result.progress.best_score < losses[-1]
    assert result.val.score == result.val.figures["loss"] == pytest.approx(min(losses), rel=1e-12)
    assert result.progress.val_score == losses
