"""Full-graph forward/backward on a shard; halo exchange; cached first aggregate.

Source rows are computed by their owner and travel to the workers whose nodes they have edges to. Where a sum over edges
may be taken in parts, that over the worker's own rows is taken while the others are under way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.ledger import Kind
from outgrow.engine.features.inputs import Input
from outgrow.engine.objective import Goal
from outgrow.engine.shard import Share
from outgrow.graph.halo import LocalGraph
from outgrow.nn.layer import Features, Layer, Rows
from outgrow.nn.model import Model, layer_key
from outgrow.ops import memory_pool
from outgrow.ops.backend import once
from outgrow.ops.rng import derive
from outgrow.ops.sparse import rows_between

_WEIGHT_KEY = "weights by part"


def exchanged(layer: Layer, share: Share, x_own: Features, key: int | None, *, overlap: bool = True) -> Tensor:
    """``[n, O]``: a layer's output for the nodes that the worker owns.

    Args:
        layer: The layer.
        share: What the worker holds of the graph.
        x_own: ``[n, D]`` input of the own nodes.
        key: Key of the draws of this layer in this step; None draws nothing.
        overlap: Whether to aggregate own rows while others are under way, where the layer allows it.
    """
    view = share.view(layer)
    block = view.block.keyed(key)
    source, target = layer.ends(x_own, x_own)
    if view.local is None:
        aggregate = layer.aggregate(block, source, target)
    elif overlap and layer.conv.aggregation.additive:
        aggregate = _in_parts(layer, share, view.local, block, source, target)
    else:
        aggregate = layer.aggregate(block, sources(share, source), target)
    return layer.update(x_own, aggregate, block)


def sources(share: Share, source: Rows) -> Rows:
    """The rows of all sources of a share, from those of its own nodes."""
    columns, score = (None if part is None else share.beside(part, Kind.ACTIVATIONS) for part in source)
    return Rows(columns, score)


def _in_parts(layer: Layer, share: Share, local: LocalGraph, block: Block, source: Rows, target: Rows) -> Tensor:
    assert source.columns is not None
    others = share.fetch(source.columns, Kind.ACTIVATIONS)
    score = None if source.score is None else share.beside(source.score, Kind.ACTIVATIONS)
    weight = layer.conv.weigh(block, Rows(source.columns, score), target)
    own_weight, halo_weight = _by_part(local, weight)
    aggregation = layer.conv.aggregation
    mine = aggregation(local.own_edges, source.columns, target.columns, own_weight)
    theirs = aggregation(local.halo_edges, others.wait(), target.columns, halo_weight)
    # into memory that is there, as fresh pages cost more than the sum; views, of padded rows, may not be changed
    return mine + theirs if mine._is_view() else mine.add_(theirs)


def _by_part(local: LocalGraph, weight_EK: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The weights of the edges of each part. Those that the graph fixes are dealt out once."""
    if weight_EK is None:
        return None, None
    order, num_own = local.edge_order, local.own_edges.edges.num_edges
    if weight_EK.requires_grad:
        return _Deal.apply(weight_EK, order, num_own)  # type: ignore[no-any-return, no-untyped-call]
    kept: Any = local.block.edges.derived.get(_WEIGHT_KEY)
    if kept is None or kept[0] is not weight_EK:
        kept = weight_EK, *_dealt(weight_EK, order, num_own)
        local.block.edges.derived[_WEIGHT_KEY] = kept
    return kept[1], kept[2]


def _dealt(weight_EK: Tensor, order: Tensor, num_own: int) -> tuple[Tensor, Tensor]:
    return weight_EK.index_select(0, order[:num_own]), weight_EK.index_select(0, order[num_own:])


class _Deal(torch.autograd.Function):
    """Weights of all edges, dealt out to two parts."""

    @staticmethod
    def forward(ctx: Any, weight_EK: Tensor, order: Tensor, num_own: int) -> tuple[Tensor, Tensor]:
        ctx.order, ctx.num_own = order, num_own
        return _dealt(weight_EK, order, num_own)

    @staticmethod
    @once
    def backward(ctx: Any, own: Tensor, halo: Tensor) -> tuple[Tensor, None, None]:
        out = own.new_empty(len(ctx.order), *own.shape[1:])
        out[ctx.order[: ctx.num_own]], out[ctx.order[ctx.num_own :]] = own, halo
        return out, None, None


def full_pass(
    model: Model, share: Share, given: Input, key: int, *, known: Tensor | None = None, overlap: bool = True
) -> Tensor:
    """Logits of the nodes that the worker owns, with all their neighbours.

    Args:
        model: The model.
        share: What the worker holds of the graph.
        given: Features of its nodes.
        key: Key of (seed, epoch, step).
        known: ``[n, C, F]`` aggregate of the first layer, where it is constant; None to compute it.
        overlap: Whether to aggregate own rows while others are under way.

    Returns:
        ``[n, C]``, differentiable in the parameters.
    """
    first, *others = model.stages()
    block = share.view(first).block.keyed(layer_key(key, 0))
    x_src = model.input(given.source, block.src_nodes[: len(given.source)], key)
    x = x_src if len(given.own) == len(x_src) else rows_between(x_src, 0, len(given.own))
    if known is not None:
        x = first.update(x, known, block)
    elif model.passes_features_on:
        x = first(block, x_src, x)
    else:
        x = exchanged(first, share, x, layer_key(key, 0), overlap=overlap)
    for index, layer in enumerate(others, 1):
        x = exchanged(layer, share, x, layer_key(key, index), overlap=overlap)
    assert isinstance(x, Tensor)
    return x


_AGGREGATE_KEY = "constant aggregate"


class _Kept(NamedTuple):
    features: Tensor
    conv: type
    aggregate: Tensor


def is_constant(model: Model, features: Features) -> bool:
    """Whether the first layer aggregates raw features with weights that the graph fixes, and no dropout before it."""
    given = isinstance(features, Tensor) and model.passes_features_on
    return given and model.stages()[0].constant_aggregate and model.input_dropout == 0


def kept_aggregate(layer: Layer, block: Block, features: Features) -> Tensor | None:
    """The aggregate of raw features that `first_aggregate` keeps, for a layer of its kind; None if it keeps none."""
    kept = block.edges.derived.get(_AGGREGATE_KEY)
    if isinstance(kept, _Kept) and kept.features is features and kept.conv is type(layer.conv):
        return kept.aggregate if layer.constant_aggregate else None
    return None


def first_aggregate(model: Model, block: Block, features: Features) -> Tensor | None:
    """The aggregate of the first layer, computed once and kept with the block's edges.

    Args:
        model: The model.
        block: The whole graph, as the first layer wants it.
        features: ``[V, D]`` raw features.

    Returns:
        ``[V, 1, D]``; None if it is not constant: the layer projects before it aggregates, its weights are trained, or
        dropout precedes it.
    """
    layer = model.stages()[0]
    if not is_constant(model, features) or not isinstance(features, Tensor):
        return None
    kept = kept_aggregate(layer, block, features)
    if kept is not None:
        return kept
    with torch.no_grad():
        aggregate = layer.aggregate(block.keyed(None), layer.source(features), Rows(None, None))
    block.edges.derived[_AGGREGATE_KEY] = _Kept(features, type(layer.conv), aggregate)
    return aggregate


class ResidentPass:
    """Full-graph epochs on what a worker holds of a graph, with the rows of all layers in memory.

    An aggregate of the first layer that is constant is computed here, once.

    Counted in the ledger: ``edges_aggregated`` and ``rows_computed``, of all layers.

    Args:
        model: The model; its gradients are left in its parameters.
        share: What the worker holds of the graph.
        given: Features of its nodes.
        goal: What is trained for.
        seed: Seed of every random draw.
        overlap: Whether to aggregate own rows while others are under way.
    """

    def __init__(
        self, model: Model, share: Share, given: Input, goal: Goal, seed: int, *, overlap: bool = True
    ) -> None:
        self.model, self.share, self.given, self.goal = model, share, given, goal.to(share.comm.device)
        self.seed, self.overlap = seed, overlap
        self.comm, self.ledger = share.comm, share.comm.ledger
        self.edges = [share.view(layer).block.edges for layer in model.stages()]
        self.known = first_aggregate(model, share.view(model.stages()[0]).block, given.source)
        if self.known is not None:
            self.ledger.count("edges_aggregated", self.edges[0].num_edges)

    def epoch(self, epoch: int) -> float:
        """The loss over all workers; every parameter's ``.grad`` then holds the global gradient. All workers together.

        Args:
            epoch: Number of the epoch, which with the seed decides the draws.
        """
        key, timeline = derive(self.seed, epoch, 0), self.comm.timeline
        with timeline.span("forward"):
            logits = full_pass(self.model, self.share, self.given, key, known=self.known, overlap=self.overlap)
            loss = self.goal.loss(logits, key)
        with timeline.span("backward"):
            torch.autograd.backward(loss)
        self.comm.sum_gradients(self.model)
        for index, edges in enumerate(self.edges):
            if index > 0 or self.known is None:
                self.ledger.count("edges_aggregated", edges.num_edges)
            self.ledger.count("rows_computed", edges.num_dst)
        return self.comm.sum_(loss.detach().double().cpu()).item()

    def close(self) -> None:
        """Release what it holds, and the memory that layers lent."""
        self.edges, self.known = [], None
        memory_pool.clear()
