"""Training in this process or in local worker processes, and the job and result sent between them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from outgrow.app.graph_parts import open_store_of_worker
from outgrow.app.run_learning import learn_after_training
from outgrow.app.runs.directory import RunDirectory
from outgrow.app.runs.result import Run
from outgrow.app.runs.session import Session
from outgrow.app.runs.signals import GRACE_SECONDS, catch_interruption
from outgrow.app.runs.trained import describe_session
from outgrow.app.runs.trials import run_with_trials
from outgrow.app.runs.workers import GRAPH, Workers
from outgrow.core.errors import InputError
from outgrow.graph.store.reader import matches_store, write_store
from outgrow.nn.edge_tasks import EdgeTask
from outgrow.nn.model import Model
from outgrow.nn.tasks import NodeTask
from outgrow.planning.traffic import WorkerLayout
from outgrow.runtime.distributed.job_files import serialize_by_value
from outgrow.strategies.base import Strategy
from outgrow.training.callbacks import Callback, EpochReport, detach
from outgrow.training.config import TrainConfig
from outgrow.training.progress_events import ProgressEvent

if TYPE_CHECKING:
    from torchmetrics import Metric

    from outgrow.runtime.distributed.worker import WorkerContext


class WorkerResult(NamedTuple):
    """Result of worker 0 after training; ``logits`` as in `Run`, ``callbacks`` the pickled ones of the user."""

    summary: dict[str, Any]
    logits: Tensor | None
    state_dict: dict[str, Tensor]
    callbacks: bytes | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingJob:
    """Task that every worker process runs.

    Attributes:
        store: Graph store; None for the one in the workers' scratch folder.
        model: Model to train.
        config: Options of the training loop.
        strategy: Training strategy.
        device: Device that workers compute on.
        directory: Run directory; None to keep no files.
        resume: Whether to resume from the last checkpoint.
        needs_checkpoints: Whether to write checkpoints to the scratch folder if there is no run directory.
        data: Fingerprint of the graph's contents.
        grace_seconds: How long training may go on after a signal that asks to end it.
        callbacks: Callbacks of the user.
        metrics: Metrics that were given as objects, by name.
        task: Task of a model of nodes or edges; None for the one that the options of the loop name.
        rivals: Strategies to try for some steps: see `Session`.
    """

    store: Path | None
    model: Model
    config: TrainConfig
    strategy: Strategy
    directory: Path | None
    resume: bool
    needs_checkpoints: bool
    device: str = "auto"
    data: Mapping[str, str] = field(default_factory=dict)
    grace_seconds: float = GRACE_SECONDS
    callbacks: tuple[Callback, ...] = ()
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    task: NodeTask | EdgeTask | None = None
    rivals: tuple[Strategy, ...] = ()

    def __call__(self, context: WorkerContext) -> WorkerResult | None:
        """Train as one worker; return the result on worker 0, None on the others."""
        directory = RunDirectory(self.directory or context.folder / "run")
        forwarder = _EventForwarder(context.send_message)
        session = Session(
            graph=open_store_of_worker(self.store or context.folder / GRAPH, context.comm),
            model=self.model,
            config=self.config,
            strategy=self.strategy,
            directory=directory if self.directory or self.needs_checkpoints else None,
            callbacks=(forwarder,),
            progress_callbacks=(forwarder,),
            user_callbacks=self.callbacks,
            comm=context.comm,
            device=self.device,
            should_stop=context.should_stop,
            warn=context.send_message,
            data=self.data,
            grace_seconds=self.grace_seconds,
            metrics=self.metrics,
            task=self.task,
            rivals=self.rivals,
        )
        # Worker 0 decides for all. The attempt is the same everywhere, so either all workers take part in
        # the broadcast or none does.
        again = context.attempt > 0 and context.comm.broadcast(directory.has_checkpoint)
        run = run_with_trials(session, resume=self.resume or again)
        if not context.comm.is_rank_zero:
            return None
        kept = _pack_callbacks(self.callbacks, context.send_message)
        return WorkerResult(run.summary, run.logits, self.model.state_dict(), kept)


def _pack_callbacks(callbacks: tuple[Callback, ...], warn: Callable[[str], None]) -> bytes | None:
    """Pickle callbacks with what they have collected; None if that is not possible."""
    if not callbacks:
        return None
    try:
        return serialize_by_value(callbacks)
    except Exception as error:  # what objects of users raise when they are pickled
        warn(f"warning: what the callbacks hold stays in the worker: it cannot be pickled ({type(error).__name__})")
        return None


class _EventForwarder(Callback):
    """Callback that sends epoch reports and progress events to the process that started the workers."""

    def __init__(self, send_message: Callable[[object], None]) -> None:
        self.send_message = send_message

    def on_epoch(self, report: EpochReport) -> None:
        self.send_message(detach(report))

    def on_progress(self, event: ProgressEvent) -> None:
        self.send_message(event)


def run_session(session: Session, workers: Workers, *, resume: bool, log: Callable[[str], None]) -> Run:
    """Train with one worker in this process, or with several in processes of their own.

    Args:
        session: Session with a `SingleProcessComm`; several workers get their own communicators.
        workers: Number of workers, and when to restart them.
        resume: Whether to resume from the last checkpoint.
        log: Called with a message when workers are restarted, or when one of them warns.

    Raises:
        InputError: A worker cannot use its input.
        WorkerError: A worker has died, and no restarts are left.
    """
    try:
        run = (
            _run_in_process(session, resume) if workers.number == 1 else _run_in_workers(session, workers, resume, log)
        )
    except InputError:
        # Some input is only found to be unusable once training starts; a resumed run keeps its files.
        if session.directory is not None and not resume:
            session.directory.discard_unstarted()
        raise
    message = learn_after_training(describe_session(session, run, WorkerLayout(workers=workers.number)))
    if message is not None:
        log(message)
    return run


def _run_in_process(session: Session, resume: bool) -> Run:
    from outgrow.runtime.system.sigbus import explain_bus_errors

    with explain_bus_errors():
        return run_with_trials(session, resume=resume)


def _run_in_workers(session: Session, workers: Workers, resume: bool, log: Callable[[str], None]) -> Run:
    from outgrow.runtime.distributed.launch import run_workers

    graph = session.graph
    directory = session.directory
    job = TrainingJob(
        # A graph loaded from a store and not changed since needs no copy: workers map the store itself.
        store=graph.store if matches_store(graph) else None,
        model=session.model,
        config=session.config,
        strategy=session.strategy,
        directory=None if directory is None else directory.path.resolve(),
        resume=resume,
        needs_checkpoints=workers.max_restarts > 0,
        device=session.device,
        data=session.data,
        grace_seconds=session.grace_seconds,
        callbacks=session.user_callbacks,
        metrics=session.metrics,
        task=session.task,
        rivals=session.rivals,
    )
    # Signals reach only this process. It asks the workers to stop after an epoch, so that they write a
    # checkpoint and a summary.
    with catch_interruption(session.grace_seconds) as interruption:
        reports = run_workers(
            job,
            workers.number,
            heartbeat_seconds=workers.heartbeat_seconds,
            restarts=workers.max_restarts,
            # Written once and mapped by all workers, whose memory then holds the graph only once.
            prepare=lambda folder: None if job.store else write_store(graph, folder / GRAPH),
            on_message=lambda message: _dispatch_message(message, session, log),
            should_stop=interruption.is_set,
        )
    (summary, logits, state, collected), *_ = (report for report in reports if report)
    # Workers trained copies of the model; the caller expects its own one trained.
    session.model.load_state_dict(state)
    # So did they copies of the callbacks.
    if collected is not None:
        for callback, trained in zip(session.user_callbacks, pickle.loads(collected), strict=True):
            vars(callback).update(vars(trained))
    path = None if directory is None else directory.path
    number = interruption.number if summary["stopped"] == "interrupted" else None
    return Run(model=session.model, logits=logits, summary=summary, directory=path, interrupted_by=number)


def _dispatch_message(message: object, session: Session, log: Callable[[str], None]) -> None:
    if isinstance(message, EpochReport):
        for listener in session.callbacks:
            listener.on_epoch(message)
    elif isinstance(message, ProgressEvent):
        for watcher in session.progress_callbacks:
            watcher.on_progress(message)
    else:
        # Warnings are strings; a restart of the workers is an event whose text is the message.
        log(str(message))
