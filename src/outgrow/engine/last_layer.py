"""The rows of the last layer that a loss reads: a full-graph pass computes these and no others."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.link_objective import LinksOfStep
from outgrow.engine.objective import NodeObjective, Objective, StepObjective, index_output_rows
from outgrow.engine.shard import GraphShard
from outgrow.nn.layer import Features, Layer
from outgrow.nn.model import Model
from outgrow.ops.sparse import index_rows

MOST_ROWS = 0.9
"""Share of the rows above which the last layer computes all: sums for parts of them do not overlap with an exchange."""


class LastRows(NamedTuple):
    """The own nodes whose output of the last layer is of use.

    Attributes:
        first: The first one, a row.
        last: The row after the last one.
        block: Their in-edges; source rows are those of the whole shard.
    """

    first: int
    last: int
    block: Block


def find_last_rows(model: Model, shard: GraphShard, objective: Objective) -> LastRows | None:
    """Return the own rows that a loss reads of a model with modules per type; None for all rows. All workers together.

    The last layer then does nothing for types without targets, which are ranges of rows. Other models compute all
    rows: their nodes to train on are anywhere.
    """
    rowwise = objective.as_rowwise
    layers = model.layers_list()
    if not model.reads_types or len(layers) == 1 or not isinstance(rowwise, NodeObjective):
        return None
    block = shard.layer_view(layers[-1]).block
    # A worker without such rows computes one: an empty result could leave others waiting for its gradients.
    first, last = (int(rowwise.rows[0]), int(rowwise.rows[-1]) + 1) if len(rowwise.rows) else (0, 1)
    num_own = block.edges.num_dst
    narrow = last - first <= MOST_ROWS * num_own
    # Agreed on: with overlap, gradients of values and scores cross in another order than without it.
    if not any(shard.comm.all_gather_object(narrow)):
        return None
    return LastRows(first, last, block.slice_destinations(first, last)) if narrow else LastRows(0, num_own, block)


def find_read_rows(shard: GraphShard, objective: StepObjective, key: int) -> Tensor | None:
    """Return the own rows that the loss of a step of links reads, ascending; None for all. All workers together.

    Args:
        shard: The worker's shard of the graph.
        objective: The objective of the step.
        key: Random key of (seed, epoch, step).
    """
    if not isinstance(objective, LinksOfStep) or objective.options.scores_all_nodes:
        return None
    rows = objective.find_rows(key)
    # The aggregate is that of all rows, whose selection is a copy.
    return rows if len(rows) <= MOST_ROWS * len(shard.owned_nodes) else None


def update_rows(layer: Layer, x_dst: Features, aggregate: Tensor, block: Block, rows: Tensor | None) -> Tensor:
    """Return `Layer.update` of some rows.

    Args:
        layer: The layer.
        x_dst: ``[n, D]`` its input.
        aggregate: ``[n, C, F]``.
        block: The edges; its key is that of the layer in this step.
        rows: ``[m]`` int64, ascending; None for all.

    Returns:
        ``[m, O]``.
    """
    if rows is None:
        return layer.update(x_dst, aggregate, block)
    x = index_output_rows(x_dst, rows) if isinstance(x_dst, Tensor) else index_rows(x_dst, rows.to(x_dst.device))
    nodes = block.dst_nodes[rows.to(block.dst_nodes.device)]
    return layer.update_nodes(x, index_output_rows(aggregate, rows), nodes, block.key)
