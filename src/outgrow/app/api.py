"""The Python interface: `load`, `plan`, `train`, `predict`, `embed`, `convert`."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from outgrow._version import __version__
from outgrow.app.auto_strategy import take_trial_option
from outgrow.app.compatibility import validate_argument_types
from outgrow.app.graph_sources import make_table_options, reader_for_object, reader_for_path
from outgrow.app.messages import log_warning
from outgrow.app.node_outputs import compute_embeddings, compute_logits
from outgrow.app.output_request import Nodes, make_output_request
from outgrow.app.own_loop import require_not_launched
from outgrow.app.plan.compilation import TrainedProblem, plan_with_compilation
from outgrow.app.plan.machine_profiles import select_machine
from outgrow.app.plan.question import PlanSite, candidate_layouts, query_for_graph, validate_planned_problem
from outgrow.app.plan.table import PlanReport
from outgrow.app.runs.config import record_source
from outgrow.app.runs.data import graph_record
from outgrow.app.runs.directory import RunDirectory, release_on_exit
from outgrow.app.runs.local_workers import run_session
from outgrow.app.runs.progress import make_progress_display
from outgrow.app.runs.python_model import describe_python_model
from outgrow.app.runs.python_run import create_run_directory, open_run_directory, resolve_resume
from outgrow.app.runs.result import Run
from outgrow.app.runs.session import Session
from outgrow.app.runs.signals import raise_as_signal
from outgrow.app.runs.torchrun import join_torchrun_session
from outgrow.app.runs.trials import list_rivals
from outgrow.app.runs.workers import Workers, resolve_workers
from outgrow.app.targets import select_graph_targets
from outgrow.app.training_request import make_training_request
from outgrow.core.arguments import check_arguments
from outgrow.core.validation import validate_positive, validate_types
from outgrow.graph import datasets
from outgrow.graph.alignment import describe_schema
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.builders.to_store import convert_to_store as write
from outgrow.graph.graph import Graph
from outgrow.nn.model import Model
from outgrow.planning.traffic import WorkerLayout
from outgrow.runtime.system.environment import (
    available_cores,
    is_torch_preloaded,
    is_torchrun_leader,
    torchrun_world_size,
)
from outgrow.strategies.base import Strategy
from outgrow.training.callbacks import require_callbacks
from outgrow.training.config import TrainConfig

Option = TypeVar("Option", bool, str)


@check_arguments()
def load(
    source: object, *, data_dir: str | Path | None = None, undirected: bool | None = None, **options: object
) -> Graph:
    """Load a graph.

    Args:
        source: Name of a data set (``outgrow datasets`` lists them), a store directory, a graph file or folder; a
            ``Data`` or ``HeteroData`` of PyG, a ``DGLGraph``, a data set of either or a list of one; a NetworkX graph,
            whose names of nodes become ``graph.ids``; a SciPy sparse matrix; or tables (of pandas, pyarrow or
            polars): of edges, ``{"nodes": frame, "edges": frame}``, or, of several types,
            ``{"nodes": {"paper": frame}, "edges": {("paper", "cites", "paper"): frame}}``.
        data_dir: Folder to look in first for the files of a named data set.
        undirected: Whether to add the missing reverse of every edge; None for the convention of the data set.
        **options: Options for tables: the fields of `TableOptions`, such as ``columns={"src": "from_id"}``.

    Returns:
        The graph; memory-mapped if it comes from a store.

    Raises:
        InputError: There is no such data set, or a file is unavailable or broken.
    """
    made = make_table_options(options, "og.load")
    if isinstance(source, str | Path):
        folder = None if data_dir is None else Path(data_dir)
        return datasets.load_graph(str(source), data_dir=folder, undirected=undirected, options=made)
    return assemble_graph(reader_for_object(source, made), undirected=bool(undirected))


@check_arguments(unchecked=("graph", "model"))
def train(
    graph: Graph,
    model: Model,
    *,
    strategy: str | Strategy = "auto",
    workers: int | Workers | None = None,
    out: str | Path | None = None,
    resume: bool | str = False,
    progress: bool = True,
    config: TrainConfig | None = None,
    **options: object,
) -> Run:
    """Train a model on a graph.

    Args:
        graph: Graph with features, labels and a training split; for a link model, with features and edges.
        model: Model that labels nodes or, with a decoder, predicts links (some edges are held out for
            validation and test). Trained in place; ends with the parameters of the epoch with the best
            validation score.
        strategy: ``"auto"``, a name, or a strategy with its options such as ``og.Full()``.
        workers: Number of worker processes, or ``og.Workers(...)`` to say what happens when one dies. None
            for one, or for the processes of torchrun in a script that it started.
        out: Directory for metrics, checkpoints, summary and other files of the run; None to write none.
        resume: Resume from the last checkpoint in ``out``, or from the beginning if none was written yet;
            ``"auto"`` also starts the run if there is none.
        progress: Show progress on standard error.
        config: Options of the training loop; None for the defaults of `TrainConfig`.
        **options: ``task``, what is predicted and by which loss: an ``og.NodeClassification``, ``og.MultiLabel``,
            ``og.NodeRegression`` or ``og.LinkPrediction``, or the name of a task of nodes, such as ``"regression"``;
            by default the classes or links; of several node types also a mapping of their names to tasks. ``targets``,
            the node types whose labels are predicted, with their loss weights: ``{"paper": 1.0, "author": 0.5}``; by
            default all types with labels. ``device``, which workers compute on: ``"cpu"``, or ``"cuda"`` for a CUDA
            device each; ``"auto"`` leaves it to ``workers``. ``allow_changed_data``, whether to resume though the
            contents of the graph have changed: what was measured on the former ones (scores, the best epoch)
            is forgotten. ``trial``, whether ``"auto"`` tries strategies for some steps where estimates cannot tell
            which is faster: true by default. ``callbacks``, a list of `og.Callback` to call while training goes on.
            ``metrics``, what to compute beside the task's own: names (``"auroc,f1-macro"`` or a list), or objects of
            torchmetrics by name; ``monitor`` is the one that chooses the best epoch. Also fields of `TrainConfig`,
            such as ``epochs=200``, which override ``config``; ``num_neighbors`` is ``fanout``. Options of the
            optimizer and of the schedule, such as ``momentum=0.9``, stand beside them.

    Returns:
        The run.

    Raises:
        InputError: The graph, the model or an option cannot be used; nothing was written.
        TrainingError: The loss is not finite, a callback has raised, or a GPU is out of memory.
        WorkerError: A worker has died.
        KeyboardInterrupt: Ctrl-C has ended training, after the epoch; the files of the run are written.
        SystemExit: SIGTERM, SIGHUP or SIGUSR1 has, with the exit code that a shell gives for it.
    """
    require_not_launched("og.train")
    tries = take_trial_option(strategy, options)
    allow_changed_data = _pop_option(options, "allow_changed_data", False)
    callbacks = require_callbacks(options.pop("callbacks", ()))
    worker_settings = resolve_workers(workers, _pop_option(options, "device", "auto"))
    request = make_training_request(graph, model, strategy, worker_settings, config, options)
    graph, settings, chosen = request.graph, request.config, request.choice.strategy
    resumes = resolve_resume(resume, out)
    facts = graph_record(graph, request.targeted) if out is not None and is_torchrun_leader() else {}

    def make_directory(again: bool) -> RunDirectory | None:
        config = {
            "outgrow": __version__,
            **record_source(graph),
            "model": describe_python_model(model, request.targeted, request.task),
            "train": settings.as_record(),
            "metric_objects": list(request.metrics),
            "task_objects": [] if request.task is None else request.task.unnamed_options,
            "strategy": {"name": chosen.name, "options": chosen.options()},
            "workers": worker_settings.number,
            **facts,
        }
        if out is None or not resumes:
            return create_run_directory(out, config, model, resume=resumes, again=again)
        return open_run_directory(Path(out), config, allow_changed_data=allow_changed_data or again)

    if progress and is_torch_preloaded():
        log_warning("import outgrow before torch: torch's waiting threads now take time from the kernels")
    with make_progress_display(request.task, settings, show=progress and is_torchrun_leader()) as listener:
        session = Session(
            graph=graph,
            model=model,
            config=settings,
            strategy=chosen,
            callbacks=(listener,),
            progress_callbacks=(listener,),
            user_callbacks=callbacks,
            device=worker_settings.device,
            data=facts.get("data", {}),
            grace_seconds=worker_settings.grace_seconds,
            metrics=request.metrics,
            task=request.task,
            rivals=list_rivals(request.choice, model, settings, callbacks) if tries else (),
        )
        model.schema, model.temporal_strategy = describe_schema(request.targeted), settings.temporal_strategy
        if torchrun_world_size():
            run = join_torchrun_session(
                session,
                make_directory,
                out=None if out is None else Path(out),
                heartbeat_seconds=worker_settings.heartbeat_seconds,
                resume=resumes,
            )
        else:
            # Opened last and released first: the lock covers no more than the training.
            with release_on_exit(make_directory(False)) as files:
                session = replace(session, directory=files)
                warn = log_warning if progress else warnings.warn
                goes_on = resumes and files is not None and files.has_checkpoint
                run = run_session(session, worker_settings, resume=goes_on, log=warn)
    # After the checkpoint and the summary: a loop over seeds must not go on with the next one.
    if run.interrupted_by is not None:
        raise_as_signal(run.interrupted_by)
    return run


@check_arguments(unchecked=("graph", "model"))
def plan(
    graph: Graph,
    model: Model,
    *,
    workers: int | None = None,
    memory: str | None = None,
    hardware: str | None = None,
    config: TrainConfig | None = None,
    **options: object,
) -> PlanReport:
    """Estimate seconds, memory and bytes of an epoch with every strategy, or say why one cannot run.

    Args:
        graph: Graph with features, labels and a training split; for links with features and edges.
        model: Model that labels nodes, or predicts links.
        workers: Number of worker processes; None for the best number for each strategy.
        memory: Memory limit of one worker, such as ``"2GiB"``; None for what the machine has.
        hardware: Another machine: a name that ``outgrow plan --help`` lists, or a file written by
            ``outgrow calibrate``. None for this one, as measured, or a typical one if it was not.
        config: Options of the training loop, of which batches matter; None for the defaults of `TrainConfig`.
        **options: ``device``, which workers compute on here; and fields of `TrainConfig`, such as
            ``batch_size=1024, fanout=(10, 10)``, which override ``config``.

    Returns:
        The plan; ``print`` shows it as a table.

    Raises:
        InputError: The graph, the model, the machine or an option cannot be used.
    """
    device = _pop_option(options, "device", "auto")
    validate_argument_types(graph, model)
    validate_positive("plan", workers=workers)
    settings = (config or TrainConfig()).with_options(**options)
    graph = graph if model.decoder is not None else select_graph_targets(graph, settings)
    validate_planned_problem(graph, model, settings, options)
    # Without a number of workers, the profile of a fully used machine is the one to plan with.
    machine = select_machine(hardware, WorkerLayout(workers=workers or available_cores()), device)
    layouts = candidate_layouts(machine.profile, workers, graph.num_nodes)
    query = query_for_graph(graph, model, settings, PlanSite(machine.profile, layouts, memory, machine.corrections))
    return PlanReport(plan_with_compilation(query, TrainedProblem(graph, model, settings), machine))


@check_arguments(unchecked=("graph", "model", "nodes"))
def predict(
    graph: Graph,
    model: Model,
    nodes: Nodes = None,
    *,
    device: str = "auto",
    workers: int = 1,
    memory: str | None = None,
) -> Tensor:
    """Return ``[n, C]`` logits of nodes, each from its full neighbourhood, in bounded memory.

    All nodes are computed layer by layer; of some nodes only their neighbourhood is. Degrees are those of the graph,
    so a single node has the logits that it has among all. Features may be larger than memory: those of a store are
    mapped. So may the logits: these are then mapped from a file without a name, in the system's folder for temporary
    files. Link models have no logits: see `embed`.

    Args:
        graph: Graph with features.
        model: Model for the graph's number of features.
        nodes: ``[n]`` numbers in any order, a ``[V]`` mask, or ids that are texts (of ids that are integers,
            ``graph.index_of`` gives the numbers); None for all nodes.
        device: What each worker computes on: ``"cpu"``, ``"cuda"`` for a CUDA device of its own, or ``"auto"``.
        workers: Number of worker processes on this host, of which each computes some of the nodes; 1 for this
            process itself.
        memory: Limit on the memory of a worker, such as ``"2GiB"``, on its GPU if it has one; mapped files do not
            count. None for half of what is left.

    Raises:
        InputError: The graph has no features, the model does not fit them, or it is a link model; there is no such
            node or device, or not as many; torchrun has started this process and there shall be several workers; or a
            disk is full.
        WorkerError: A worker has died.
    """
    return compute_logits(make_output_request(graph, model, nodes, device=device, workers=workers, memory=memory))


@check_arguments(unchecked=("graph", "model", "nodes"))
def embed(
    graph: Graph,
    model: Model,
    nodes: Nodes = None,
    *,
    device: str = "auto",
    workers: int = 1,
    memory: str | None = None,
) -> Tensor:
    """Return ``[n, H]`` embeddings of nodes: the input of the last layer or, if any, of the decoder.

    Args:
        graph: Graph with features.
        model: Model for the graph's number of features, with at least two layers or a decoder.
        nodes: ``[n]`` numbers in any order, a ``[V]`` mask, or ids that are texts (of ids that are integers,
            ``graph.index_of`` gives the numbers); None for all nodes.
        device: What each worker computes on: see `predict`.
        workers: Number of worker processes on this host: see `predict`.
        memory: Limit on the memory of a worker: see `predict`.

    Raises:
        InputError: The graph has no features, or the model does not fit them or has one layer; or see `predict`.
        WorkerError: A worker has died.
    """
    return compute_embeddings(make_output_request(graph, model, nodes, device=device, workers=workers, memory=memory))


@check_arguments()
def convert(
    source: str | Path,
    dest: str | Path,
    *,
    undirected: bool = False,
    memory_bytes: int = 1 << 30,
    overwrite: bool = False,
    **options: object,
) -> Graph:
    """Convert a graph file of any known format to a store, in bounded memory.

    Args:
        source: Edge list, or a parquet, npz, Planetoid or OGB file or folder.
        dest: Directory of the store, created atomically.
        undirected: Whether to add the missing reverse of every edge.
        memory_bytes: Maximum memory to use for edges.
        overwrite: Whether to replace an existing store.
        **options: Options for tables: the fields of `TableOptions`, such as ``columns={"src": "from_id"}``.

    Returns:
        The graph of the new store, memory-mapped.

    Raises:
        InputError: The source is broken or the destination cannot be written.
    """
    reader = reader_for_path(source, options=make_table_options(options, "og.convert")).source
    return write(reader, Path(dest), undirected=undirected, memory_bytes=memory_bytes, overwrite=overwrite)


def _pop_option(options: dict[str, Any], name: str, default: Option) -> Option:
    """Remove an option of the type of its default, and return its value."""
    value: Option = options.pop(name, default)
    validate_types({name: value}, {name: type(default)})
    return value
