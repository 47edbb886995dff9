"""One session on several workers: what travels to them, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from outgrow.app.runs.directory import RunDirectory
from outgrow.app.runs.result import Run
from outgrow.app.runs.session import Session, interrupt
from outgrow.app.runs.workers import Workers
from outgrow.core.errors import InputError
from outgrow.graph.store.reader import is_as_stored, open_store, write_store
from outgrow.nn.model import Model
from outgrow.strategies.base import Strategy
from outgrow.training.config import TrainConfig
from outgrow.training.progress_events import Moment
from outgrow.training.trainer import EpochReport

if TYPE_CHECKING:
    from outgrow.runtime.distributed.worker import Workplace


GRAPH = "graph"


class Report(NamedTuple):
    """What the worker that leads says after training; ``logits`` as in `Run`."""

    summary: dict[str, Any]
    logits: Tensor | None
    model: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """What every worker is given.

    Attributes:
        store: Store of the graph; None for the one in the workers' scratch folder.
        model: What to train.
        config: How long and how hard.
        strategy: How.
        device: What workers compute on.
        directory: Where files go; None for nowhere.
        resume: Whether to go on from the last checkpoint.
        may_restart: Whether checkpoints are needed although files go nowhere.
    """

    store: Path | None
    model: Model
    config: TrainConfig
    strategy: Strategy
    directory: Path | None
    resume: bool
    may_restart: bool
    device: str = "auto"

    def __call__(self, place: Workplace) -> Report | None:
        """Train on one worker; the one that leads reports."""
        directory = RunDirectory(self.directory or place.folder / "run")
        teller = _Teller(place.tell)
        session = Session(
            graph=open_store(self.store or place.folder / GRAPH),
            model=self.model,
            config=self.config,
            strategy=self.strategy,
            directory=directory if self.directory or self.may_restart else None,
            listeners=(teller,),
            watchers=(teller,),
            comm=place.comm,
            device=self.device,
            stop=place.stop_asked,
            warn=place.tell,
        )
        again = place.attempt > 0 and place.comm.broadcast(directory.has_checkpoint)
        run = session.run(resume=self.resume or again)
        return Report(run.summary, run.logits, self.model.state_dict()) if place.comm.leads else None


class _Teller:
    """Passes reports and moments on to the process that started the workers."""

    def __init__(self, tell: Callable[[object], None]) -> None:
        self.tell = tell

    def epoch(self, report: EpochReport) -> None:
        self.tell(report)

    def moment(self, moment: Moment) -> None:
        self.tell(moment)


def run_session(session: Session, workers: Workers, *, resume: bool, say: Callable[[str], None]) -> Run:
    """Train on as many workers as asked for: in this process if that is one, else in processes of their own.

    Args:
        session: What to train; in this process it has no line to others.
        workers: How many workers.
        resume: Whether to go on from the last checkpoint.
        say: Told, in a sentence, when workers are started again.

    Raises:
        InputError: What a worker cannot use.
        WorkerError: A worker has died, and so have those that took its place.
    """
    try:
        return _here(session, resume) if workers.number == 1 else _in_processes(session, workers, resume, say)
    except InputError:
        if session.directory is not None and not resume:
            session.directory.forget()
        raise


def _here(session: Session, resume: bool) -> Run:
    from outgrow.runtime.system.sigbus import told_of_bus_errors

    with told_of_bus_errors():
        return session.run(resume=resume)


def _in_processes(session: Session, workers: Workers, resume: bool, say: Callable[[str], None]) -> Run:
    from outgrow.runtime.distributed.launch import run_workers

    graph, directory = session.graph, session.directory
    job = Job(
        store=graph.store if is_as_stored(graph) else None,
        model=session.model,
        config=session.config,
        strategy=session.strategy,
        directory=None if directory is None else directory.path.resolve(),
        resume=resume,
        may_restart=workers.max_restarts > 0,
        device=session.device,
    )
    with interrupt() as interrupted:
        reports = run_workers(
            job,
            workers.number,
            heartbeat_seconds=workers.heartbeat_seconds,
            restarts=workers.max_restarts,
            prepare=lambda folder: None if job.store else write_store(graph, folder / GRAPH),
            hear=lambda message: _hear(message, session, say),
            stop=interrupted.is_set,
        )
    (summary, logits, state), *_ = (report for report in reports if report)
    session.model.load_state_dict(state)
    path = None if directory is None else directory.path
    return Run(model=session.model, logits=logits, summary=summary, directory=path)


def _hear(message: object, session: Session, say: Callable[[str], None]) -> None:
    if isinstance(message, EpochReport):
        for listener in session.listeners:
            listener.epoch(message)
    elif isinstance(message, Moment):
        for watcher in session.watchers:
            watcher.moment(message)
    else:
        say(str(message))
