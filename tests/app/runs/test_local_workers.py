"""What comes back from the worker that leads."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from outgrow.app.runs.local_workers import TrainingJob, run_session
from outgrow.app.runs.session import Session
from outgrow.app.runs.workers import GRAPH, Workers
from outgrow.graph.store.reader import write_store
from outgrow.runtime.distributed import launch
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Execution, Problem, Step, Strategy
from outgrow.strategies.full import Full
from outgrow.training.config import TrainConfig
from planted import Planted, model_of, planted
from suites.sessions import graph_of


class Large(Strategy):
    """`full`, but as if rows of all nodes did not fit into memory."""

    name, exact = "large", True

    def prepare(self, problem: Problem) -> Execution:
        return OutOfMemory(Full().prepare(problem))


@dataclass
class OutOfMemory:
    full: Execution
    in_memory: bool = False

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        return self.full.steps(epoch, first)

    def inference(self) -> Iterator[tuple[int, torch.Tensor]]:
        return self.full.inference()

    def close(self) -> None:
        self.full.close()


class Second(SingleProcessComm):
    """A worker that does not lead."""

    is_rank_zero = False


@pytest.fixture(scope="module")
def world() -> Planted:
    return planted()


def place_in(folder: Path, world: Planted, comm: SingleProcessComm) -> WorkerContext:
    write_store(graph_of(world), folder / GRAPH)
    return WorkerContext(
        comm=comm, folder=folder, attempt=0, send_message=lambda message: None, should_stop=lambda: False
    )


def job(strategy: Strategy) -> TrainingJob:
    model, config = model_of("sage", 0).float(), TrainConfig(epochs=2)
    return TrainingJob(
        store=None, model=model, config=config, strategy=strategy, directory=None, resume=False, needs_checkpoints=False
    )


@pytest.mark.parametrize("strategy", [Full(), Large()], ids=lambda strategy: strategy.name)
def test_the_leader_reports_with_and_without_logits(world: Planted, tmp_path: Path, strategy: Strategy) -> None:
    report = job(strategy)(place_in(tmp_path, world, SingleProcessComm()))
    assert report is not None
    assert (report.logits is None) == (strategy.name == "large")
    assert report.summary["test_accuracy"] > 0
    assert report.state_dict.keys() == model_of("sage", 0).state_dict().keys()


def test_others_do_not_report(world: Planted, tmp_path: Path) -> None:
    assert job(Full())(place_in(tmp_path, world, Second())) is None


def test_a_run_without_logits_has_the_trained_model(world: Planted, tmp_path: Path) -> None:
    trained: dict[str, torch.Tensor] = {}

    def run_workers(job: TrainingJob, number: int, **options: Any) -> list[Any]:
        """As two workers would answer."""
        options["prepare"](tmp_path)
        place = WorkerContext(
            comm=SingleProcessComm(),
            folder=tmp_path,
            attempt=0,
            send_message=lambda message: None,
            should_stop=lambda: False,
        )
        report = job(place)
        assert report is not None
        trained.update({name: value.clone() for name, value in report.state_dict.items()})
        return [report, None]

    session = Session(
        graph=graph_of(world), model=model_of("sage", 0).float(), config=TrainConfig(epochs=2), strategy=Large()
    )
    with patch.object(launch, "run_workers", run_workers):
        run = run_session(session, Workers(number=2), resume=False, log=lambda what: None)
    assert run.logits is None
    assert all(torch.equal(value, trained[name]) for name, value in run.model.state_dict().items())


def test_a_worker_in_a_process_of_its_own_tells_before_memory_is_full(
    world: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is under way; what it prints itself nobody would see."""
    monkeypatch.setattr("outgrow.app.runs.memory_monitor._OF_MACHINE", 0.0)
    monkeypatch.setattr(
        "outgrow.runtime.system.process_memory._INTERVAL_SECONDS", 0.0001
    )  # the run may be over in less than it is
    told: list[object] = []
    assert job(Full())(replace(place_in(tmp_path, world, Second()), send_message=told.append)) is None
    [warning] = [message for message in told if isinstance(message, str)]
    assert warning.startswith("warning: worker 0 holds")
    assert "--memory" in warning
