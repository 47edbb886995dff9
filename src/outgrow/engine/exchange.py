"""One layer on a worker's share of a graph: what is exchanged, and what is aggregated meanwhile.

Source rows are computed by their owner and travel to the workers whose nodes they have edges to. Where a sum over edges
may be taken in parts, that over the worker's own rows is taken while the others are under way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.ledger import Kind
from outgrow.engine.share import Share
from outgrow.graph.local import LocalGraph
from outgrow.nn.layer import Features, Layer, Rows
from outgrow.ops.backend import once

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
