"""Callbacks of `og.train`: what they are told, where they run, how they end a run, and what comes back of them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import outgrow as og
from outgrow.training.callbacks import (
    CheckpointReport,
    EndReport,
    EpochReport,
    EvaluationReport,
    Report,
    StartReport,
    StepReport,
    detach,
)

BATCHES: dict[str, Any] = {"batch_size": 50, "fanout": (3, 3)}
HOOKS = ("on_start", "on_step", "on_evaluation", "on_epoch", "on_checkpoint", "on_end")


class History(og.Callback):
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def keep(self, hook: str, report: Report) -> None:
        assert report.model is not None
        self.told.append((hook, detach(report)))

    def of(self, hook: str) -> list[Any]:
        return [report for name, report in self.told if name == hook]

    def on_start(self, report: StartReport) -> None:
        self.keep("on_start", report)

    def on_step(self, report: StepReport) -> None:
        self.keep("on_step", report)

    def on_evaluation(self, report: EvaluationReport) -> None:
        self.keep("on_evaluation", report)

    def on_epoch(self, report: EpochReport) -> None:
        self.keep("on_epoch", report)

    def on_checkpoint(self, report: CheckpointReport) -> None:
        self.keep("on_checkpoint", report)

    def on_end(self, report: EndReport) -> None:
        self.keep("on_end", report)


class Ranks(og.Callback):
    """Writes a file on each worker."""

    all_workers = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_epoch(self, report: EpochReport) -> None:
        (self.folder / f"{os.getpid()}-{report.epoch}").touch()


class Stopping(og.Callback):
    def __init__(self, hook: str) -> None:
        self.hook = hook

    def on_step(self, report: StepReport) -> None:
        if self.hook == "on_step" and report.epoch == 2:
            report.stop()

    def on_epoch(self, report: EpochReport) -> None:
        if self.hook == "on_epoch" and report.epoch == 2:
            report.stop()


class Failing(og.Callback):
    """Raises in a hook, in the second epoch if there is one."""

    def __init__(self, hook: str) -> None:
        self.hook = hook

    def fail(self, hook: str, epoch: int) -> None:
        if hook == self.hook and epoch == 2:
            raise ValueError("no more of this")

    def on_start(self, report: StartReport) -> None:
        self.fail("on_start", 2)

    def on_step(self, report: StepReport) -> None:
        self.fail("on_step", report.epoch)

    def on_evaluation(self, report: EvaluationReport) -> None:
        self.fail("on_evaluation", report.epoch)

    def on_epoch(self, report: EpochReport) -> None:
        self.fail("on_epoch", report.epoch)

    def on_checkpoint(self, report: CheckpointReport) -> None:
        self.fail("on_checkpoint", report.epoch)

    def on_end(self, report: EndReport) -> None:
        self.fail("on_end", 2)


@pytest.fixture
def train(npz: Path) -> Callable[..., og.Run]:
    def run(*callbacks: og.Callback, **options: Any) -> og.Run:
        graph = og.load(npz)
        torch.manual_seed(0)
        model = og.nn.GCN(graph.num_features, 8, graph.num_classes)
        return og.train(graph, model, callbacks=[*callbacks], **{"epochs": 3, "progress": False, **options})

    return run


def test_what_a_callback_is_told(train: Callable[..., og.Run], tmp_path: Path) -> None:
    history = History()
    out = tmp_path / "run"
    run = train(history, out=out, schedule="step", step_size=1, gamma=0.5, eval_every=2, **BATCHES)
    hooks = [hook for hook, _ in history.told]
    epoch = ["on_step"] * 3
    assert hooks == [
        "on_start", *epoch, "on_epoch", *epoch, "on_evaluation", "on_epoch", *epoch, "on_epoch", "on_checkpoint",
        "on_end",
    ]  # fmt: skip
    [start], steps, epochs, [end] = (history.of(hook) for hook in ("on_start", "on_step", "on_epoch", "on_end"))
    assert (start.epoch, start.epochs, start.steps_per_epoch, start.workers, start.strategy) == (0, 3, 3, 1, "sampled")
    assert start.options["schedule"] == "step"
    assert [(step.epoch, step.step, step.total_steps) for step in steps[3:6]] == [(2, 1, 4), (2, 2, 5), (2, 3, 6)]
    assert [step.lr for step in steps] == [*[0.01] * 3, *[0.005] * 3, *[0.0025] * 3]
    assert [step.num_seeds for step in steps] == [50, 50, 20] * 3
    assert all(step.updated and step.seconds > 0 for step in steps)
    assert [report.loss for report in epochs] == run.loss
    assert [report.lr for report in epochs] == [0.01, 0.005, 0.0025]
    [evaluation] = history.of("on_evaluation")
    assert evaluation.is_best
    assert evaluation.score == epochs[1].val_score
    assert evaluation.scores
    assert history.of("on_checkpoint") == [CheckpointReport(epoch=3, step=0, path=out / "checkpoint/epoch-00000003.pt")]
    assert (end.epochs, end.stop_reason, end.best_epoch) == (3, "epochs", 2)
    assert end.test == run.summary["scores"]["test"]


def test_a_resumed_run_tells_where_it_goes_on(train: Callable[..., og.Run], tmp_path: Path) -> None:
    history = History()
    train(out=tmp_path / "run", epochs=2)
    train(history, out=tmp_path / "run", epochs=3, resume=True)
    assert history.of("on_start")[0].epoch == 2
    assert [report.epoch for report in history.of("on_epoch")] == [3]


@pytest.mark.usefixtures("pooled")
def test_callbacks_on_workers(train: Callable[..., og.Run], tmp_path: Path) -> None:
    history, ranks = History(), Ranks(tmp_path / "ranks")
    ranks.folder.mkdir()
    run = train(history, ranks, workers=2, **BATCHES)
    assert [report.loss for report in history.of("on_epoch")] == run.loss
    assert len(history.of("on_step")) == 9
    assert history.of("on_start")[0].workers == 2
    names = [path.name for path in ranks.folder.iterdir()]
    assert len(names) == 6
    assert len({name.partition("-")[0] for name in names}) == 2


@pytest.mark.usefixtures("pooled")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("hook", ["on_step", "on_epoch"])
def test_a_callback_ends_a_run(train: Callable[..., og.Run], tmp_path: Path, hook: str, workers: int) -> None:
    run = train(Stopping(hook), epochs=9, out=tmp_path / "run", workers=workers, **BATCHES)
    assert len(run.loss) == 2
    assert run.summary["stopped"] == "callback"
    assert (tmp_path / "run/checkpoint/epoch-00000002.pt").exists()
    assert len(train(epochs=3, out=tmp_path / "run", resume=True, **BATCHES).loss) == 3


@pytest.mark.parametrize("hook", HOOKS)
def test_a_callback_that_raises(train: Callable[..., og.Run], tmp_path: Path, hook: str) -> None:
    out = tmp_path / "run"
    history = History()
    with pytest.raises(og.TrainingError) as caught:
        train(Failing(hook), history, epochs=4, checkpoint_every=2, out=out, **BATCHES)
    assert str(caught.value).count("callback Failing." + hook) == 1
    assert "raised ValueError: no more of this" in caught.value.what
    assert 'raise ValueError("no more of this")' in caught.value.got  # the traceback
    assert isinstance(caught.value.__cause__, ValueError)
    found = sorted(path.name for path in (out / "checkpoint").glob("*")) if (out / "checkpoint").exists() else []
    expected = {
        "on_start": [],
        "on_step": ["epoch-00000001-step-00000001.pt"],
        "on_end": ["epoch-00000002.pt", "epoch-00000004.pt"],
    }
    assert found == expected.get(hook, ["epoch-00000002.pt"])
    if hook == "on_end":
        assert json.loads((out / "summary.json").read_text())["epochs"] == 4
    if found:
        straight = train(epochs=4, **BATCHES)
        assert train(epochs=4, out=out, resume=True, **BATCHES).loss == straight.loss


@pytest.mark.usefixtures("pooled")
@pytest.mark.parametrize("hook", ["on_start", "on_step", "on_epoch", "on_end"])
def test_a_callback_that_raises_on_a_worker(train: Callable[..., og.Run], tmp_path: Path, hook: str) -> None:
    out = tmp_path / "run"
    with pytest.raises(og.TrainingError) as caught:
        train(Failing(hook), epochs=4, out=out, workers=2, **BATCHES)
    assert f"callback Failing.{hook} raised ValueError: no more of this" in caught.value.what
    assert 'raise ValueError("no more of this")' in caught.value.got
    found = [path.name for path in (out / "checkpoint").glob("*")]
    assert found == {"on_start": [], "on_end": ["epoch-00000004.pt"]}.get(hook, ["epoch-00000002.pt"])


@pytest.mark.parametrize("given", [History, [History], [print], "History", None])
def test_what_is_no_callback(train: Callable[..., og.Run], npz: Path, given: Any) -> None:
    graph = og.load(npz)
    with pytest.raises(og.InputError, match="callbacks"):
        og.train(graph, og.nn.GCN(graph.num_features, 8, graph.num_classes), callbacks=given)


def test_a_model_that_is_told_of_has_the_weights_that_were_scored(train: Callable[..., og.Run]) -> None:
    class Weights(og.Callback):
        def __init__(self) -> None:
            self.scored: list[torch.Tensor] = []
            self.latest: list[torch.Tensor] = []
            self.final: torch.Tensor | None = None

        def _weight(self, report: Report) -> torch.Tensor:
            assert report.model is not None
            return next(report.model.parameters()).detach().clone()

        def on_evaluation(self, report: EvaluationReport) -> None:
            self.scored.append(self._weight(report))

        def on_epoch(self, report: EpochReport) -> None:
            self.latest.append(self._weight(report))

        def on_end(self, report: EndReport) -> None:
            self.final = self._weight(report)

    weights = Weights()
    run = train(weights, epochs=5, ema=0.9)
    assert torch.equal(weights.scored[0], weights.latest[0])  # the average begins with the first step
    assert not torch.equal(weights.scored[1], weights.latest[1])
    assert weights.final is not None
    assert torch.equal(weights.final, weights.scored[run.summary["best_epoch"] - 1])


@pytest.mark.usefixtures("pooled")
def test_what_cannot_be_pickled_stays_in_the_worker(train: Callable[..., og.Run]) -> None:
    class Locked(og.Callback):
        def on_start(self, report: StartReport) -> None:
            self.lock = threading.Lock()

    callback = Locked()
    with pytest.warns(UserWarning, match="stays in the worker: it cannot be pickled"):
        run = train(callback, workers=2)
    assert len(run.loss) == 3
    assert not vars(callback)
