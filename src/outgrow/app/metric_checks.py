"""Metrics that a run asks for, and what they need of graph and options: checked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from outgrow.app.link_task import has_validation_links
from outgrow.app.node_task import make_node_task
from outgrow.core.errors import InputError
from outgrow.core.user_warnings import warn_about_data
from outgrow.core.validation import validate_choice
from outgrow.graph.graph import Graph
from outgrow.inference.link_ranks import LINK_METRICS
from outgrow.inference.modes import NONE
from outgrow.nn.model import Model
from outgrow.nn.tasks import MultiLabel, NodeTask
from outgrow.nn.type_tasks import TargetType, TypeTasks
from outgrow.training.config import TrainConfig
from outgrow.training.metric_fit import make_node_metrics, make_task_metrics
from outgrow.training.metric_names import CURVES, KEEPING, MULTICLASS, MULTILABEL, NODE_METRICS
from outgrow.training.metric_request import MetricRequest
from outgrow.training.metrics import PIECE_NUMBERS, NodeMetric
from outgrow.training.monitor import Monitor, choose_link_monitor, choose_node_monitor

if TYPE_CHECKING:
    from torchmetrics import Metric

_SHOWN = 10
_NUMBER_BYTES = 8


def validate_metric_names(names: Sequence[str]) -> None:
    """Check that metrics have these names.

    Raises:
        InputError: There is no metric of a name.
    """
    for name in names:
        validate_choice("metric", name, {**NODE_METRICS, MultiLabel.metric: None})


def require_recorded_metrics(record: Mapping[str, Any], given: Mapping[str, object], out: Path) -> None:
    """Check that the metrics of a recorded run have names by which they can be made again, or others are given.

    Raises:
        InputError: Some were objects, of which the record has their names alone.
    """
    # Runs of the command line, and of older versions, have recorded none.
    objects = record.get("metric_objects", [])
    if objects and "metrics" not in given:
        raise InputError(
            f"the run in {out} computes metrics that were given as objects",
            needed="metrics that have a name",
            got=f"objects named {', '.join(objects)}",
            repair="give --metric with names, such as auroc, or resume with og.train and the same objects",
        )


def choose_metrics(
    graph: Graph, model: Model, task: NodeTask, config: TrainConfig, objects: Mapping[str, Metric]
) -> tuple[Sequence[NodeMetric], Monitor]:
    """Return the metrics of a model of nodes beside the task's own, and which metric is monitored.

    Args:
        graph: The graph, with labels.
        model: The model.
        task: The task.
        config: Options of training, which name the metrics.
        objects: Metrics that were given as objects, by name.

    Raises:
        InputError: A metric does not fit the task, or there is none of a name.
    """
    labels = graph.task_labels
    assert labels is not None
    outputs = model.layers_list()[-1].spec.out_features
    metrics = make_task_metrics(MetricRequest(config.metrics, objects), task, labels[:0], outputs)
    return metrics, choose_node_monitor(config.monitor, config.monitor_mode, task, metrics)


def validate_metrics(
    graph: Graph,
    model: Model,
    config: TrainConfig,
    objects: Mapping[str, Metric] | None = None,
    task: NodeTask | None = None,
) -> None:
    """Check metrics and what is monitored against graph, model and options; warn of classes that do not count.

    Args:
        graph: The graph.
        model: The model.
        config: Options of training, which name the metrics.
        objects: Metrics that were given as objects, by name.
        task: The task of a model of nodes; None for the one of the labels.

    Raises:
        InputError: A metric does not fit the task or the nodes to score, or there is nothing to monitor.
    """
    if model.decoder is not None:
        _validate_link_metrics(graph, config)
        return
    if not config.metrics and config.monitor is None and config.monitor_mode is None:
        return
    objects = objects or {}
    task = task or make_node_task(graph, config)
    metrics, _ = choose_metrics(graph, model, task, config, objects)
    labels = graph.task_labels
    assert labels is not None
    val, test = (task.select_known(labels, part) for part in (graph.split.val, graph.split.test))
    evaluated = {
        "validation": (val, config.evaluation.val),
        "test": (test, config.evaluation.test),
    }
    _validate_monitored(config, *evaluated["validation"])
    for name, (nodes, mode) in evaluated.items():
        if mode == NONE:
            continue
        for number, (target, names) in enumerate(_list_targets(graph, model, task)):
            asked = [each.name.removeprefix(target.qualify("")) for each in metrics if each.target == number]
            of_target = nodes if target.task is task else nodes[labels[nodes][:, 0] == number]
            own = labels if not isinstance(task, TypeTasks) else task.labels_of_type(number, labels)
            if len(of_target) and asked:
                _validate_nodes(name, own[of_target], target, names, MetricRequest(tuple(asked), objects))


def estimate_metric_bytes(graph: Graph, model: Model, config: TrainConfig) -> int:
    """Return the bytes that metrics keep on worker 0 at most, at the end of a run, when both sets are scored."""
    if not config.metrics or model.decoder is not None:
        return 0
    outputs = model.layers_list()[-1].spec.out_features
    rows = len(graph.split.val) + len(graph.split.test)
    # Those that count add up what they have seen.
    copies = sum(name not in NODE_METRICS or name in KEEPING for name in config.metrics)
    kept = rows if copies else min(rows, PIECE_NUMBERS // outputs)
    # Rows as workers send them, and a float64 copy of each metric that keeps them.
    return kept * outputs * (model.dtype.itemsize + _NUMBER_BYTES * max(1, copies))


def _validate_link_metrics(graph: Graph, config: TrainConfig) -> None:
    if config.metrics:
        raise InputError(
            "metrics of nodes cannot be computed of a model of links",
            needed=f"no metrics: links are ranked, by {', '.join(LINK_METRICS)}",
            got=f"metrics {', '.join(config.metrics)}",
            repair="leave the metrics out; monitor may be one of the ranking metrics",
        )
    choose_link_monitor(config.monitor, config.monitor_mode)
    if config.monitor is not None and (not has_validation_links(graph, config) or config.evaluation.val == NONE):
        raise _nothing_to_monitor_error(config, "no validation links")


def _validate_monitored(config: TrainConfig, nodes: Tensor, mode: str) -> None:
    if (config.monitor is not None or config.monitor_mode is not None) and (not len(nodes) or mode == NONE):
        raise _nothing_to_monitor_error(config, "no validation nodes")


def _nothing_to_monitor_error(config: TrainConfig, missing: str) -> InputError:
    is_off = config.evaluation.val == NONE
    return InputError(
        "there is nothing to monitor",
        needed="a validation after epochs",
        got=f"monitor {config.monitor}, and {f'val={NONE}' if is_off else missing}",
        repair="leave monitor out, or give another val" if is_off else "leave monitor out, or give a validation split",
    )


def _list_targets(graph: Graph, model: Model, task: NodeTask) -> list[tuple[TargetType, tuple[str, ...]]]:
    """Return what is predicted, all nodes or the types with tasks of their own, and the names of their classes."""
    if isinstance(task, TypeTasks):
        return list(zip(task.targets, (each.class_names for each in graph.type_labels), strict=True))
    outputs = model.layers_list()[-1].spec.out_features
    return [(TargetType(name="", task=task, num_outputs=outputs), graph.class_names)]


def _validate_nodes(
    name: str, labels: Tensor, target: TargetType, class_names: Sequence[str], request: MetricRequest
) -> None:
    """Check what metrics need of the labels ``[n, ...]`` of the nodes of a split.

    Raises:
        InputError: A metric cannot be computed of so few nodes, or needs classes that these do not have.
    """
    task, outputs = target.task, target.num_outputs
    name = f"{name} ({target.name})" if target.name else name
    # Some metrics need two rows at least, which only their value tells.
    make_node_metrics(request, task, labels[:0], outputs, num_rows=len(labels))
    objects = request.objects
    needy = [each for each in request.names if each in CURVES or (each in objects and _is_curve(objects[each]))]
    if not needy or task.target_kind not in (MULTICLASS, MULTILABEL):
        return
    labels = labels.long()
    counts = torch.bincount(labels, minlength=outputs) if labels.ndim == 1 else labels.sum(0)
    lacking = ((counts == 0) | (counts == len(labels))).nonzero()[:, 0].tolist()
    shown = ", ".join(_class_name(class_names, each) for each in lacking[:_SHOWN])
    shown += ", ..." if lacking[_SHOWN:] else ""
    if len(lacking) == len(counts):
        raise InputError(
            f"the {name} nodes lack what {needy[0]} needs",
            needed="nodes of a class, and nodes of another",
            got=f"{len(labels)} {name} nodes, all with the same labels",
            repair="leave the metric out, or give another split",
        )
    if lacking:
        how = "its mean is over the others" if needy[0] not in objects else "see torchmetrics for what that counts as"
        warn_about_data(f"none or all of the {name} nodes are of class {shown}: {needy[0]} is not defined; {how}")


def _is_curve(metric: Metric) -> bool:
    return any(each.__name__.endswith(("AUROC", "AveragePrecision")) for each in type(metric).mro())


def _class_name(names: Sequence[str], number: int) -> str:
    return names[number] if number < len(names) else str(number)
