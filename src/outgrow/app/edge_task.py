"""Targets of edges: checks, training problem and evaluation of a model with a decoder of edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from outgrow.app.graph_parts import require_trainable_part
from outgrow.app.link_batch_checks import require_batch_size, require_no_temporal_draws
from outgrow.app.runs.data import align_with_model
from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError
from outgrow.engine.edge_labels import EdgeLabels
from outgrow.engine.link_options import LinkOptions, LinkSteps
from outgrow.engine.objective import LinkTargets
from outgrow.graph.edge_targets import (
    UNKNOWN,
    EdgeTargetSplit,
    read_edge_classes,
    read_edge_numbers,
    split_edge_targets,
    take_edge_column,
)
from outgrow.graph.graph import Graph
from outgrow.graph.store.reader import find_feature_file
from outgrow.inference.modes import NONE as NO_EVALUATION
from outgrow.nn.edge_decoder import EdgeDecoder
from outgrow.nn.edge_tasks import EdgeRegression, EdgeTask
from outgrow.nn.model import Model
from outgrow.nn.node_task import NodeTask
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.base import Problem, Strategy
from outgrow.training.config import TrainConfig
from outgrow.training.edge_evaluation import EdgeEvaluation
from outgrow.training.edge_scores import EdgeScorer
from outgrow.training.link_training import TARGET
from outgrow.training.loop_options import make_row_optimizer
from outgrow.training.metric_fit import make_task_metrics
from outgrow.training.metric_request import MetricRequest
from outgrow.training.metrics import NodeMetric
from outgrow.training.monitor import Monitor, choose_node_monitor

if TYPE_CHECKING:
    from torchmetrics import Metric


class EdgeData(NamedTuple):
    """A graph whose edges have targets.

    Attributes:
        graph: The graph without the target.
        values: ``[E]`` int32 classes, -1 where unknown; or numbers, NaN where unknown.
        num_outputs: Classes, or 1.
        split: The edges to train, validate and test on.
        task: Loss and metric of rows, as it was given.
    """

    graph: Graph
    values: Tensor
    num_outputs: int
    split: EdgeTargetSplit
    task: NodeTask


@check_arguments()
def hide_edge_target(graph: Graph, target: str | int) -> Graph:
    """Return a graph without a column of the features of its edges: as layers see it where the column is predicted.

    To build a model of, with ``edge_dim=hidden.num_edge_features``, and for `embed` and `predict`; `train` hides the
    target itself. Other columns are copied into memory.

    Args:
        graph: The graph.
        target: Name of the column, or its number where columns have no names.

    Raises:
        InputError: Edges have no features, or no such column.
    """
    topology, _ = take_edge_column(graph.topology, target, graph.name)
    return replace(graph, topology=topology)


def read_edge_data(graph: Graph, task: EdgeTask) -> EdgeData:
    """Return the graph without the target, and the targets.

    Raises:
        InputError: There is no such column, it does not fit the task, or too few targets are known.
    """
    topology, column = take_edge_column(graph.topology, task.target, graph.name)
    if isinstance(task, EdgeRegression):
        values, count = read_edge_numbers(column, graph.name, task.unknown), 1
        known = ~values.isnan()
    else:
        values, count = read_edge_classes(column, graph.name)
        known = values != UNKNOWN
    split = split_edge_targets(topology, known, val=task.val_links, test=task.test_links, seed=task.split_seed)
    return EdgeData(replace(graph, topology=topology), values, count, split, task.make_row_task())


def validate_edge_problem(data: EdgeData, model: Model) -> None:
    """Check that a decoder gives what the task needs, of the edges of a graph.

    Raises:
        InputError: It reads other features or relations, gives another number of outputs, or fails; or the loss
            cannot be used.
    """
    graph, decoder = data.graph, model.decoder
    assert isinstance(decoder, EdgeDecoder)
    if decoder.edge_dim not in (0, graph.num_edge_features):
        raise InputError(
            f"the decoder does not fit the edges of {graph.name!r}",
            needed=f"edge_dim {graph.num_edge_features}, all features of an edge but the target, or 0",
            got=f"edge_dim {decoder.edge_dim}",
            repair="build it with edge_dim=og.hide_edge_target(graph, target).num_edge_features",
        )
    columns = model.layers_list()[-1].spec.out_features
    rows = torch.zeros(2, columns, dtype=model.dtype)
    features = rows.new_zeros(2, decoder.edge_dim) if decoder.edge_dim else None
    with torch.no_grad():
        out = decoder.score(rows, torch.zeros(2, dtype=torch.int64), rows, features)
    if out.shape != (2, data.num_outputs):
        raise InputError(
            f"the decoder does not fit the targets of the edges of {graph.name!r}",
            needed=f"{data.num_outputs} outputs of an edge: [P, {data.num_outputs}]",
            got=f"{list(out.shape)} for P = 2",
            repair=f"build it with {data.num_outputs} outputs, such as og.nn.EdgeMLP({columns}, {data.num_outputs})",
        )
    data.task.validate(data.values, data.split.train, data.num_outputs, graph.name, model.dtype)


def validate_edge_training(data: EdgeData, model: Model, strategy: Strategy, config: TrainConfig) -> None:
    """Check that a strategy can train on the edges in the steps or batches of ``config``.

    Raises:
        InputError: It cannot.
    """
    count, name = len(data.split.train), strategy.name
    batches = strategy.uses_minibatches
    wrong = f"exclude {config.exclude}" if not batches and config.exclude is not None else ""
    wrong = f"link_steps {config.link_steps}" if batches and config.link_steps != 1 else wrong
    if wrong:
        raise InputError(
            f"strategy {name} has no such option for targets of edges",
            needed="batch_size, and exclude for what layers do not see of a batch" if batches else "link_steps",
            got=wrong,
            repair="leave it out, or choose strategy " + ("full" if batches else "sampled"),
        )
    require_no_temporal_draws(config, "targets of edges")
    if batches:
        require_batch_size(config, count, "edges")
    require_trainable_part(data.graph, strategy)
    strategy.validate_graph(data.graph, config.batch_config)
    strategy.validate_model(model)


def choose_edge_metrics(
    data: EdgeData, config: TrainConfig, objects: Mapping[str, Metric]
) -> tuple[list[NodeMetric], Monitor]:
    """Return the metrics beside the task's own, and which metric is monitored.

    Raises:
        InputError: A metric does not fit the task, there is none of a name, or there is nothing to monitor.
    """
    asked = MetricRequest(config.metrics, objects)
    metrics = list(make_task_metrics(asked, data.task, data.values[:0], data.num_outputs))
    monitor = choose_node_monitor(config.monitor, config.monitor_mode, data.task, metrics)
    has_validation = len(data.split.val) and config.evaluation.val != NO_EVALUATION
    if config.monitor is not None and not has_validation:
        raise InputError(
            "there is nothing to monitor",
            needed="a validation after epochs",
            got=f"monitor {config.monitor}, and no edges to validate on",
            repair="leave monitor out, or give val_links",
        )
    return metrics, monitor


def make_edge_training(
    whole: Graph,
    model: Model,
    config: TrainConfig,
    strategy: Strategy,
    comm: Comm,
    edge_task: EdgeTask,
    objects: Mapping[str, Metric],
) -> tuple[Problem, EdgeEvaluation]:
    """Shard the graph without the target; return the training problem and the evaluation. All workers together."""
    data = read_edge_data(whole, edge_task)
    graph = align_with_model(data.graph, model)
    assert graph.features is not None
    assert isinstance(model.decoder, EdgeDecoder)
    in_batches = strategy.uses_minibatches
    # Weights as numbers, from all edges to train on: the same on all workers.
    task = data.task.resolve(data.values, data.split.train, data.num_outputs)
    labels = EdgeLabels(task=task, values=data.values, train=data.split.train, topology=graph.topology)
    options = LinkOptions(
        ends=torch.tensor([0, graph.num_nodes]),
        negatives=0,
        steps=LinkSteps(num_steps=config.link_steps),
        excludes_targets=in_batches and config.exclude == TARGET,
        labels=labels,
    )
    share = strategy.shard_graph(graph, comm, model, config.batch_config, links=options if in_batches else None)
    problem = Problem(
        shard=share,
        features=graph.features,
        targets=LinkTargets(options=options, num_targets=len(data.split.train)),
        model=model,
        seed=config.seed,
        embedding_optimizer=make_row_optimizer(config, batches=in_batches),
        batches=config.batch_config,
        checkpoint_steps=config.checkpoint_steps,
        memory_limit=strategy.memory_limit if in_batches else None,
        find_feature_file=partial(find_feature_file, whole),
    )
    metrics, monitor = choose_edge_metrics(data, config, objects)
    val, test = (EdgeScorer(share, model.decoder, labels, part) for part in (data.split.val, data.split.test))
    return problem, EdgeEvaluation(val, test, monitor, metrics=metrics, memory_limit=problem.memory_limit)
