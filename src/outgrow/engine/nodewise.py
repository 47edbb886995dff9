"""Models whose layers read no neighbours: the rows of some nodes, from these nodes alone."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from outgrow.engine.link_objective import LinksOfStep
from outgrow.engine.objective import LinkTargets
from outgrow.engine.problem import Problem
from outgrow.engine.shard import GraphShard
from outgrow.nn.layer import Features
from outgrow.nn.model import Model, layer_key
from outgrow.ops.aggregation.no_messages import zero_aggregate


def reads_no_neighbours(model: Model) -> bool:
    """Whether no layer of a model reads neighbours."""
    return not any(layer.conv.aggregation.reads_sources for layer in model.layers_list())


def predicts_links_by_node(problem: Problem) -> bool:
    """Whether the steps of a problem can do with the rows of the nodes that they ask about."""
    return isinstance(problem.targets, LinkTargets) and reads_no_neighbours(problem.model)


def compute_node_rows(model: Model, features_nD: Features, nodes_n: Tensor, key: int | None) -> Tensor:
    """Return ``[n, C]``: the output of the last layer of a model that reads no neighbours.

    Args:
        model: The model.
        features_nD: Features of the nodes, on the device.
        nodes_n: Global ids of the nodes, on the device.
        key: Random key of (seed, epoch, step); None for no random draws.
    """
    x = model.encode_input(features_nD, nodes_n, key)
    for index, layer in enumerate(model.layers_list()):
        aggregate = zero_aggregate(x, *layer.spec.aggregate)
        x = layer.update_nodes(x, aggregate, nodes_n, layer_key(key, index))
    assert isinstance(x, Tensor)
    return x


def loss_of_read_rows(
    model: Model, shard: GraphShard, links: LinksOfStep, select_features: Callable[[Tensor], Features], key: int
) -> Tensor:
    """Return the loss of the links of a step, from the rows that it reads. All workers together.

    Counted in the ledger: ``rows_computed``, of all layers.

    Args:
        model: A model that reads no neighbours.
        shard: The worker's shard of the graph.
        links: The links of the step.
        select_features: Returns the features of some own rows, ``[n]`` int64, on the device.
        key: Random key of (seed, epoch, step).
    """
    rows = links.find_rows(key)
    nodes = shard.owned_nodes[rows].to(shard.comm.device)
    shard.comm.ledger.add_count("rows_computed", len(rows) * len(model.layers_list()))
    return links.loss(compute_node_rows(model, select_features(rows), nodes, key), key, rows)
