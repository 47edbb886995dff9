"""Aggregation of a layer over column slices: own rows are split into slices, summed, and gathered again.

Letters: ``n`` own nodes, ``V`` all nodes, ``C`` channels, ``F`` columns, ``f`` those of the worker's slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.ledger import Kind
from outgrow.core.timeline import Timeline
from outgrow.engine.hidden_edges import HiddenEdges
from outgrow.engine.shard import GraphShard, layer_topology
from outgrow.nn.layer import Layer, NodeMessages
from outgrow.ops.aggregation.base import Aggregate
from outgrow.ops.csc import in_degree
from outgrow.strategies.tensor.all_to_all import ColumnExchange
from outgrow.strategies.tensor.chunk_messages import LayerRound, ScoreRows
from outgrow.strategies.tensor.mapped_graph import MappedGraph
from outgrow.strategies.tensor.owned_edges import OwnedEdges, reads_features_of_all_edges
from outgrow.strategies.tensor.pipelines import ChunkPipelines
from outgrow.strategies.tensor.propagated_hops import PropagatedHops, carry_own_rows, propagation_conv

NO_MESSAGES = NodeMessages(None, None)


class SlicedAggregation:
    """Aggregations of layers, where every worker holds all edges of the graph. Final.

    Counted in the ledger: ``edges_aggregated``, the edges times the worker's share of the columns; and
    ``edge_columns``, the edges times the numbers of a source row in its slice.

    Args:
        shard: Gives the nodes that the worker owns.
        timeline: Records the spans.
        chunks: Number of chunks: rows of one are exchanged while another is aggregated.
        mapped_graph: Files with the edges and the fixed weights, and slices if wanted; None if these are in memory.
        row_device: Device of whole rows; None for the worker's device.
        shares_weights: Whether the owner of an edge's destination computes the attention that is propagated,
            and sends it to all; else every worker computes it from scores.
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
        self.pipelines = ChunkPipelines(shard, timeline, chunks, self._whole_block, mapped_graph, row_device)
        self.column_exchange = ColumnExchange(shard.comm, shard.owned_nodes, row_device)
        self._blocks: dict[tuple[bool, bool], Block] = {}
        self.shares_weights = shares_weights
        self._own_edges = OwnedEdges(shard, self._whole_block)
        self._hidden: HiddenEdges | None = None
        self._blocks_of_step: dict[tuple[bool, bool], Block] = {}

    @contextmanager
    def hide_edges(self, hidden: HiddenEdges | None) -> Iterator[None]:
        """Context of a step in which layers do not see some edges."""
        self._hidden = hidden
        try:
            yield
        finally:
            self._hidden = None
            self._blocks_of_step = {}

    def aggregate_rows(
        self, layer: Layer, key: int | None, source: NodeMessages, target: NodeMessages, kind: Kind
    ) -> Tensor:
        """Return a layer's aggregate, ``[n, C, F]``; ``[n, 1, F]`` if the layer sums channels.

        Args:
            layer: The layer.
            key: Random key of the layer in this step; None for no random draws.
            source: Messages of own nodes as sources.
            target: Messages of own nodes as destinations.
            kind: Kind of the source rows, for the ledger.
        """
        block = self._block_for_pass(layer, key)
        # Scores are narrow, so every worker gets those of all nodes; only the wide columns are cut into
        # slices.
        source_scores, target_scores = self._all_gather_scores([source.scores, target.scores])
        if self._hidden is None and self.pipelines.sums_pipelined([layer]):
            weight = self._weigh_edges(
                layer, block, NodeMessages(source.values, source_scores), NodeMessages(None, target_scores)
            )
            return self._pipelined_sum(layer, source.values, weight, 1, kind)
        if self._hidden is None and self.pipelines.aggregates_chunks([layer]):
            scores = ScoreRows(source_scores, target_scores, block.edge_scores)
            return self._aggregate_chunks([self._make_round(layer, key, scores)], source.values, target.values, kind)
        # Both splits are started before either is waited for, so that they overlap.
        pending = [
            None if rows.values is None else self.column_exchange.to_slices(rows.values, kind)
            for rows in (source, target)
        ]
        columns, target_columns = (None if each is None else each.wait() for each in pending)
        return self._aggregate_and_gather(
            layer, block, NodeMessages(columns, source_scores), NodeMessages(target_columns, target_scores)
        )

    def aggregate_slices(
        self, layer: Layer, key: int | None, slices_VCf: Tensor, kind: Kind = Kind.ACTIVATIONS
    ) -> Tensor:
        """Return a layer's aggregate, ``[n, C, F]``, from the worker's constant slices of its source rows."""
        if self._hidden is None and self.pipelines.aggregates_chunks([layer]):
            rounds = [self._make_round(layer, key, ScoreRows(edge=self._gather_edge_scores(layer)))]
            return self._aggregate_chunks(rounds, slices_VCf, None, kind, result_kind=kind, in_slices=True)
        return self._aggregate_and_gather(
            layer, self._block_for_pass(layer, key), NodeMessages(slices_VCf, None), NO_MESSAGES, kind
        )

    def propagate_layers(
        self,
        layers: Sequence[Layer],
        rows_nD: Tensor,
        kind: Kind,
        feature_slices: Tensor | None = None,
        gathered_kind: Kind = Kind.ACTIVATIONS,
    ) -> Tensor:
        """Return own rows after layers that only propagate, ``[n, (1 + hops_out) F]``: without scores.

        Args:
            layers: The layers.
            rows_nD: Own rows: the columns, those of earlier rounds, then the carried ones (scores).
            kind: Kind of the rows, for the ledger.
            feature_slices: ``[V, 1, f]`` slices of the columns if the worker has them; None to exchange them.
            gathered_kind: Kind of the rows that are gathered.
        """
        convs = [propagation_conv(layer) for layer in layers]
        end = rows_nD.shape[1] - convs[0].carried_columns
        hops = PropagatedHops(self.column_exchange, rows_nD[:, :end], convs[0].features, feature_slices, kind)
        piped = feature_slices is None and self._hidden is None and self.pipelines.sums_pipelined(layers)
        if self._hidden is None and not piped and not self.shares_weights and self.pipelines.aggregates_chunks(layers):
            rounds = self._propagation_rounds(layers, rows_nD[:, end:])
            if not any(conv.hops_out or conv.alpha for conv in convs):
                given = rows_nD[:, None, :end] if feature_slices is None else feature_slices
                sliced = feature_slices is not None
                made = self._aggregate_chunks(rounds, given, None, kind, result_kind=gathered_kind, in_slices=sliced)
                return made[:, 0]
            if self.pipelines.mapped_graph is not None:
                return self._propagate_rows(rounds, hops, kind, gathered_kind)
        weights = self._layer_weights(layers, rows_nD[:, end:])
        # The pipeline runs all rounds with one tensor of weights, and gathers the last.
        same = all(
            weight is weights[0] and conv.alpha == convs[0].alpha for conv, weight in zip(convs, weights, strict=True)
        )
        if piped and same and carry_own_rows(convs):
            own_n1F = rows_nD[:, None, : convs[0].features]
            made = self._pipelined_sum(layers[0], own_n1F, weights[0], len(layers), kind, convs[0].alpha)
            hops.add_rows(made, convs[-1].hops_out)
            return hops.gather(gathered_kind)
        # Propagation keeps columns apart, so no exchange is needed between layers.
        for layer, conv, weight in zip(layers, convs, weights, strict=True):
            slices = self._aggregate_columns(
                layer, self._layer_block(layer), NodeMessages(hops.newest, None), NO_MESSAGES, weight
            )
            if conv.alpha:
                slices = torch.add(slices, hops.initial, alpha=conv.alpha)
            hops.add(slices, conv.hops_out)
        return hops.gather(gathered_kind)

    def _propagate_rows(
        self, rounds: Sequence[LayerRound], hops: PropagatedHops, kind: Kind, gathered_kind: Kind
    ) -> Tensor:
        """Return what `propagate_layers` does, exchanging each round: slices of earlier ones are not kept."""
        for step in rounds:
            conv = propagation_conv(step.layer)
            rows = self._aggregate_chunks([step], hops.newest_rows, None, kind)
            if conv.alpha:
                rows = torch.add(rows, hops.initial_rows, alpha=conv.alpha)
            hops.add_rows(rows, conv.hops_out)
        return hops.gather(gathered_kind)

    def _propagation_rounds(self, layers: Sequence[Layer], own_nJ: Tensor) -> list[LayerRound]:
        """Return the rounds of layers that only propagate, from the carried columns of own nodes."""
        carried = self.column_exchange.all_gather_rows(own_nJ, Kind.ACTIVATIONS) if own_nJ.shape[1] else None
        rounds = []
        for layer in layers:
            scores = ScoreRows()
            if carried is not None:
                source, target = propagation_conv(layer).split_scores(carried)
                scores = ScoreRows(source.scores, target.scores)
            rounds.append(self._make_round(layer, None, scores))
        return rounds

    def _layer_weights(self, layers: Sequence[Layer], own_nJ: Tensor) -> list[Tensor | None]:
        """Return the edge weights of each layer, from the carried columns of own nodes."""
        # Layers of the same rule get the same tensor: it has a row per edge, and identity permits the
        # pipeline.
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
        """Compute the weights of all edges, ``[E, K]``, on every worker."""
        conv = propagation_conv(layer)
        return self._weigh_edges(layer, self._layer_block(layer), *conv.split_scores(carried))

    def _compute_own_weights(self, layer: Layer, carried: Tensor) -> Tensor | None:
        """Compute the weights of own in-edges and gather those of all edges, ``[E, K]``."""
        conv = propagation_conv(layer)
        block, exchange = self._own_edges.block_for(layer)
        source, target = conv.split_scores(carried)
        assert target.scores is not None
        weight = conv.edge_weight(block, source, target._replace(scores=target.scores[block.dst_nodes]))
        assert weight is not None
        return exchange.all_gather_rows(weight, Kind.ACTIVATIONS)

    def _block_for_pass(self, layer: Layer, key: int | None) -> Block:
        """Return all edges for a pass with this key, with the scores that features of edges give."""
        block = replace(self._whole_block(layer), edge_scores=self._gather_edge_scores(layer))
        if self._hidden is None:
            return replace(block, key=key)
        visible = self._layer_block(layer)
        scores = block.edge_scores
        # Scores of features are gathered for all edges, in the order of their ids.
        return replace(visible, key=key, edge_scores=None if scores is None else scores[visible.edge_ids])

    def _gather_edge_scores(self, layer: Layer) -> Tensor | None:
        # Weights in files are fixed, and were computed from features in files.
        return self._own_edges.gather_scores(layer) if self.mapped_graph is None else None

    def _pipelined_sum(
        self, layer: Layer, rows: Tensor | None, weight: Tensor | None, count: int, kind: Kind, alpha: float = 0.0
    ) -> Tensor:
        """Return ``count`` rounds of a weighted sum, ``[n, C, F]``, overlapped with the exchange."""
        assert rows is not None
        for _ in range(count):
            self._count_work(layer)
        sums = layer.spec.sums_channels
        return self.pipelines.sum_for(layer)(rows, weight, count, kind, sums_channels=sums, alpha=alpha)

    def _make_round(self, layer: Layer, key: int | None, scores: ScoreRows) -> LayerRound:
        return LayerRound(layer, key, self._restrict_aggregation(layer), scores)

    def _aggregate_chunks(
        self,
        rounds: Sequence[LayerRound],
        source: Tensor | None,
        target_nCF: Tensor | None,
        kind: Kind,
        *,
        result_kind: Kind = Kind.ACTIVATIONS,
        in_slices: bool = False,
    ) -> Tensor:
        """Return rounds of aggregations, ``[n, C, F]``, overlapped with the exchange of chunks."""
        assert source is not None
        for each in rounds:
            self._count_work(each.layer)
        pipeline = self.pipelines.aggregation_for(rounds[0].layer)
        return pipeline(rounds, source, target_nCF, kind, result_kind=result_kind, in_slices=in_slices)

    def _restrict_aggregation(self, layer: Layer) -> Aggregate:
        """Return the layer's aggregation; parameters that scale columns are cut to those of the slice."""
        return layer.conv.aggregation.restrict_to_columns(*self.column_exchange.local_columns(layer.spec.source[1]))

    def _aggregate_and_gather(
        self, layer: Layer, block: Block, source: NodeMessages, target: NodeMessages, kind: Kind = Kind.ACTIVATIONS
    ) -> Tensor:
        weight = self._weigh_edges(layer, block, source, target)
        slices = self._aggregate_columns(layer, block, source, target, weight)
        if layer.spec.sums_channels:
            # Before the gather, which then moves one channel.
            slices = slices.sum(1, keepdim=True)
        return self.column_exchange.to_rows(slices, layer.spec.aggregate[1], kind)

    def _weigh_edges(self, layer: Layer, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor | None:
        """Return the weights of all edges, ``[E, K]``."""
        if self.mapped_graph is None:
            return layer.conv.edge_weight(block, source, target)
        assert source.values is not None
        return self.mapped_graph.edge_weights(layer, block, source.values.dtype)

    def _aggregate_columns(
        self, layer: Layer, block: Block, source: NodeMessages, target: NodeMessages, weight: Tensor | None
    ) -> Tensor:
        """Return the worker's columns of the aggregates of all nodes, ``[V, C, f]``."""
        assert source.values is not None
        self._count_work(layer)
        if self.mapped_graph is not None and source.values.requires_grad:
            # Else the backward pass would sort all edges in memory.
            self.mapped_graph.store_transpose(block.edges)
        return self._restrict_aggregation(layer)(block, source.values, target.values, weight)

    def _count_work(self, layer: Layer) -> None:
        edges = self._layer_block(layer).edges.num_edges
        channels, columns = layer.spec.source
        first, last = self.column_exchange.local_columns(columns)
        # Differences of rounded products: over all workers they add up to the edges exactly.
        self.comm.ledger.add_count("edges_aggregated", edges * last // columns - edges * first // columns)
        self.comm.ledger.add_count("edge_columns", edges * channels * (last - first))

    def _all_gather_scores(self, own: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gather the scores of all nodes in one exchange; None stays None."""
        given = [score for score in own if score is not None]
        if not given:
            return [None for _ in own]
        whole = self.column_exchange.all_gather_rows(torch.cat(given, 1), Kind.ACTIVATIONS)
        found = iter(torch.split(whole, [score.shape[1] for score in given], 1))
        return [None if score is None else next(found) for score in own]

    def _layer_block(self, layer: Layer) -> Block:
        """Return the graph as the layer needs it, without the edges that the step hides."""
        whole = self._whole_block(layer)
        if self._hidden is None:
            return whole
        kind = layer.spec.self_loops, reads_features_of_all_edges(layer)
        if kind not in self._blocks_of_step:
            block = self._hidden.remove_from(whole)
            degree = in_degree(block.edges.indptr, block.edges.weight)
            self._blocks_of_step[kind] = replace(block, src_degree=degree, dst_degree=degree)
        return self._blocks_of_step[kind]

    def _whole_block(self, layer: Layer) -> Block:
        """Return the whole graph with or without self-loops, as the layer needs it."""
        looped = layer.spec.self_loops
        if self.mapped_graph is not None:
            if (looped, True) not in self._blocks:
                self._blocks[looped, True] = self.mapped_graph.make_block(self_loops=looped)
            return self._blocks[looped, True]
        # Scores of features come from the owners of edges: only other uses of features need those of all edges.
        reads = reads_features_of_all_edges(layer)
        if (looped, reads) not in self._blocks:
            topology = self.shard.topology if reads else self.shard.topology.without_edge_features
            self._blocks[looped, reads] = layer_topology(topology, layer).block.to(self.comm.device)
        return self._blocks[looped, reads]
