"""Tasks of node types that have labels of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from outgrow.app.task_options import TASK_OPTIONS, given_task_options, require_options_of
from outgrow.core.errors import InputError
from outgrow.graph.graph import Graph
from outgrow.graph.type_labels import TypeLabels
from outgrow.nn.tasks import NODE_TASKS, MultiLabel, NodeClassification, NodeRegression, NodeTask
from outgrow.nn.type_tasks import TargetType, TypeTasks
from outgrow.training.config import TrainConfig


def make_type_tasks(graph: Graph, config: TrainConfig, own: Mapping[str, NodeTask]) -> TypeTasks:
    """Return the tasks of all node types whose labels are predicted.

    A type without a task of its own has the one that ``config`` names, or the one of its labels: classes, several
    labels or numbers. Options such as ``label_smoothing`` hold for all types of the task that they belong to.

    Args:
        graph: The graph, with the labels of the targets alone.
        config: Options of the loop.
        own: Tasks that were given, by the names of types.

    Raises:
        InputError: A task is given for another type, or an option belongs to none of the tasks.
    """
    _require_known_types((*own, *config.types_with_task), [each.name for each in graph.type_labels])
    kinds = {
        each.name: config.task_of_type(each.name) or _kind_of_labels(each)
        for each in graph.type_labels
        if each.name not in own
    }
    given = given_task_options(config)
    require_options_of(given, list(kinds.values()) or ["given as objects"])
    weights = config.target_weights or {}
    targets = []
    for each in graph.type_labels:
        if each.name in own:
            task = _spread_sample_weight(graph, each.name, own[each.name])
        else:
            kind = kinds[each.name]
            task = NODE_TASKS[kind](**{name: value for name, value in given.items() if TASK_OPTIONS[name] == kind})
        targets.append(
            TargetType(
                name=each.name,
                task=task,
                loss_weight=weights.get(each.name, 1.0),
                num_outputs=task.count_outputs(each.labels, each.num_classes),
                label_shape=tuple(each.labels.shape[1:]),
                label_dtype=each.labels.dtype,
                is_given=each.name in own,
            )
        )
    return TypeTasks(targets)


def complete_single_task(graph: Graph, own: Mapping[str, NodeTask]) -> NodeTask:
    """Return the task that was given for the one node type with labels.

    Raises:
        InputError: It is given for another type.
    """
    require_single_type(graph, tuple(own))
    [(name, task)] = own.items()
    return _spread_sample_weight(graph, name, task)


def require_single_type(graph: Graph, own: Sequence[str]) -> None:
    """Check that types that tasks are given for are the one with labels.

    Raises:
        InputError: They are others, or several types have one set of labels.
    """
    _require_known_types(own, graph.target_types)
    if len(own) > 1 or len(graph.target_types) > 1:
        raise InputError(
            f"the node types of {graph.name!r} have one set of labels",
            needed="one task for all of them, or targets that name the types, so that each has outputs of its own",
            got=f"tasks of {', '.join(own)}",
            repair="give targets too, such as targets='paper,author'",
        )


def _kind_of_labels(labels: TypeLabels) -> str:
    if labels.are_numbers:
        return NodeRegression.kind
    return MultiLabel.kind if labels.labels.dim() == 2 else NodeClassification.kind


def _require_known_types(own: Sequence[str], names: Sequence[str]) -> None:
    if unknown := [name for name in own if name not in names]:
        raise InputError(
            "a task is given for nodes that are not predicted",
            needed=f"tasks of {', '.join(names) or 'no node type'}",
            got=f"one of {unknown[0]}",
            repair="correct the name, or add the type to targets",
        )


def _spread_sample_weight(graph: Graph, name: str, task: NodeTask) -> NodeTask:
    """Return a task whose sample weights, one for each node of its type, are 1 for the nodes of other types."""
    given = task.sample_weights()
    [kind] = [each for each in graph.node_types if each.name == name]
    if given is None:
        return task
    if given.shape != (kind.last - kind.first,):
        raise InputError(
            f"sample_weight of {name} cannot be used",
            needed=f"a number for each of its {kind.last - kind.first:,} nodes",
            got=f"shape {list(given.shape)}",
            repair="give an array [n]; 0 leaves a node out",
        )
    weights = torch.ones(graph.num_nodes, dtype=given.dtype)
    weights[kind.first : kind.last] = given
    return task.with_fields(sample_weight=weights)
