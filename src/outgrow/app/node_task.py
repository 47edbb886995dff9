"""The task of a run: from the options of the loop and the labels of a graph, or as it was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from outgrow.app.task_options import given_task_options, require_options_of
from outgrow.app.type_tasks import complete_single_task, make_type_tasks, require_single_type
from outgrow.core.errors import InputError
from outgrow.core.validation import validate_types
from outgrow.graph.graph import Graph
from outgrow.nn.decoder import Decoder
from outgrow.nn.edge_decoder import EdgeDecoder
from outgrow.nn.edge_tasks import EdgeTask
from outgrow.nn.model import Model
from outgrow.nn.tasks import NODE_TASKS, LinkPrediction, MultiLabel, NodeClassification, NodeRegression, NodeTask
from outgrow.nn.type_tasks import TypeTasks
from outgrow.training.config import TrainConfig

_LINK_OPTIONS = tuple(field.name for field in fields(LinkPrediction))


def task_kind(graph: Graph, config: TrainConfig) -> str:
    """Return the name of the task that the options of the loop name, or of the one of the labels."""
    # Of a graph with one set of labels at most one type is named: see `require_single_type`.
    named = config.task_of_type(next(iter(config.types_with_task), ""))
    return named or (MultiLabel.kind if graph.multi_label else NodeClassification.kind)


def make_node_task(
    graph: Graph, config: TrainConfig, *, plans: bool = False, own: Mapping[str, NodeTask] | None = None
) -> NodeTask:
    """Return the task that the options of the loop name, or the one of the labels; of several types, their tasks.

    Args:
        graph: The graph, with the labels of the targets alone: see `outgrow.app.targets.select_graph_targets`.
        config: Options of the loop.
        plans: Whether nothing is trained, so that numbers as labels need not be asked for.
        own: Tasks that were given for node types, by their names.

    Raises:
        InputError: An option belongs to another task, or labels are numbers and no regression was asked for.
    """
    if graph.type_labels:
        return make_type_tasks(graph, config, own or {})
    if own:
        return complete_single_task(graph, own)
    if config.types_with_task:
        require_single_type(graph, config.types_with_task)
    # A target that is named is known to be numbers; else numbers as labels are asked for by name.
    is_named = plans or (config.targets is not None and config.task is None)
    kind = NodeRegression.kind if graph.has_targets and is_named else task_kind(graph, config)
    given = given_task_options(config)
    require_options_of(given, [kind])
    return NODE_TASKS[kind](**given)


def task_of_nodes(
    graph: Graph,
    model: Model,
    config: TrainConfig,
    *,
    plans: bool = False,
    own: NodeTask | Mapping[str, NodeTask] | None = None,
) -> NodeTask | None:
    """Return `make_node_task`, or the task that was given; None for a model of links, or without labels.

    Raises:
        InputError: See `make_node_task`; or one task was given for several types.
    """
    if model.decoder is not None or graph.task_labels is None:
        return None
    if not isinstance(own, NodeTask):
        return make_node_task(graph, config, plans=plans, own=own)
    if graph.type_labels:
        names = ", ".join(each.name for each in graph.type_labels)
        raise InputError(
            f"one task is given for the nodes of several types of {graph.name!r}",
            needed=f"a task for each type that has another than that of its labels, among {names}",
            got=f"task={type(own).__name__}(...)",
            repair=f"give task={{{graph.type_labels[0].name!r}: {type(own).__name__}(...)}}, or one type as targets",
        )
    return own


def resolve_task(
    model: Model, config: TrainConfig, options: Mapping[str, object]
) -> tuple[TrainConfig, EdgeTask | NodeTask | Mapping[str, NodeTask] | None]:
    """Return the options of the loop, and the task, or those of node types, if objects are given.

    Args:
        model: The model.
        config: Options of the loop.
        options: Those given by name; ``task`` may be an object, or a mapping of node types to objects.

    Raises:
        InputError: There is no such option, the task is not one of the model, or what it says is also an option.
    """
    task = options.get("task")
    if isinstance(task, Mapping) and not all(isinstance(each, str) for each in task.values()):
        validate_types({"tasks of types": list(task.values())}, {"tasks of types": Sequence[NodeTask]})
        _require_model_of_task(model, "of node types", NodeTask)
        return config.with_options(**{name: value for name, value in options.items() if name != "task"}), dict(task)
    if not isinstance(task, EdgeTask | NodeTask | LinkPrediction):
        if task is not None and not isinstance(task, Mapping):
            validate_types({"task": task}, {"task": EdgeTask | NodeTask | LinkPrediction | str | None})
        if isinstance(model.decoder, EdgeDecoder):
            raise InputError(
                "a model with a decoder of edges needs to be told its target",
                needed="task, such as og.EdgeClassification(target=...), with the name of a column",
                got="no task" if task is None else f"task={task!r}",
                repair="give og.train the task; targets of edges are predicted from Python alone",
            )
        if task is not None:
            _require_model_of_task(model, str(task), NodeTask)
        return config.with_options(**options), None
    _require_model_of_task(model, type(task).__name__, type(task))
    rest = {name: value for name, value in options.items() if name != "task"}
    settings = config.with_options(**rest)
    twice = [] if isinstance(task, NodeTask) else [name for name in _LINK_OPTIONS if name in options]
    if isinstance(task, EdgeTask):
        # Those of a `TrainConfig` too, where the task has none of the name.
        others = [name for name in _LINK_OPTIONS if name not in (*twice, *task.loop_options())]
        twice += [name for name in others if getattr(settings, name) != getattr(TrainConfig(), name)]
    twice += [] if isinstance(task, LinkPrediction) else list(given_task_options(settings))
    if twice:
        raise InputError(
            "the task is described twice",
            needed="a task, or options of it",
            got=f"task={type(task).__name__}(...) and {', '.join(twice)}",
            repair="give the options to the task, or leave those out that it does not have",
        )
    if isinstance(task, LinkPrediction):
        return settings.with_options(**asdict(task)), None
    if isinstance(task, EdgeTask):
        return settings.with_options(**task.loop_options()), task
    return settings.with_options(**task.options()), task


def describe_outputs(graph: Graph, task: NodeTask | EdgeTask | None) -> dict[str, Any]:
    """Return what ``config.json`` records of the outputs of a model: their number, and what they mean.

    Args:
        graph: The graph, with the labels of the targets alone.
        task: The task; None for a model of links.
    """
    if isinstance(task, EdgeTask):
        # Predictions of nodes are embeddings alone, as of links.
        nothing = {"classes": graph.num_classes, "class_names": [], "several_labels": False}
        return {**nothing, "task": task.kind, "edge_target": task.target}
    record = {
        "classes": graph.num_classes if task is None else graph_for_model(graph, task).num_classes,
        "class_names": list(graph.class_names),
        "several_labels": graph.multi_label,
        "task": None if task is None else task.kind,
    }
    if not isinstance(task, TypeTasks):
        return record
    names = {each.name: list(each.class_names) for each in graph.type_labels}
    targets = [
        {"type": each.name, "task": each.task.kind, "outputs": each.num_outputs, "class_names": names[each.name]}
        for each in task.targets
    ]
    return {**record, "targets": targets}


def require_recorded_task(record: Mapping[str, Any], out: Path) -> None:
    """Check that the task of a recorded run can be made again.

    Raises:
        InputError: Its loss or its weights were objects, of which the record has their names alone.
    """
    objects = record.get("task_objects", [])
    if objects:
        raise InputError(
            f"the run in {out} has a task that only Python can make again",
            needed="a task of options that have a name or numbers",
            got=f"objects given as {', '.join(objects)}",
            repair="resume it with og.train, the same task and resume=True",
        )


def require_numbers(graph: Graph, task: NodeTask) -> None:
    """Check that a regression is one of numbers, not of names of classes, whose codes say nothing.

    Raises:
        InputError: Classes have names that are no numbers.
    """
    pairs = [(graph.class_names, task)]
    if isinstance(task, TypeTasks):
        pairs = [(each.class_names, own.task) for each, own in zip(graph.type_labels, task.targets, strict=True)]
    for names, each in pairs:
        words = [name for name in names if not name.lstrip("-").isdecimal()]
        if words and each.kind == NodeRegression.kind:
            raise InputError(
                f"a regression needs numbers, and the labels of {graph.name!r} are names of classes",
                needed="labels that are numbers",
                got=f"classes {', '.join(names[:3])}" + ", ..." * (len(names) > 3),
                repair="leave --task (task) out, or name a column of numbers as labels: --label",
            )


def graph_for_model(graph: Graph, task: NodeTask) -> Graph:
    """Return a graph that says how many outputs a model for this task has; to build models of, not to train on."""
    labels = graph.task_labels
    if labels is None:
        return graph
    outputs = task.count_outputs(labels, graph.num_classes)
    # A changed graph no longer comes from its store, so it is left as it is where it can be.
    return graph if outputs == graph.num_classes else replace(graph, num_classes=outputs)


def _require_model_of_task(model: Model, name: str, kind: type) -> None:
    """Check that a model has the decoder, or none, that tasks of a kind need."""
    of_links, of_edges = issubclass(kind, LinkPrediction), issubclass(kind, EdgeTask)
    if (isinstance(model.decoder, Decoder), isinstance(model.decoder, EdgeDecoder)) == (of_links, of_edges):
        return
    has = "with a decoder, which predicts links" if model.decoder is not None else "without a decoder"
    has = "with a decoder of edges, which predicts their targets" if isinstance(model.decoder, EdgeDecoder) else has
    repair = "give model.with_decoder(og.nn.Dot())" if of_links else "build the model without a decoder"
    raise InputError(
        f"task {name} does not fit the model",
        needed="a model with a decoder for og.LinkPrediction, one with a decoder of edges for og.EdgeClassification "
        "and og.EdgeRegression, and one without for tasks of nodes",
        got=f"a model {has}",
        repair="give model.with_decoder(og.nn.EdgeMLP(columns, outputs))" if of_edges else repair,
    )
