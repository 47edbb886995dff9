"""The node types whose labels are predicted: chosen by the options of a run, or all that have labels."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.graph.graph import Graph
from outgrow.nn.tasks import NodeTask
from outgrow.nn.type_tasks import TypeTasks
from outgrow.ops.backend import as_numpy
from outgrow.training.config import TrainConfig
from outgrow.training.link_training import K_VS_ALL, find_link_training


def select_graph_targets(graph: Graph, config: TrainConfig) -> Graph:
    """Return a graph with the labels of the targets alone; the graph itself where no targets are named.

    What it shares with the graph is not copied, but it no longer counts as coming from its store: a session keeps both.

    Raises:
        InputError: There is no such type, it has no labels, or one type alone has a loss weight.
    """
    weights = config.target_weights
    if weights is None:
        return graph
    if len(weights) == 1 and {*weights.values()} != {1.0}:
        [(name, weight)] = weights.items()
        raise InputError(
            "a loss weight needs several targets",
            needed="a weight for each of several node types, or one type without",
            got=f"{name}={weight:g}",
            repair="leave the weight out, and change the learning rate instead",
        )
    chosen = graph.select_targets(tuple(weights))
    if not len(chosen.split.train):
        raise InputError(
            f"{graph.name} cannot be trained on",
            needed=f"nodes of {', '.join(weights)} to train on",
            got="none in the training split",
            repair="choose another --target (targets), or give these nodes a split",
        )
    return chosen


def restore_whole_graph(graph: Graph, config: TrainConfig) -> tuple[Graph, TrainConfig]:
    """Return the graph that targets were selected of, and options that name them: workers can map its store.

    The graph and the options themselves if none were selected, or if labels or splits have been changed since.

    Raises:
        InputError: The options name other targets than those that were selected.
    """
    names = graph.target_types
    if graph.selected_from is None or not _are_selected(graph, graph.selected_from.select_targets(names)):
        return graph, config
    if config.target_weights is None:
        return graph.selected_from, config.with_options(targets=names)
    graph.select_targets(tuple(config.target_weights))
    return graph.selected_from, config


def _are_selected(graph: Graph, again: Graph) -> bool:
    """Whether labels and splits are those of another graph."""

    def arrays(of: Graph) -> list[Tensor]:
        labels = [of.labels] if of.labels is not None else [each.labels for each in of.type_labels]
        return labels + [part for split in (of.split, *of.splits) for part in vars(split).values()]

    pairs = zip(arrays(graph), arrays(again), strict=True)
    # Unknown numbers are NaN.
    return all(
        np.array_equal(as_numpy(first), as_numpy(second), equal_nan=first.is_floating_point())
        for first, second in pairs
    )


def require_options_of_model(config: TrainConfig, *, of_links: bool) -> None:
    """Check that nothing is asked for that a model of links, or one of nodes, does not have.

    Raises:
        InputError: Targets of a model of links, or relations of links or the like of one of nodes.
    """
    name = "targets" if of_links else "link_relations"
    if getattr(config, name):
        raise InputError(
            f"{name} {'belong to models of nodes' if of_links else 'belong to models of links'}",
            needed="link_relations, to predict the links of some" if of_links else "--task links, or a decoder",
            got=f"{name}={getattr(config, name)!r}",
            repair=f"leave {name} out",
        )
    given = [] if of_links else find_link_training(config)
    if given:
        raise InputError(
            f"{', '.join(given)} belong to models of links",
            needed="--task links, or a decoder",
            got=", ".join(f"{each}={getattr(config, each)!r}" for each in given),
            repair="leave them out",
        )
    if of_links and config.label_smoothing and config.link_loss != K_VS_ALL:
        raise InputError(
            f"of link losses only {K_VS_ALL} smooths labels",
            needed=f"link_loss {K_VS_ALL}, or no label_smoothing",
            got=f"label_smoothing {config.label_smoothing}, link_loss {config.link_loss}",
            repair="leave label_smoothing out",
        )


def describe_targets(task: NodeTask) -> str:
    """Return what is predicted of each of several node types, in one line for people; empty for one task."""
    if not isinstance(task, TypeTasks):
        return ""
    parts = [
        f"{each.name} ({each.task.kind}, {each.num_outputs} outputs, loss weight {each.loss_weight:g})"
        for each in task.targets
    ]
    return f"targets: {', '.join(parts)}"
