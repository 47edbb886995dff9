"""The rows of the last layer that a loss reads: a full-graph pass computes these and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.link_objective import LinksOfStep
from outgrow.engine.objective import NodeObjective, Objective, StepObjective, index_output_rows
from outgrow.engine.shard import GraphShard
from outgrow.nn.layer import Features, Layer
from outgrow.nn.model import Model
from outgrow.ops.rows.gather import concat_ranges
from outgrow.ops.sparse import index_rows, slice_rows

MOST_ROWS = 0.9
"""Share of the rows above which the last layer computes all: sums for parts of them do not overlap with an exchange."""
FEW_ROWS = 0.4
"""The same for rows that lie anywhere, whose edges are copied and sorted once more for the backward pass."""


class LastRows(NamedTuple):
    """The own nodes whose output of the last layer is of use.

    Attributes:
        rows: ``[m]`` int64, ascending, at least one if there are own nodes; or the range that they are.
        block: Their in-edges; source rows are those of the whole shard.
    """

    rows: Tensor | range
    block: Block

    def select_rows(self, x: Features) -> Features:
        """Return these rows of values of all own nodes."""
        if isinstance(self.rows, range):
            return slice_rows(x, self.rows.start, self.rows.stop)
        return index_output_rows(x, self.rows) if isinstance(x, Tensor) else index_rows(x, self.rows)

    def narrow_objective(self, objective: NodeObjective) -> NodeObjective:
        """Return the objective of the output of these rows alone, from that of all own nodes."""
        if isinstance(self.rows, range):
            return objective.for_row_range(self.rows.start, self.rows.stop)
        return objective._replace(rows=torch.searchsorted(self.rows, objective.rows))


def find_last_rows(model: Model, shard: GraphShard, objective: Objective) -> LastRows | None:
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
    return LastRows(rows, _select_destinations(block, rows)) if read <= FEW_ROWS * every else None


def _find_range(shard: GraphShard, block: Block, rows: range) -> LastRows | None:
    num_own = block.edges.num_dst
    narrow = len(rows) <= MOST_ROWS * num_own
    # Agreed on: with overlap, gradients of values and scores cross in another order than without it.
    if not any(shard.comm.all_gather_object(narrow)):
        return None
    if not narrow:
        return LastRows(range(num_own), block)
    return LastRows(rows, block.slice_destinations(rows.start, rows.stop))


def select_last_rows(model: Model, shard: GraphShard, rows: Tensor) -> LastRows | None:
    """Return own rows of the last layer, ``[m]`` int64, ascending, for inference; None for all, where they are many."""
    layers = model.layers_list()
    block = shard.layer_view(layers[-1]).block
    if len(layers) == 1 or len(rows) > FEW_ROWS * block.edges.num_dst:
        return None
    return LastRows(rows, _select_destinations(block, rows))


def _select_destinations(block: Block, rows: Tensor) -> Block:
    """Return the block of some destination rows, ascending, their in-edges and all sources, with the same edge ids."""
    edges = block.edges
    rows = rows.to(edges.indptr.device)
    counts = edges.indptr[rows + 1] - edges.indptr[rows]
    at = concat_ranges(edges.indptr[rows], counts)

    def select(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.index_select(0, at)

    part = replace(
        edges,
        indptr=torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
        indices=edges.indices.index_select(0, at),
        relation=select(edges.relation),
        weight=select(edges.weight),
        features=select(edges.features),
        cache={},
    )
    return replace(
        block,
        edges=part,
        dst_nodes=block.dst_nodes[rows],
        dst_degree=block.dst_degree[rows],
        first_edge=0,
        edge_ids=at + block.first_edge if block.edge_ids is None else select(block.edge_ids),
        sample_weight=select(block.sample_weight),
        relation_degree=select(block.relation_degree),
        edge_scores=select(block.edge_scores),
    )


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
