"""The rows of the last layer that a loss reads: a full-graph pass computes these and no others."""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.layer_rows import LayerRows, select_destinations
from outgrow.engine.link_objective import LinksOfStep
from outgrow.engine.objective import NodeObjective, Objective, StepObjective, index_output_rows
from outgrow.engine.shard import GraphShard
from outgrow.nn.layer import Features, Layer
from outgrow.nn.model import Model
from outgrow.ops.sparse import index_rows

MOST_ROWS = 0.9
"""Share of the rows above which the last layer computes all: sums for parts of them do not overlap with an exchange."""
FEW_ROWS = 0.4
"""The same for rows that lie anywhere, whose edges are copied and sorted once more for the backward pass."""


def narrow_objective(computed: LayerRows, objective: NodeObjective) -> NodeObjective:
    """Return the objective of the output of some rows alone, from that of all own nodes."""
    rows = computed.rows
    if isinstance(rows, range):
        return objective.for_row_range(rows.start, rows.stop)
    return objective._replace(rows=torch.searchsorted(rows, objective.rows))


def find_last_rows(model: Model, shard: GraphShard, objective: Objective) -> LayerRows | None:
    """Return the own rows of the last layer that a loss of nodes reads; None for all rows. All workers together.

    Of a model with modules per type that is the range of types with targets: the layer does nothing for others.
    """
    rowwise = objective.as_rowwise
    layers = model.layers_list()
    if len(layers) == 1 or not isinstance(rowwise, NodeObjective):
        return None
    block = shard.layer_view(layers[-1]).block
    # A worker without such rows computes one: an empty result could leave others waiting for its gradients.
    rows = rowwise.rows if len(rowwise.rows) else rowwise.rows.new_zeros(min(1, block.edges.num_dst))
    if model.reads_types:
        return _find_range(shard, block, range(int(rows[0]), int(rows[-1]) + 1) if len(rows) else range(1))
    # Over all workers: each does the same, and as much as one worker would do.
    read, every = shard.comm.all_reduce(torch.tensor([len(rowwise.rows), block.edges.num_dst])).tolist()
    return LayerRows(rows, select_destinations(block, rows)) if read <= FEW_ROWS * every else None


def _find_range(shard: GraphShard, block: Block, rows: range) -> LayerRows | None:
    num_own = block.edges.num_dst
    narrow = len(rows) <= MOST_ROWS * num_own
    # Agreed on: with overlap, gradients of values and scores cross in another order than without it.
    if not any(shard.comm.all_gather_object(narrow)):
        return None
    if not narrow:
        return LayerRows(range(num_own), block)
    return LayerRows(rows, block.slice_destinations(rows.start, rows.stop))


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
