"""Aggregates of own nodes from rows of own nodes, by way of slices: what all workers do together for a layer.

Letters: ``n`` own nodes, ``V`` all nodes, ``C`` channels, ``F`` columns, ``f`` those of the worker's slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.core.ledger import Kind
from outgrow.core.timeline import Timeline
from outgrow.engine.shard import GraphShard, PartitionShard, layer_topology
from outgrow.nn.layer import Layer, NodeMessages
from outgrow.nn.propagation import PropagationBase
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.rows.gather import concat_ranges
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.tensor.all_to_all import ColumnExchange
from outgrow.strategies.tensor.chunk_schedule import make_schedules
from outgrow.strategies.tensor.mapped_graph import MappedGraph
from outgrow.strategies.tensor.pipelined_sums import PipelinedSum

NO_MESSAGES = NodeMessages(None, None)


class SlicedAggregation:
    """Aggregations of layers over a graph of which every worker holds all edges. Final.

    Counted in the ledger: ``edges_aggregated``, a worker's share of the edges being that of the columns which it
    aggregates; and ``edge_columns``, edges times numbers of a source row in its slice.

    Args:
        shard: The nodes that the worker owns.
        timeline: Told when what was done.
        chunks: Chunks of which rows travel while others are aggregated, where sums are weighted.
        mapped_graph: Where edges and fixed weights are, if not in memory.
        row_device: Where whole rows are; None for the worker's device.
        shares_weights: Whether attention that is propagated is computed by the owner of an edge's destination, and
            sent to all; else every worker computes it from scores.
    """

    def __init__(
        self,
        shard: GraphShard,
        timeline: Timeline,
        *,
        chunks: int,
        mapped_graph: MappedGraph | None = None,
        row_device: torch.device | None = None,
        shares_weights: bool = False,
    ) -> None:
        self.mapped_graph = mapped_graph
        self.row_device = row_device
        self.shard = shard
        self.comm = shard.comm
        self.timeline = timeline
        self.chunks = chunks
        self.column_exchange = ColumnExchange(shard.comm, shard.owned_nodes, row_device)
        self._blocks: dict[bool, Block] = {}
        self._pipelines: dict[bool, PipelinedSum] = {}
        self.shares_weights = shares_weights
        self._own_edges: dict[bool, tuple[Block, ColumnExchange]] = {}

    def aggregate_rows(
        self, layer: Layer, key: int | None, source: NodeMessages, target: NodeMessages, kind: Kind
    ) -> Tensor:
        """``[n, C, F]``: a layer's aggregate.

        Args:
            layer: The layer.
            key: Its key in this step; None draws nothing.
            source: What own nodes give as sources.
            target: What they give as destinations.
            kind: What this is.
        """
        block = self._layer_block(layer).with_rng_key(key)
        mine, theirs = self._all_gather_scores([source.scores, target.scores])
        if self._can_pipeline([layer], target):
            weight = self._weigh_edges(layer, block, NodeMessages(source.values, mine), NodeMessages(None, theirs))
            return self._pipelined_sum(layer, source.values, weight, 1, kind)
        under = [
            None if rows.values is None else self.column_exchange.to_slices(rows.values, kind)
            for rows in (source, target)
        ]
        columns, beside = (None if each is None else each.wait() for each in under)
        return self._aggregate_and_gather(layer, block, NodeMessages(columns, mine), NodeMessages(beside, theirs))

    def aggregate_slices(
        self, layer: Layer, key: int | None, slices_VCf: Tensor, kind: Kind = Kind.ACTIVATIONS
    ) -> Tensor:
        """``[n, C, F]``: a layer's aggregate, from slices of its source rows that are here."""
        return self._aggregate_and_gather(
            layer, self._layer_block(layer).with_rng_key(key), NodeMessages(slices_VCf, None), NO_MESSAGES, kind
        )

    def propagate_layers(
        self, layers: Sequence[Layer], rows_nD: Tensor, kind: Kind, feature_slices: Tensor | None = None
    ) -> Tensor:
        """``[n, F]``: the columns of own nodes after layers that only propagate.

        Args:
            layers: The layers.
            rows_nD: Own rows: columns and what they carry.
            kind: What they are.
            feature_slices: ``[V, 1, f]`` slices of the columns, where they are here; None if not.
        """
        width = rows_nD.shape[1] - propagation_conv(layers[0]).carried_columns
        own_n1F = rows_nD[:, None, :width]
        weights = self._layer_weights(layers, rows_nD[:, width:])
        if feature_slices is None and self._can_pipeline(layers) and all(weight is weights[0] for weight in weights):
            return self._pipelined_sum(layers[0], own_n1F, weights[0], len(layers), kind)[:, 0]
        slices = self.column_exchange.to_slices(own_n1F, kind).wait() if feature_slices is None else feature_slices
        for layer, weight in zip(layers, weights, strict=True):
            slices = self._aggregate_columns(
                layer, self._layer_block(layer), NodeMessages(slices, None), NO_MESSAGES, weight
            )
        return self.column_exchange.to_rows(slices, width, Kind.ACTIVATIONS)[:, 0]

    def _layer_weights(self, layers: Sequence[Layer], own_nJ: Tensor) -> list[Tensor | None]:
        """Weights of the edges in each of some layers, from what own nodes carry; computed once for each rule."""
        found: dict[tuple[object, ...], Tensor | None] = {}
        carried = self.column_exchange.all_gather_rows(own_nJ, Kind.ACTIVATIONS) if own_nJ.shape[1] else own_nJ
        for conv, layer in ((propagation_conv(layer), layer) for layer in layers):
            if conv.edge_weight_key not in found:
                shared = self.shares_weights and conv.carried_columns
                found[conv.edge_weight_key] = (self._compute_own_weights if shared else self._compute_all_weights)(
                    layer, carried
                )
        return [found[propagation_conv(layer).edge_weight_key] for layer in layers]

    def _compute_all_weights(self, layer: Layer, carried: Tensor) -> Tensor | None:
        """``[E, K]``: weights of all edges, which every worker computes."""
        conv = propagation_conv(layer)
        return self._weigh_edges(layer, self._layer_block(layer), *conv.split_scores(carried))

    def _compute_own_weights(self, layer: Layer, carried: Tensor) -> Tensor | None:
        """``[E, K]``: weights of all edges, each computed by the worker that owns its destination."""
        conv = propagation_conv(layer)
        looped = layer.spec.self_loops
        if looped not in self._own_edges:
            self._own_edges[looped] = owned_in_edges(
                self._layer_block(layer), self.shard.owned_nodes.to(self.comm.device), self.comm
            )
        block, deal = self._own_edges[looped]
        source, target = conv.split_scores(carried)
        assert target.scores is not None
        weight = conv.edge_weight(block, source, target._replace(scores=target.scores[block.dst_nodes]))
        assert weight is not None
        return deal.all_gather_rows(weight, Kind.ACTIVATIONS)

    def _pipelined_sum(
        self, layer: Layer, rows: Tensor | None, weight: Tensor | None, count: int, kind: Kind
    ) -> Tensor:
        """``[n, C, F]``: rounds of a weighted sum, in which rows travel while others are aggregated."""
        assert rows is not None
        for _ in range(count):
            self._count_work(layer)
        return self._pipeline_for(layer)(rows, weight, count, kind)

    def _aggregate_and_gather(
        self, layer: Layer, block: Block, source: NodeMessages, target: NodeMessages, kind: Kind = Kind.ACTIVATIONS
    ) -> Tensor:
        weight = self._weigh_edges(layer, block, source, target)
        slices = self._aggregate_columns(layer, block, source, target, weight)
        return self.column_exchange.to_rows(slices, layer.spec.aggregate[1], kind)

    def _weigh_edges(self, layer: Layer, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor | None:
        """``[E, K]``: the weights of all edges."""
        if self.mapped_graph is None:
            return layer.conv.edge_weight(block, source, target)
        assert source.values is not None
        return self.mapped_graph.edge_weights(layer, block, source.values.dtype)

    def _aggregate_columns(
        self, layer: Layer, block: Block, source: NodeMessages, target: NodeMessages, weight: Tensor | None
    ) -> Tensor:
        """``[V, C, f]``: the worker's columns of the aggregates of all nodes."""
        assert source.values is not None
        self._count_work(layer)
        aggregate = layer.conv.aggregation.restrict_to_columns(
            *self.column_exchange.local_columns(layer.spec.source[1])
        )
        return aggregate(block, source.values, target.values, weight)

    def _count_work(self, layer: Layer) -> None:
        edges, (channels, columns) = self._layer_block(layer).edges.num_edges, layer.spec.source
        first, last = self.column_exchange.local_columns(columns)
        self.comm.ledger.add_count("edges_aggregated", edges * last // columns - edges * first // columns)
        self.comm.ledger.add_count("edge_columns", edges * channels * (last - first))

    def _all_gather_scores(self, own: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Scores of all nodes, in one exchange, in the order of those of the own ones."""
        given = [score for score in own if score is not None]
        if not given:
            return [None for _ in own]
        whole = self.column_exchange.all_gather_rows(torch.cat(given, 1), Kind.ACTIVATIONS)
        found = iter(torch.split(whole, [score.shape[1] for score in given], 1))
        return [None if score is None else next(found) for score in own]

    def _can_pipeline(self, layers: Sequence[Layer], target: NodeMessages = NO_MESSAGES) -> bool:
        """Whether layers are sums of which each channel has a weight of its own, and there is someone to wait for."""
        sums = all(isinstance(layer.conv.aggregation, WeightedSum) for layer in layers)
        apart = all(layer.spec.source == layer.spec.aggregate for layer in layers)
        views = {layer.spec.self_loops for layer in layers}
        return isinstance(self.shard, PartitionShard) and sums and apart and len(views) == 1 and target.values is None

    def _pipeline_for(self, layer: Layer) -> PipelinedSum:
        looped = layer.spec.self_loops
        if looped not in self._pipelines:
            share = self.shard
            edges = self._layer_block(layer).edges
            assert isinstance(share, PartitionShard)
            lanes = make_schedules(edges, self.chunks, share.owner, share.owned_nodes, self.comm.size, self.row_device)
            self._pipelines[looped] = PipelinedSum(
                self.comm, lanes, edges.num_dst, self.timeline, self.mapped_graph, self.row_device
            )
        return self._pipelines[looped]

    def _layer_block(self, layer: Layer) -> Block:
        """The whole graph as a layer wants it."""
        looped = layer.spec.self_loops
        if looped not in self._blocks:
            if self.mapped_graph is None:
                self._blocks[looped] = layer_topology(self.shard.topology, layer).block.to(self.comm.device)
            else:
                self._blocks[looped] = self.mapped_graph.make_block(self_loops=looped)
        return self._blocks[looped]


def owned_in_edges(whole: Block, own: Tensor, comm: Comm) -> tuple[Block, ColumnExchange]:
    """The in-edges of a worker's nodes, each node being a source; and how all edges are dealt out. All together.

    Args:
        whole: All edges.
        own: ``[n]`` int64, the nodes.
        comm: The line to the other workers.
    """
    edges = whole.edges
    counts = edges.indptr.diff()[own]
    ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    number = concat_ranges(edges.indptr[own], counts)
    relation, weight = (None if each is None else each[number] for each in (edges.relation, edges.weight))
    part = Edges(indptr=ends, indices=edges.indices[number], num_src=edges.num_src, relation=relation, weight=weight)
    block = replace(whole, edges=part, dst_nodes=own, dst_degree=whole.dst_degree[own], edge_ids=number)
    return block, ColumnExchange(comm, number.cpu())


def propagation_conv(layer: Layer) -> PropagationBase:
    """The convolution of a layer that propagates."""
    assert isinstance(layer.conv, PropagationBase)
    return layer.conv
