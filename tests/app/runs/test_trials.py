"""Trials: the first steps are trained by several strategies, nothing is lost, and the fastest goes on."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import outgrow as og
from outgrow.app.auto_strategy import StrategyChoice
from outgrow.app.runs import session as session_module
from outgrow.app.runs import trials
from outgrow.app.runs.local_workers import run_session
from outgrow.app.runs.result import Run
from outgrow.app.runs.session import Session
from outgrow.app.runs.trials import list_rivals
from outgrow.app.runs.workers import Workers
from outgrow.core.errors import InputError
from outgrow.graph.graph import Graph
from outgrow.strategies.base import Strategy
from outgrow.training.callbacks import Callback, EpochReport
from outgrow.training.config import TrainConfig
from outgrow.training.progress_events import ProgressEvent
from outgrow.training.strategy_trial import adopt_trainer_state, try_strategy
from outgrow.training.trainer import Trainer

WHOLE = (og.Full(), og.TensorParallel(), og.Full(partition="hash"))
BATCHED = (og.Sampled(), og.SplitParallel(), og.Migrate(move_model=True))


class Epochs(Callback):
    """Keeps the numbers of the epochs that are reported, and notes."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.notes: list[str] = []

    def on_epoch(self, report: EpochReport) -> None:
        self.seen.append(report.epoch)

    def on_progress(self, event: ProgressEvent) -> None:
        self.notes += [event.note] if event.note else []


def _run(graph: Graph, strategies: tuple[Strategy, ...], workers: int, **options: Any) -> tuple[Run, Epochs]:
    """Train; return the run, and what was told of it."""
    # Adam would make much of the rounding of small gradients, which differs by strategy.
    options = {"optimizer": "sgd", "momentum": 0.9, "lr": 0.05, **options}
    config = TrainConfig().with_options(epochs=9, seed=3, **options)
    torch.manual_seed(0)
    model = og.nn.SAGE(graph.num_features, 8, graph.num_classes, dropout=0.3)
    epochs = Epochs()
    session = Session(
        graph=graph,
        model=model,
        config=config,
        strategy=strategies[0],
        rivals=strategies[1:],
        callbacks=(epochs,),
        progress_callbacks=(epochs,),
    )
    return run_session(session, Workers(number=workers), resume=False, log=print), epochs


@pytest.mark.parametrize(
    ("strategies", "options"),
    [
        (WHOLE, {}),
        (BATCHED, {"batch_size": 8, "fanout": (3, 3)}),
        (BATCHED[:2], {"batch_size": 64, "fanout": (3, 3), "accumulate": 2}),
    ],
    ids=("whole", "steps-of-an-epoch", "epochs-of-batches"),
)
def test_a_run_with_trials_is_the_run_without(
    strategies: tuple[Strategy, ...], options: dict[str, Any], npz: Path
) -> None:
    """Losses, scores and parameters are those of one strategy, and each epoch is reported once."""
    graph = og.load(npz)
    plain, _ = _run(graph, strategies[:1], 2, **options)
    tried, told = _run(graph, strategies, 2, **options)
    assert told.seen == list(range(1, 10))
    assert tried.summary["loss"] == pytest.approx(plain.summary["loss"], rel=1e-4)
    for one, other in zip(plain.model.parameters(), tried.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    shown = tried.summary["trials"]
    assert [each["strategy"] for each in shown] == [each.name for each in strategies]
    fastest = min(shown, key=lambda each: each["step_seconds"])
    assert tried.summary["strategy"] == fastest["strategy"]
    assert tried.summary["strategy_options"] == fastest["options"]
    assert plain.summary["trials"] == []
    assert any("goes on by strategy" in note for note in told.notes)
    # Where two are of one name, their options tell them apart.
    assert any("full (partition=hash)" in note for note in told.notes) == (strategies == WHOLE)


def test_the_fastest_goes_on(monkeypatch: pytest.MonkeyPatch, npz: Path, tmp_path: Path) -> None:
    """Whatever is slow in its trial is left, and the files of the run name what it has gone on by."""
    seconds = {"full": 2.0, "offload": 1.0}
    real = trials.try_strategy

    def pretend(trainer: Any, strategy: Strategy) -> float:
        real(trainer, strategy)
        return seconds[strategy.name]

    monkeypatch.setattr(trials, "try_strategy", pretend)
    graph = og.load(npz)
    model = og.nn.GCN(graph.num_features, 4, graph.num_classes)
    found = og.train(graph, model, epochs=8, out=tmp_path / "run", progress=False, strategy="full")
    assert found.summary["strategy"] == "full"
    monkeypatch.setattr(trials, "WORTH_SECONDS", 0.0)
    monkeypatch.setattr(
        "outgrow.app.training_request.select_strategy",
        lambda *_: StrategyChoice(og.Full(), "planned", (og.Offload(chunks=2),), 1.0),
    )
    run = og.train(graph, model, epochs=8, out=tmp_path / "tried", progress=False)
    assert run.summary["strategy"] == "offload"
    record = json.loads((tmp_path / "tried" / "config.json").read_text())
    assert record["strategy"]["name"] == "offload"
    lines = (tmp_path / "tried" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == list(range(1, 9))
    untried = og.train(graph, model, epochs=8, progress=False, trial=False)
    assert untried.summary["trials"] == []
    again = og.train(graph, model, epochs=10, out=tmp_path / "tried", progress=False, resume=True)
    assert len(again.summary["loss"]) == 10


def test_what_is_tried(npz: Path) -> None:
    graph = og.load(npz)
    model = og.nn.GCN(graph.num_features, 4, graph.num_classes)
    rivals = (*WHOLE, og.Offload(chunks=2))
    choice = StrategyChoice(og.Full(), "planned", rivals, 10.0)
    long, short = TrainConfig(epochs=100), TrainConfig(epochs=5)
    assert list_rivals(choice, model, long) == WHOLE
    assert list_rivals(choice, model, short) == ()
    assert list_rivals(choice._replace(epoch_seconds=0.1), model, long) == ()
    assert list_rivals(choice, model, long, [object()]) == ()


@pytest.mark.parametrize("given", [{"trial": 1}, {"trial": True, "strategy": "full"}])
def test_an_option_that_tries_nothing_is_refused(given: dict[str, Any], npz: Path) -> None:
    graph = og.load(npz)
    with pytest.raises(InputError, match="trial"):
        og.train(graph, og.nn.GCN(graph.num_features, 4, graph.num_classes), progress=False, **given)


def test_a_signal_ends_trials(npz: Path) -> None:
    """What was asked to stop tries no further strategy, and stops after an epoch."""
    graph = og.load(npz)
    session = Session(
        graph=graph,
        model=og.nn.GCN(graph.num_features, 4, graph.num_classes),
        config=TrainConfig(epochs=50),
        strategy=og.Full(),
        rivals=(og.Offload(chunks=2),),
        should_stop=lambda: True,
    )
    run = run_session(session, Workers(number=1), resume=False, log=print)
    assert [each["strategy"] for each in run.summary["trials"]] == ["full"]
    assert (run.summary["stopped"], run.summary["epochs"]) == ("interrupted", 3)


def state_left_behind() -> AbstractContextManager[object]:
    """Each trial, and the run after them, begins anew."""
    return patch.object(session_module, "adopt_trainer_state", lambda trainer, state: None)


def optimizer_left_behind() -> AbstractContextManager[object]:
    """A trial goes on with the parameters of the one before, but not with the momentum."""

    def adopt(trainer: Trainer, state: dict[str, Any]) -> None:
        whole = {**state, "optimizer": trainer.optimizer.state_dict()}
        adopt_trainer_state(trainer, whole)

    return patch.object(session_module, "adopt_trainer_state", adopt)


def an_epoch_skipped() -> AbstractContextManager[object]:
    """A trial counts an epoch that it has not trained."""

    def try_epochs(trainer: Trainer, strategy: Strategy) -> float:
        seconds = try_strategy(trainer, strategy)
        trainer.progress.finished_epochs += 1
        return seconds

    return patch.object(trials, "try_strategy", try_epochs)


MUTANTS = {each.__name__: each for each in (state_left_behind, optimizer_left_behind, an_epoch_skipped)}


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(mutant: str, npz: Path) -> None:
    graph, strategies = og.load(npz), (og.Full(), og.Offload(chunks=2))
    plain, _ = _run(graph, strategies[:1], 1)
    assert _is_the_run(_run(graph, strategies, 1)[0], plain)
    with MUTANTS[mutant]():
        try:
            assert not _is_the_run(_run(graph, strategies, 1)[0], plain)
        except (AttributeError, IndexError, ValueError):  # what does not go together may not run at all
            return


def _is_the_run(run: Run, plain: Run) -> bool:
    return run.summary["loss"] == pytest.approx(plain.summary["loss"], rel=1e-4)
