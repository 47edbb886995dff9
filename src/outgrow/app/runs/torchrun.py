"""Training on workers that torchrun, or another launcher of a cluster, has started."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from outgrow.app.graph_parts import open_store_of_worker, reopen_part_of_worker
from outgrow.app.run_learning import learn_after_training
from outgrow.app.runs.config import read_load_options
from outgrow.app.runs.directory import RunDirectory, release_on_exit
from outgrow.app.runs.new_run import RunPlan
from outgrow.app.runs.progress import ProgressDisplay
from outgrow.app.runs.result import Run
from outgrow.app.runs.session import Session
from outgrow.app.runs.trained import describe_session
from outgrow.app.runs.trials import run_with_trials
from outgrow.app.runs.workers import GRAPH
from outgrow.core.errors import InputError
from outgrow.core.ledger import Kind
from outgrow.graph import datasets
from outgrow.graph.graph import Graph
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.store.reader import matches_store, open_store, write_store
from outgrow.nn.model import Model
from outgrow.planning.traffic import WorkerLayout
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.base import Strategy
from outgrow.training.config import TrainConfig

if TYPE_CHECKING:
    from outgrow.runtime.distributed.worker import WorkerContext


JOB = "job.json"
_SIGNAL_SECONDS = 2.0


class _TorchrunSpec(NamedTuple):
    """Run as worker 0 planned it, broadcast to the others.

    Attributes:
        graph: Data set, store or file, the same on every host.
        data_dir: Folder to look in first for the files of a named data set.
        load_options: How the graph is read.
        is_store: Whether the graph is a store already.
        model: Model to train.
        config: Options of the training loop.
        strategy: Training strategy.
        device: Device that workers compute on.
        resume: Whether to resume from the last checkpoint.
        data: Fingerprint of the graph's contents.
        grace_seconds: How long training may go on after a signal that asks to end it.
        rivals: Strategies to try for some steps.
    """

    graph: str
    data_dir: Path | None
    load_options: TableOptions
    is_store: bool
    model: Model
    config: TrainConfig
    strategy: Strategy
    device: str
    resume: bool
    data: Mapping[str, str]
    grace_seconds: float
    rivals: tuple[Strategy, ...]


def train_under_torchrun(
    plan_attempt: Callable[[bool], tuple[RunPlan, bool]],
    *,
    out: Path | None,
    heartbeat_seconds: float,
    open_display: Callable[[RunPlan], AbstractContextManager[ProgressDisplay]],
) -> Run:
    """Train as one worker of the group. Worker 0 plans, shows progress and writes files.

    Args:
        plan_attempt: Given whether an earlier start of this job has made the run directory, returns the plan of
            the run and whether to resume it; called on worker 0.
        out: The run directory; None for a new one.
        heartbeat_seconds: Seconds without a heartbeat after which a worker counts as dead.
        open_display: Opens the progress display; called on worker 0.

    Returns:
        The run; on workers other than 0 without a directory.
    """
    from outgrow.runtime.distributed.worker import run_under_torchrun

    def train_worker(context: WorkerContext) -> Run:
        # Only one process may choose: a plan depends on measurements, times and files, which differ by host.
        planned, resume = plan_attempt(_is_restart(context, out)) if context.comm.is_rank_zero else (None, False)
        if planned is not None:
            planned.directory.write_json(JOB, {"job": context.job})
        spec: _TorchrunSpec = context.comm.broadcast(
            None if planned is None else _make_spec(planned, resume), Kind.PARAMETERS
        )
        graph = _open_host_store(spec, None if planned is None else planned.graph, context.comm, context.folder)
        directory = None if planned is None else planned.directory
        with release_on_exit(directory), nullcontext() if planned is None else open_display(planned) as listener:
            session = Session(
                graph=graph,
                model=spec.model,
                config=spec.config,
                strategy=spec.strategy,
                directory=directory,
                callbacks=() if listener is None else (listener,),
                progress_callbacks=() if listener is None else (listener,),
                comm=context.comm,
                device=spec.device,
                data=spec.data,
                grace_seconds=spec.grace_seconds,
                rivals=spec.rivals,
            )
            return _end_session(session, run_with_trials(session, resume=spec.resume))

    return run_under_torchrun(train_worker, heartbeat_seconds=heartbeat_seconds)


def join_torchrun_session(
    session: Session,
    make_directory: Callable[[bool], RunDirectory | None],
    *,
    out: Path | None,
    heartbeat_seconds: float,
    resume: bool,
) -> Run:
    """Train as one worker of the group, each of which has already loaded the graph and built the model.

    Args:
        session: Session without directory and communicator.
        make_directory: Given whether an earlier start of this job has made the run directory, creates or opens
            it; called on worker 0.
        out: The run directory, or None.
        heartbeat_seconds: Seconds without a heartbeat after which a worker counts as dead.
        resume: Whether to resume from the last checkpoint.

    Raises:
        InputError: The workers have different graphs.
    """
    from outgrow.runtime.distributed.worker import run_under_torchrun

    def train_worker(context: WorkerContext) -> Run:
        comm = context.comm
        again = _is_restart(context, out)
        graph = open_same_graph(session.graph, comm)
        with release_on_exit(make_directory(again) if comm.is_rank_zero else None) as files:
            if files is not None:
                files.write_json(JOB, {"job": context.job})
            # A group that died before its first checkpoint starts from scratch.
            has_checkpoint = comm.broadcast((again or resume) and files is not None and files.has_checkpoint)
            # Worker 0 chose for all: the measurements of other hosts could lead to another strategy.
            chosen, rivals, data = comm.broadcast((session.strategy, session.rivals, session.data))
            joined = replace(
                session, graph=graph, comm=comm, directory=files, strategy=chosen, rivals=rivals, data=data
            )
            return _end_session(joined, run_with_trials(joined, resume=has_checkpoint))

    return run_under_torchrun(train_worker, heartbeat_seconds=heartbeat_seconds)


def _is_restart(context: WorkerContext, out: Path | None) -> bool:
    """Whether an earlier start of this job has made a run directory, so that this one goes on with it."""
    if context.attempt == 0 or not context.job or out is None:
        return False
    try:
        made_by = json.loads((out / JOB).read_text("utf-8"))["job"]
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or one that was being written
        return False
    return bool(made_by == context.job)


def _end_session(session: Session, run: Run) -> Run:
    """Learn from the run on worker 0; then wait for the signal that has ended it, if one has."""
    comm = session.comm
    if comm.is_rank_zero:
        layout = WorkerLayout(workers=comm.size, hosts=len({*comm.hosts}))
        message = learn_after_training(describe_session(session, run, layout))
        if message is not None:
            session.warn(message)
    return _wait_for_signal(run)


def _wait_for_signal(run: Run) -> Run:
    """After a signal that another worker has got, give torchrun time to send it to this one, too.

    To torchrun a worker that ends by itself has failed, or is done; one that ends by its signal has not.
    """
    if run.interrupted_by is not None:
        time.sleep(_SIGNAL_SECONDS)
    return run


def open_same_graph(graph: Graph, comm: Comm) -> Graph:
    """Return the graph that a worker trains on: its own part, if it is one of several. All workers together.

    Raises:
        InputError: The workers have different graphs.
    """
    opened = reopen_part_of_worker(graph, comm)
    validate_same_graph(opened, comm)
    return opened


def validate_same_graph(graph: Graph, comm: Comm) -> None:
    """Check that all workers have a graph of the same size. All workers together.

    Raises:
        InputError: They have not.
    """
    # Sizes tell most mistakes apart; comparing contents would mean to read every graph.
    held_out = tuple(map(len, graph.held_out_links or ()))
    key = () if graph.part is None else (graph.part.key,)
    sizes = comm.all_gather_object((graph.num_nodes, graph.num_edges, graph.num_features, *held_out, *key))
    if len(set(sizes)) > 1:
        raise InputError(
            "the workers have different graphs",
            needed="the same graph in every process",
            got=f"nodes, edges and features{' and held-out links' if held_out else ''} by worker: {sizes}",
            repair="load the same store or data set everywhere",
        )


def _make_spec(plan: RunPlan, resume: bool) -> _TorchrunSpec:
    config = plan.directory.config
    data_dir = config.get("data_dir")
    return _TorchrunSpec(
        graph=config["graph"],
        data_dir=None if data_dir is None else Path(data_dir),
        load_options=read_load_options(config),
        is_store=matches_store(plan.graph),
        model=plan.model,
        config=plan.config,
        strategy=plan.strategy,
        device=plan.workers.device,
        resume=resume,
        data=config.get("data", {}),
        grace_seconds=plan.workers.grace_seconds,
        rivals=plan.rivals,
    )


def _open_host_store(spec: _TorchrunSpec, loaded: Graph | None, comm: Comm, folder: Path) -> Graph:
    """Map the graph from one store per host, which the first worker of the host writes if there is none."""
    if spec.is_store:
        return open_store_of_worker(Path(spec.graph), comm)
    # Hosts may share no disk, so each gets a store; its workers map the same pages of memory.
    if comm.hosts.index(comm.hosts[comm.rank]) == comm.rank:
        graph = loaded or datasets.load_graph(spec.graph, data_dir=spec.data_dir, options=spec.load_options)
        write_store(graph, folder / GRAPH)
    # The others must not open the store before it is complete.
    comm.barrier()
    return open_store(folder / GRAPH)
