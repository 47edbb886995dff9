"""A session on the workers that torchrun, or a cluster's own launcher, has started."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from outgrow.app.runs.directory import RunDirectory, release_on_exit
from outgrow.app.runs.local_workers import GRAPH
from outgrow.app.runs.new_run import RunPlan
from outgrow.app.runs.progress import ProgressDisplay
from outgrow.app.runs.result import Run
from outgrow.app.runs.session import Session
from outgrow.core.errors import InputError
from outgrow.core.ledger import Kind
from outgrow.graph import datasets
from outgrow.graph.graph import Graph
from outgrow.graph.store.reader import matches_store, open_store, write_store
from outgrow.nn.model import Model
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.base import Strategy
from outgrow.training.config import TrainConfig

if TYPE_CHECKING:
    from outgrow.runtime.distributed.worker import WorkerContext


class _TorchrunSpec(NamedTuple):
    """What the worker that leads has planned, for the others.

    Attributes:
        graph: A data set, a store or a file: the same on every host.
        data_dir: Folder to look in first for the files of a named data set.
        is_store: Whether the graph is a store already.
        model: What to train.
        config: How long and how hard.
        strategy: How.
        device: What workers compute on.
        resume: Whether to go on from the last checkpoint.
    """

    graph: str
    data_dir: Path | None
    is_store: bool
    model: Model
    config: TrainConfig
    strategy: Strategy
    device: str
    resume: bool


def train_under_torchrun(
    plan_attempt: Callable[[int], tuple[RunPlan, bool]],
    *,
    heartbeat_seconds: float,
    open_display: Callable[[RunPlan], AbstractContextManager[ProgressDisplay]],
) -> Run | None:
    """Train as one of the group's workers. The first one plans, shows progress and writes files.

    Args:
        plan_attempt: Plans the run, given how often the group was started again, and says whether a run goes
            on; called by the worker that leads.
        heartbeat_seconds: Longest silence of a worker.
        open_display: Opens the display of progress; called by the worker that leads.

    Returns:
        The run on the worker that leads; None on the others.
    """
    from outgrow.runtime.distributed.worker import run_under_torchrun

    def train_worker(context: WorkerContext) -> Run | None:
        planned, resume = plan_attempt(context.attempt) if context.comm.is_rank_zero else (None, False)
        order: _TorchrunSpec = context.comm.broadcast(
            None if planned is None else _make_spec(planned, resume), Kind.PARAMETERS
        )
        graph = _open_host_store(order, None if planned is None else planned.graph, context.comm, context.folder)
        directory = None if planned is None else planned.directory
        with release_on_exit(directory), nullcontext() if planned is None else open_display(planned) as listener:
            session = Session(
                graph=graph,
                model=order.model,
                config=order.config,
                strategy=order.strategy,
                directory=directory,
                callbacks=() if listener is None else (listener,),
                progress_callbacks=() if listener is None else (listener,),
                comm=context.comm,
                device=order.device,
            )
            run = session.run(resume=order.resume)
        return None if planned is None else run

    return run_under_torchrun(train_worker, heartbeat_seconds=heartbeat_seconds)


def join_torchrun_session(
    session: Session, make_directory: Callable[[bool], RunDirectory | None], *, heartbeat_seconds: float, resume: bool
) -> Run:
    """Train as one of the group's workers, each of which has the graph and the model at hand.

    Args:
        session: What to train.
        make_directory: Makes or opens the run's directory, given whether the group was started again; called
            by the worker that leads.
        heartbeat_seconds: Longest silence of a worker.
        resume: Whether to go on from the last checkpoint.

    Raises:
        InputError: The workers have different graphs.
    """
    from outgrow.runtime.distributed.worker import run_under_torchrun

    def train_worker(context: WorkerContext) -> Run:
        comm, again = context.comm, context.attempt > 0
        _validate_same_graph(session.graph, comm)
        with release_on_exit(make_directory(again) if comm.is_rank_zero else None) as files:
            goes_on = comm.broadcast(again and files is not None and files.has_checkpoint)
            chosen = comm.broadcast(session.strategy)  # hosts may have been measured differently
            return replace(session, comm=comm, directory=files, strategy=chosen).run(resume=resume or goes_on)

    return run_under_torchrun(train_worker, heartbeat_seconds=heartbeat_seconds)


def _validate_same_graph(graph: Graph, comm: Comm) -> None:
    sizes = comm.all_gather_object((graph.num_nodes, graph.num_edges, graph.num_features))
    if len(set(sizes)) > 1:
        raise InputError(
            "the workers have different graphs",
            needed="the same graph in every process",
            got=f"nodes, edges and features by worker: {sizes}",
            repair="load the same store or data set everywhere",
        )


def _make_spec(plan: RunPlan, resume: bool) -> _TorchrunSpec:
    config = plan.directory.config
    data_dir = config.get("data_dir")
    return _TorchrunSpec(
        graph=config["graph"],
        data_dir=None if data_dir is None else Path(data_dir),
        is_store=matches_store(plan.graph),
        model=plan.model,
        config=plan.config,
        strategy=plan.strategy,
        device=plan.workers.device,
        resume=resume,
    )


def _open_host_store(spec: _TorchrunSpec, loaded: Graph | None, comm: Comm, folder: Path) -> Graph:
    """The graph, mapped by all workers of a host from one store; the first of them writes it if there is none."""
    if spec.is_store:
        return open_store(Path(spec.graph))
    if comm.hosts.index(comm.hosts[comm.rank]) == comm.rank:
        graph = loaded or datasets.load_graph(spec.graph, data_dir=spec.data_dir)
        write_store(graph, folder / GRAPH)
    comm.barrier()
    return open_store(folder / GRAPH)
