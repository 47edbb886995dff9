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
from outgrow.engine.shard import Part, Share, view_of
from outgrow.nn.layer import Layer, Rows
from outgrow.nn.propagation import Propagation
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.rows.gather import spans
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.tensor.all_to_all import Deal
from outgrow.strategies.tensor.chunk_schedule import lanes_of
from outgrow.strategies.tensor.mapped_graph import Files
from outgrow.strategies.tensor.pipelined_sums import Rounds

NOTHING = Rows(None, None)


class Sums:
    """Aggregations of layers over a graph of which every worker holds all edges. Final.

    Counted in the ledger: ``edges_aggregated``, a worker's share of the edges being that of the columns which it
    aggregates; and ``edge_columns``, edges times numbers of a source row in its slice.

    Args:
        share: The nodes that the worker owns.
        timeline: Told when what was done.
        chunks: Chunks of which rows travel while others are aggregated, where sums are weighted.
        files: Where edges and fixed weights are, if not in memory.
        home: Where whole rows are; None for the worker's device.
        shares_weights: Whether attention that is propagated is computed by the owner of an edge's destination, and
            sent to all; else every worker computes it from scores.
    """

    def __init__(
        self,
        share: Share,
        timeline: Timeline,
        *,
        chunks: int,
        files: Files | None = None,
        home: torch.device | None = None,
        shares_weights: bool = False,
    ) -> None:
        self.files, self.home = files, home
        self.share, self.comm, self.timeline, self.chunks = share, share.comm, timeline, chunks
        self.deal = Deal(share.comm, share.own, home)
        self._blocks: dict[bool, Block] = {}
        self._rounds: dict[bool, Rounds] = {}
        self.shares_weights = shares_weights
        self._own_edges: dict[bool, tuple[Block, Deal]] = {}

    def of_rows(self, layer: Layer, key: int | None, source: Rows, target: Rows, kind: Kind) -> Tensor:
        """``[n, C, F]``: a layer's aggregate.

        Args:
            layer: The layer.
            key: Its key in this step; None draws nothing.
            source: What own nodes give as sources.
            target: What they give as destinations.
            kind: What this is.
        """
        block = self._block(layer).keyed(key)
        mine, theirs = self._scores([source.score, target.score])
        if self._in_rounds([layer], target):
            weight = self._weigh(layer, block, Rows(source.columns, mine), Rows(None, theirs))
            return self._summed(layer, source.columns, weight, 1, kind)
        under = [None if rows.columns is None else self.deal.split(rows.columns, kind) for rows in (source, target)]
        columns, beside = (None if each is None else each.wait() for each in under)
        return self._gathered(layer, block, Rows(columns, mine), Rows(beside, theirs))

    def of_slices(self, layer: Layer, key: int | None, slices_VCf: Tensor, kind: Kind = Kind.ACTIVATIONS) -> Tensor:
        """``[n, C, F]``: a layer's aggregate, from slices of its source rows that are here."""
        return self._gathered(layer, self._block(layer).keyed(key), Rows(slices_VCf, None), NOTHING, kind)

    def propagated(self, layers: Sequence[Layer], rows_nD: Tensor, kind: Kind, raw: Tensor | None = None) -> Tensor:
        """``[n, F]``: the columns of own nodes after layers that only propagate.

        Args:
            layers: The layers.
            rows_nD: Own rows: columns and what they carry.
            kind: What they are.
            raw: ``[V, 1, f]`` slices of the columns, where they are here; None if not.
        """
        width = rows_nD.shape[1] - propagation(layers[0]).carries
        own_n1F, weights = rows_nD[:, None, :width], self._weights(layers, rows_nD[:, width:])
        if raw is None and self._in_rounds(layers) and all(weight is weights[0] for weight in weights):
            return self._summed(layers[0], own_n1F, weights[0], len(layers), kind)[:, 0]
        slices = self.deal.split(own_n1F, kind).wait() if raw is None else raw
        for layer, weight in zip(layers, weights, strict=True):
            slices = self._aggregate(layer, self._block(layer), Rows(slices, None), NOTHING, weight)
        return self.deal.gather(slices, width, Kind.ACTIVATIONS)[:, 0]

    def _weights(self, layers: Sequence[Layer], own_nJ: Tensor) -> list[Tensor | None]:
        """Weights of the edges in each of some layers, from what own nodes carry; computed once for each rule."""
        found: dict[tuple[object, ...], Tensor | None] = {}
        carried = self.deal.everywhere(own_nJ, Kind.ACTIVATIONS) if own_nJ.shape[1] else own_nJ
        for conv, layer in ((propagation(layer), layer) for layer in layers):
            if conv.rule not in found:
                shared = self.shares_weights and conv.carries
                found[conv.rule] = (self._shared_weight if shared else self._weight)(layer, carried)
        return [found[propagation(layer).rule] for layer in layers]

    def _weight(self, layer: Layer, carried: Tensor) -> Tensor | None:
        """``[E, K]``: weights of all edges, which every worker computes."""
        conv = propagation(layer)
        return self._weigh(layer, self._block(layer), *conv.scores(carried))

    def _shared_weight(self, layer: Layer, carried: Tensor) -> Tensor | None:
        """``[E, K]``: weights of all edges, each computed by the worker that owns its destination."""
        conv, looped = propagation(layer), layer.widths.self_loops
        if looped not in self._own_edges:
            self._own_edges[looped] = own_edges(self._block(layer), self.share.own.to(self.comm.device), self.comm)
        block, deal = self._own_edges[looped]
        source, target = conv.scores(carried)
        assert target.score is not None
        weight = conv.weigh(block, source, target._replace(score=target.score[block.dst_nodes]))
        assert weight is not None
        return deal.everywhere(weight, Kind.ACTIVATIONS)

    def _summed(self, layer: Layer, rows: Tensor | None, weight: Tensor | None, count: int, kind: Kind) -> Tensor:
        """``[n, C, F]``: rounds of a weighted sum, in which rows travel while others are aggregated."""
        assert rows is not None
        for _ in range(count):
            self._count(layer)
        return self._rounds_of(layer)(rows, weight, count, kind)

    def _gathered(
        self, layer: Layer, block: Block, source: Rows, target: Rows, kind: Kind = Kind.ACTIVATIONS
    ) -> Tensor:
        weight = self._weigh(layer, block, source, target)
        slices = self._aggregate(layer, block, source, target, weight)
        return self.deal.gather(slices, layer.widths.aggregate[1], kind)

    def _weigh(self, layer: Layer, block: Block, source: Rows, target: Rows) -> Tensor | None:
        """``[E, K]``: the weights of all edges."""
        if self.files is None:
            return layer.conv.weigh(block, source, target)
        assert source.columns is not None
        return self.files.weights(layer, block, source.columns.dtype)

    def _aggregate(self, layer: Layer, block: Block, source: Rows, target: Rows, weight: Tensor | None) -> Tensor:
        """``[V, C, f]``: the worker's columns of the aggregates of all nodes."""
        assert source.columns is not None
        self._count(layer)
        aggregate = layer.conv.aggregation.on_columns(*self.deal.mine(layer.widths.source[1]))
        return aggregate(block, source.columns, target.columns, weight)

    def _count(self, layer: Layer) -> None:
        edges, (channels, columns) = self._block(layer).edges.num_edges, layer.widths.source
        first, last = self.deal.mine(columns)
        self.comm.ledger.count("edges_aggregated", edges * last // columns - edges * first // columns)
        self.comm.ledger.count("edge_columns", edges * channels * (last - first))

    def _scores(self, own: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Scores of all nodes, in one exchange, in the order of those of the own ones."""
        given = [score for score in own if score is not None]
        if not given:
            return [None for _ in own]
        whole = self.deal.everywhere(torch.cat(given, 1), Kind.ACTIVATIONS)
        found = iter(torch.split(whole, [score.shape[1] for score in given], 1))
        return [None if score is None else next(found) for score in own]

    def _in_rounds(self, layers: Sequence[Layer], target: Rows = NOTHING) -> bool:
        """Whether layers are sums of which each channel has a weight of its own, and there is someone to wait for."""
        sums = all(isinstance(layer.conv.aggregation, WeightedSum) for layer in layers)
        apart = all(layer.widths.source == layer.widths.aggregate for layer in layers)
        views = {layer.widths.self_loops for layer in layers}
        return isinstance(self.share, Part) and sums and apart and len(views) == 1 and target.columns is None

    def _rounds_of(self, layer: Layer) -> Rounds:
        looped = layer.widths.self_loops
        if looped not in self._rounds:
            share, edges = self.share, self._block(layer).edges
            assert isinstance(share, Part)
            lanes = lanes_of(edges, self.chunks, share.owner, share.own, self.comm.size, self.home)
            self._rounds[looped] = Rounds(self.comm, lanes, edges.num_dst, self.timeline, self.files, self.home)
        return self._rounds[looped]

    def _block(self, layer: Layer) -> Block:
        """The whole graph as a layer wants it."""
        looped = layer.widths.self_loops
        if looped not in self._blocks:
            if self.files is None:
                self._blocks[looped] = view_of(self.share.topology, layer).block.to(self.comm.device)
            else:
                self._blocks[looped] = self.files.block(self_loops=looped)
        return self._blocks[looped]


def own_edges(whole: Block, own: Tensor, comm: Comm) -> tuple[Block, Deal]:
    """The in-edges of a worker's nodes, each node being a source; and how all edges are dealt out. All together.

    Args:
        whole: All edges.
        own: ``[n]`` int64, the nodes.
        comm: The line to the other workers.
    """
    edges = whole.edges
    counts = edges.indptr.diff()[own]
    ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    number = spans(edges.indptr[own], counts)
    relation, weight = (None if each is None else each[number] for each in (edges.relation, edges.weight))
    part = Edges(indptr=ends, indices=edges.indices[number], num_src=edges.num_src, relation=relation, weight=weight)
    block = replace(whole, edges=part, dst_nodes=own, dst_degree=whole.dst_degree[own], edge_ids=number)
    return block, Deal(comm, number.cpu())


def propagation(layer: Layer) -> Propagation:
    """The convolution of a layer that propagates."""
    assert isinstance(layer.conv, Propagation)
    return layer.conv
