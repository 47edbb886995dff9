"""The training problem of a model that labels nodes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from outgrow.app.compatibility import validate_problem
from outgrow.app.node_task import make_node_task
from outgrow.engine.batches import FULL_GRAPH, BatchConfig
from outgrow.engine.shard import FullGraphShard, GraphShard
from outgrow.graph.graph import Graph
from outgrow.graph.store.reader import find_feature_file
from outgrow.nn.model import Model
from outgrow.nn.tasks import NodeTask
from outgrow.strategies.base import Problem
from outgrow.training.config import TrainConfig


def make_problem(
    graph: Graph,
    model: Model,
    seed: int,
    share: GraphShard | None = None,
    batches: BatchConfig = FULL_GRAPH,
    task: NodeTask | None = None,
) -> Problem:
    """Make the training problem of a model that labels nodes.

    Args:
        graph: Graph to train on.
        model: Model to train.
        seed: Seed of every random draw.
        share: Part of the graph that the worker holds; None for all of it.
        batches: Mini-batch size and fan-outs.
        task: The task; None for the one of the labels.

    Raises:
        InputError: See `validate_problem`.
    """
    task = task or make_node_task(graph, TrainConfig())
    validate_problem(graph, model, task)
    labels = graph.task_labels
    assert graph.features is not None
    assert labels is not None
    problem = Problem.from_node_labels(
        share or FullGraphShard(graph.topology),
        features=graph.features,
        labels=labels,
        train=graph.split.train,
        task=task,
        model=model,
        seed=seed,
        batches=batches,
    )
    return replace(problem, find_feature_file=partial(find_feature_file, graph))
