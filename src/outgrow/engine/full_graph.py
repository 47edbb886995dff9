"""Full-graph forward and backward passes on a shard, with halo exchange and a cached first aggregate.

Source rows are computed by their owner and sent to the workers whose nodes they have edges to. If a sum over
edges may be computed in parts, the sum over own rows overlaps with the exchange of the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.deprecation import renamed_arguments
from outgrow.core.ledger import Kind
from outgrow.engine.constant_sums import ConstantRows, cached_first_aggregate, count_constant_layers
from outgrow.engine.features.inputs import ShardInputs
from outgrow.engine.hidden_edges import shard_of_step
from outgrow.engine.last_layer import find_last_rows, find_read_rows, narrow_objective, update_rows
from outgrow.engine.layer_rows import LayerRows
from outgrow.engine.link_objective import LinksOfStep
from outgrow.engine.local_weights import weights_by_part
from outgrow.engine.nodewise import loss_of_read_rows, reads_no_neighbours
from outgrow.engine.objective import NodeObjective, Objective, StepObjective
from outgrow.engine.shard import GraphShard
from outgrow.graph.halo import LocalGraph
from outgrow.nn.layer import Features, Layer, NodeMessages
from outgrow.nn.model import Model, layer_key
from outgrow.ops import memory_pool
from outgrow.ops.aggregation.no_messages import zero_aggregate
from outgrow.ops.rng import fold_in
from outgrow.ops.sparse import index_rows, slice_rows


def layer_forward(
    layer: Layer,
    shard: GraphShard,
    x_own: Features,
    key: int | None,
    *,
    overlap: bool = True,
    rows: LayerRows | None = None,
    read_rows: Tensor | None = None,
) -> Tensor:
    """Return a layer's output for the nodes that the worker owns, ``[n, O]``.

    Args:
        layer: The layer.
        shard: The worker's shard of the graph.
        x_own: ``[n, D]`` input of the own nodes.
        key: Random key of this layer in this step; None for no random draws.
        overlap: Whether to aggregate own rows while others are received, if the layer permits it.
        rows: The rows to compute, without overlap; None for all.
        read_rows: ``[m]`` int64, ascending, the only rows to return; sums over edges are those of all rows.
    """
    view = shard.layer_view(layer)
    block = (view.block if rows is None else rows.block).with_rng_key(key)
    x_dst = x_own if rows is None else rows.select_rows(x_own)
    if not layer.conv.aggregation.reads_sources:
        return update_rows(layer, x_dst, zero_aggregate(x_dst, *layer.spec.aggregate), block, read_rows)
    source, target = layer.source_and_target(x_own, x_dst, view.block.dst_nodes, block.dst_nodes)
    if view.local_graph is None:
        aggregate = layer.aggregate(block, source, target)
    elif rows is None and overlap and layer.conv.aggregation.additive:
        aggregate = _aggregate_in_parts(layer, shard, view.local_graph, block, source, target)
    else:
        # An aggregation that is no sum of parts needs all source rows at once.
        aggregate = layer.aggregate(block, gather_sources(layer, shard, source), target)
    return update_rows(layer, x_dst, aggregate, block, read_rows)


def gather_sources(layer: Layer, shard: GraphShard, source: NodeMessages) -> NodeMessages:
    """Return the messages of all sources of a shard, from those of its own nodes."""
    columns, score = (
        None if part is None else shard.with_halo(part, Kind.ACTIVATIONS, widths)
        for part, widths in zip(source, layer.message_widths(), strict=True)
    )
    return NodeMessages(columns, score)


def _aggregate_in_parts(
    layer: Layer, shard: GraphShard, local: LocalGraph, block: Block, source: NodeMessages, target: NodeMessages
) -> Tensor:
    assert source.values is not None
    # Started first, and waited for after the sum over own rows. Scores are narrow and needed for all weights.
    of_values, of_scores = layer.message_widths()
    others = shard.fetch_halo(source.values, Kind.ACTIVATIONS, of_values)
    score = None if source.scores is None else shard.with_halo(source.scores, Kind.ACTIVATIONS, of_scores)
    weight = layer.conv.edge_weight(block, NodeMessages(source.values, score), target)
    own_weight, halo_weight = weights_by_part(local, weight)
    aggregation = layer.conv.aggregation
    local_sum = aggregation(local.local_edges, source.values, target.values, own_weight)
    halo_sum = aggregation(local.halo_edges, others.wait(), target.values, halo_weight)
    # In place, as fresh pages cost more than the sum; but a view of padded rows must not be changed.
    return local_sum + halo_sum if local_sum._is_view() else local_sum.add_(halo_sum)


@renamed_arguments(known="first_aggregate", given="inputs", share="shard")
def full_forward(
    model: Model,
    shard: GraphShard,
    inputs: ShardInputs,
    key: int,
    *,
    first_aggregate: Tensor | ConstantRows | None = None,
    overlap: bool = True,
    last_rows: LayerRows | None = None,
    read_rows: Tensor | None = None,
) -> Tensor:
    """Return logits of the nodes that the worker owns, with all their neighbours.

    Args:
        model: The model.
        shard: The worker's shard of the graph.
        inputs: Features of its nodes.
        key: Random key of (seed, epoch, step).
        first_aggregate: ``[n, C, F]`` aggregate of the first layer, or the output of several first ones, if it is
            constant; None to compute it.
        overlap: Whether to aggregate own rows while others are received.
        last_rows: The rows of the last layer to compute; None for all.
        read_rows: ``[m]`` int64, ascending, rows whose output of the last layer is read; None for all.

    Returns:
        ``[n, C]``, differentiable in the parameters; of ``last_rows`` or ``read_rows`` alone if these are given.
    """
    layers = model.layers_list()
    if isinstance(first_aggregate, ConstantRows):
        x, done = first_aggregate.rows, first_aggregate.num_layers
    else:
        x, done = _forward_first(model, shard, inputs, key, first_aggregate, overlap=overlap, read_rows=read_rows), 1
    for index in range(done, len(layers)):
        rows, read = (last_rows, read_rows) if index == len(layers) - 1 else (None, None)
        x = layer_forward(layers[index], shard, x, layer_key(key, index), overlap=overlap, rows=rows, read_rows=read)
    assert isinstance(x, Tensor)
    return x


def _forward_first(
    model: Model,
    shard: GraphShard,
    inputs: ShardInputs,
    key: int | None,
    first_aggregate: Tensor | None,
    *,
    overlap: bool,
    read_rows: Tensor | None,
) -> Tensor:
    """Return the output of the first layer for the nodes that the worker owns, ``[n, O]``; see `full_forward`."""
    first, *others = model.layers_list()
    block = shard.layer_view(first).block.with_rng_key(layer_key(key, 0))
    # Features of the halo are inputs already, so the first layer needs no exchange if it reads them directly.
    x_src = model.encode_input(inputs.source, block.src_nodes[: len(inputs.source)], key)
    x = x_src if len(inputs.own) == len(x_src) else slice_rows(x_src, 0, len(inputs.own))
    of_first = None if others else read_rows
    if first_aggregate is not None:
        return update_rows(first, x, first_aggregate, block, of_first)
    if model.source_is_features:
        source, target = first.source_and_target(x_src, x, block.src_nodes, block.dst_nodes)
        return update_rows(first, x, first.aggregate(block, source, target), block, of_first)
    return layer_forward(first, shard, x, layer_key(key, 0), overlap=overlap, read_rows=of_first)


def compute_constant_rows(
    model: Model, shard: GraphShard, inputs: ShardInputs, first_aggregate: Tensor | None, *, overlap: bool
) -> ConstantRows | None:
    """Return the constant output of first layers; None if at most the aggregate of one is constant. All together."""
    count = count_constant_layers(model, inputs.source)
    layers = model.layers_list()
    # The logits of a model without parameters are nothing to train, and one layer is no more than its aggregate.
    if not 1 < count < len(layers):
        return None
    with torch.no_grad():
        x = _forward_first(model, shard, inputs, None, first_aggregate, overlap=overlap, read_rows=None)
        for layer in layers[1:count]:
            x = layer_forward(layer, shard, x, None, overlap=overlap)
    return ConstantRows(x, count)


class FullGraphEpoch:
    """Steps over all nodes of a shard, with the rows of all layers in memory.

    A constant aggregate of the first layer is computed once, in the constructor, and so is the output of several first
    layers that only propagate.

    Counted in the ledger: ``edges_aggregated`` and ``rows_computed``, of all layers.

    Args:
        model: The model; gradients are left in its parameters.
        shard: The worker's shard of the graph.
        inputs: Features of its nodes.
        objective: The training objective.
        seed: Seed of every random draw.
        overlap: Whether to aggregate own rows while others are received.
        hides_edges: Whether steps hide edges, so that no aggregate is constant.
    """

    def __init__(
        self,
        model: Model,
        shard: GraphShard,
        inputs: ShardInputs,
        objective: Objective,
        seed: int,
        *,
        overlap: bool = True,
        hides_edges: bool = False,
    ) -> None:
        self.model = model
        self.shard = shard
        self.inputs = inputs
        self.objective = objective.to(shard.comm.device)
        self.seed = seed
        self.overlap = overlap
        self.comm = shard.comm
        self.ledger = shard.comm.ledger
        self.edges = [shard.layer_view(layer).block.edges for layer in model.layers_list()]
        self.last_rows = find_last_rows(model, shard, self.objective)
        if self.last_rows is not None:
            self.edges[-1] = self.last_rows.block.edges
            rowwise = self.objective.as_rowwise
            assert isinstance(rowwise, NodeObjective)
            self.objective = narrow_objective(self.last_rows, rowwise)
        self.is_nodewise = reads_no_neighbours(model)
        self.first_aggregate = self.constant_rows = None
        if not hides_edges:
            block = shard.layer_view(model.layers_list()[0]).block
            self.first_aggregate = cached_first_aggregate(model, block, inputs.source)
            self.constant_rows = compute_constant_rows(model, shard, inputs, self.first_aggregate, overlap=overlap)
        self.num_constant = int(self.first_aggregate is not None)
        if self.constant_rows is not None:
            self.num_constant = self.constant_rows.num_layers
        for edges in self.edges[: self.num_constant]:
            self.ledger.add_count("edges_aggregated", edges.num_edges)

    def run_step(self, epoch: int, number: int = 0) -> tuple[float, int]:
        """Compute a step, and leave the global gradient in ``.grad``. All workers together.

        Args:
            epoch: Number of the epoch; with the seed and the step it determines all random draws.
            number: Number of the step in the epoch.

        Returns:
            The loss over all workers, and the number of nodes or links that it is the mean of. If that is 0, there is
            no gradient.
        """
        key = fold_in(self.seed, epoch, number)
        timeline = self.comm.timeline
        objective = self.objective.for_step(self.seed, epoch, number)
        if not objective.num_targets:
            return 0.0, 0
        with timeline.span("forward"):
            if self.is_nodewise and isinstance(objective, LinksOfStep):
                loss = loss_of_read_rows(self.model, self.shard, objective, self._select_features, key)
            else:
                shard = shard_of_step(self.shard, objective.hidden)
                read_rows = find_read_rows(self.shard, objective, key)
                loss = self._forward(shard, objective, key, read_rows)
                self._count_work(shard, read_rows)
        with timeline.span("backward"):
            torch.autograd.backward(loss)
        self.comm.all_reduce_gradients(self.model)
        return self.comm.all_reduce(loss.detach().double().cpu()).item(), objective.num_targets

    def _count_work(self, shard: GraphShard, read_rows: Tensor | None) -> None:
        layers = self.model.layers_list()
        seen = self.edges if shard is self.shard else [shard.layer_view(layer).block.edges for layer in layers]
        # A cached aggregate was counted when it was computed.
        for index, edges in enumerate(seen):
            if index >= self.num_constant:
                self.ledger.add_count("edges_aggregated", edges.num_edges)
            some_rows = read_rows if index == len(seen) - 1 else None
            self.ledger.add_count("rows_computed", edges.num_dst if some_rows is None else len(some_rows))

    def _forward(self, shard: GraphShard, objective: StepObjective, key: int, read_rows: Tensor | None) -> Tensor:
        """Return the loss. Logits are held by it alone: they are freed as soon as their gradient is known."""
        logits = full_forward(
            self.model,
            shard,
            self.inputs,
            key,
            first_aggregate=self.constant_rows or self.first_aggregate,
            overlap=self.overlap,
            last_rows=self.last_rows,
            read_rows=read_rows,
        )
        if isinstance(objective, LinksOfStep):
            return objective.loss(logits, key, read_rows)
        return objective.loss(logits, key)

    def _select_features(self, rows: Tensor) -> Features:
        return index_rows(self.inputs.own, rows.to(self.comm.device))

    def close(self) -> None:
        """Release the edges, the cached aggregate and idle memory."""
        self.edges = []
        self.last_rows = None
        self.first_aggregate = self.constant_rows = None
        memory_pool.release_idle_memory()
