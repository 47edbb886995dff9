"""What `og.train` and `og.prepare` are asked for: checked, before anything is started or written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outgrow.app.auto_strategy import ClusterSpec, StrategyChoice, select_strategy
from outgrow.app.compatibility import (
    validate_argument_types,
    validate_fanout,
    validate_problem,
    validate_strategy,
    warn_of_unread_weights,
)
from outgrow.app.edge_task import (
    EdgeData,
    choose_edge_metrics,
    read_edge_data,
    validate_edge_problem,
    validate_edge_training,
)
from outgrow.app.link_task import count_targets, validate_link_options
from outgrow.app.messages import log_message
from outgrow.app.metric_checks import validate_metrics
from outgrow.app.model_probe import warn_of_probe
from outgrow.app.node_task import resolve_task, task_of_nodes
from outgrow.app.runs.data import align_with_model
from outgrow.app.runs.workers import Workers, validate_workers
from outgrow.app.strategy_registry import resolve_strategy
from outgrow.app.targets import describe_targets, require_options_of_model, restore_whole_graph, select_graph_targets
from outgrow.graph.graph import Graph
from outgrow.inference.modes import validate_evaluation
from outgrow.nn.edge_tasks import EdgeTask
from outgrow.nn.model import Model
from outgrow.nn.tasks import NodeTask
from outgrow.nn.type_tasks import TypeTasks
from outgrow.ops.common_kernels import start_compiling_common_kernels
from outgrow.runtime.system.environment import is_torchrun_leader
from outgrow.strategies.base import Strategy
from outgrow.training.config import TrainConfig
from outgrow.training.metric_request import parse_metrics
from outgrow.training.prepared_training import check_optimization

if TYPE_CHECKING:
    from torchmetrics import Metric


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingRequest:
    """A training that may start.

    Attributes:
        graph: The graph, with types and relations in the order of the model.
        targeted: The graph with the labels of the targets alone; without the target of edges.
        model: The model.
        config: Options of the loop.
        choice: The strategy, and which others may be tried; of a group of processes, the first one's counts.
        workers: The workers.
        task: Task of nodes, as it was given or as ``config`` and the labels name it; of edges; None for links.
        metrics: Metrics that were given as objects, by name.
    """

    graph: Graph
    targeted: Graph
    model: Model
    config: TrainConfig
    choice: StrategyChoice
    workers: Workers
    task: NodeTask | EdgeTask | None
    metrics: Mapping[str, Metric]


def make_training_request(
    graph: Graph,
    model: Model,
    strategy: str | Strategy,
    workers: Workers,
    config: TrainConfig | None,
    options: dict[str, Any],
    *,
    leads: bool | None = None,
) -> TrainingRequest:
    """Check what is asked for, and choose the strategy.

    Args:
        graph: The graph.
        model: The model.
        strategy: ``"auto"``, a name, or a strategy.
        workers: The workers.
        config: Options of the loop; None for the defaults.
        options: Options that override ``config``, with ``task`` and ``metrics``, which may be objects.
        leads: Whether this process warns and chooses for its group; None to ask torchrun.

    Raises:
        InputError: The graph, the model or an option cannot be used.
    """
    validate_argument_types(graph, model)
    # Choosing a strategy compiles the first ones.
    start_compiling_common_kernels()
    # Objects travel beside the options, which are recorded as JSON and hold their names.
    request = parse_metrics(options.get("metrics"))
    options = options | ({"metrics": request.names} if "metrics" in options else {})
    # What is left of the options belongs to the loop, which refuses unknown names.
    settings, own_task = resolve_task(model, config or TrainConfig(), options)
    require_options_of_model(settings, of_links=model.decoder is not None)
    # Worker 0 chooses and broadcasts its choice; the others only need a strategy to start with.
    leads = is_torchrun_leader() if leads is None else leads
    task: NodeTask | EdgeTask | None
    if isinstance(own_task, EdgeTask):
        task, data = own_task, read_edge_data(graph, own_task)
        targeted = align_with_model(data.graph, model)
        data = data._replace(graph=targeted)
        _validate_edges(data, model, settings, workers, request.objects)
        choice = _choose_strategy(targeted, model, settings, strategy, workers, leads=leads)
        validate_edge_training(data, model, choice.strategy, settings)
        validate_evaluation(settings.evaluation, ranks_all_nodes=False, patience=settings.patience)
    else:
        if model.decoder is None:
            graph, settings = restore_whole_graph(graph, settings)
        graph = align_with_model(graph, model)
        targeted = graph if model.decoder is not None else select_graph_targets(graph, settings)
        task = task_of_nodes(targeted, model, settings, own=own_task)
        if isinstance(own_task, Mapping) and task is not None and not isinstance(task, TypeTasks):
            settings = settings.with_options(**task.options())
        validate_problem(targeted, model, task)
        if model.decoder is not None:
            validate_link_options(graph, settings, options)
        validate_workers(graph, workers)
        validate_fanout(graph, model, settings)
        check_optimization(settings, model, count_targets(targeted, model, settings))
        validate_metrics(targeted, model, settings, request.objects, task)
        told = None if settings.targets is not None or task is None else describe_targets(task)
        choice = _choose_strategy(targeted, model, settings, strategy, workers, leads=leads, told=told)
        validate_strategy(graph, model, choice.strategy, settings)
    return TrainingRequest(
        graph=graph,
        targeted=targeted,
        model=model,
        config=settings,
        choice=choice,
        workers=workers,
        task=task,
        metrics=request.objects,
    )


def _choose_strategy(
    graph: Graph,
    model: Model,
    config: TrainConfig,
    strategy: str | Strategy,
    workers: Workers,
    *,
    leads: bool,
    told: str | None = None,
) -> StrategyChoice:
    """Warn, tell of targets, and choose, in the process that leads; return any strategy for these batches in others."""
    if not leads:
        return StrategyChoice(*resolve_strategy(strategy, batches=not config.batch_config.is_full_graph))
    warn_of_unread_weights(graph, model)
    warn_of_probe(model)
    if told:
        log_message(told)
    return select_strategy(strategy, {}, graph, model, config, ClusterSpec.from_workers(workers))


def _validate_edges(
    data: EdgeData, model: Model, config: TrainConfig, workers: Workers, objects: Mapping[str, Metric]
) -> None:
    """Check a training on targets of edges but for its strategy: see `make_training_request`."""
    validate_problem(data.graph, model)
    validate_edge_problem(data, model)
    validate_workers(data.graph, workers)
    validate_fanout(data.graph, model, config)
    check_optimization(config, model, len(data.split.train))
    choose_edge_metrics(data, config, objects)
