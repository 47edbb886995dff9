"""Rows that layers in memory compute so that the last one can compute some: the neighbourhood of few scored nodes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outgrow.engine.last_layer import FEW_ROWS
from outgrow.engine.layer_rows import LayerRows, NeededRows, select_destinations, select_sources
from outgrow.engine.shard import GraphShard
from outgrow.inference.layer_nodes import find_layer_nodes
from outgrow.nn.layer import Layer
from outgrow.nn.model import Model

NEEDED_ROWS = 0.7
"""Share of the rows of a layer below the last up to which only those are computed that layers above it read: the copies
of rows that lie anywhere, and of in-edges, have a cost."""


def find_needed_rows(model: Model, shard: GraphShard, nodes: Tensor) -> NeededRows | None:
    """Return the rows that each layer computes for some nodes; None for all, where these are many.

    On several workers, layers below the last compute all rows: their exchange is the same whatever is scored.

    Args:
        model: The model.
        shard: The worker's shard of the graph.
        nodes: ``[n]`` int64, own nodes, ascending.
    """
    layers = model.layers_list()
    own = len(shard.owned_nodes)
    if len(layers) == 1 or len(nodes) > FEW_ROWS * own:
        return None
    if shard.comm.size > 1:
        return NeededRows(None, (*[None] * (len(layers) - 1), _select_rows(shard, layers[-1], nodes, None)))
    found = find_layer_nodes(shard, layers, nodes)
    shares = [len(each) / own for each in found.outputs]
    first = find_first_narrow_layer(shares, [layer.conv.edge_dim for layer in layers])
    # Features that are sources themselves, or summed already, are read in place. Others are copied for each evaluation.
    reads_few = first == 0 and len(found.inputs) <= FEW_ROWS * own and not model.source_is_features
    inputs = found.inputs if reads_few else None
    rows: list[LayerRows | None] = [None] * first
    below = inputs
    for layer, outputs in zip(layers[first:], found.outputs[first:], strict=True):
        rows.append(_select_rows(shard, layer, outputs, below))
        below = outputs
    return NeededRows(None if inputs is None else shard.local_index(inputs), tuple(rows))


def find_first_narrow_layer(shares: Sequence[float], edge_dims: Sequence[int]) -> int:
    """Return the lowest layer that computes some rows, as all layers above it do; that is the last one at least.

    Args:
        shares: For each layer, the share of the nodes whose output is needed.
        edge_dims: For each layer, how many features of edges it reads: those of most edges are not copied.
    """
    first = len(shares) - 1
    while first > 0 and shares[first - 1] <= NEEDED_ROWS and not edge_dims[first - 1]:
        first -= 1
    return first


def _select_rows(shard: GraphShard, layer: Layer, outputs: Tensor, below: Tensor | None) -> LayerRows:
    """Return the rows of a layer for some own nodes; ``below`` are the nodes that its input has, None for all."""
    own_rows = shard.local_index(outputs)
    part = select_destinations(shard.layer_view(layer).block, own_rows)
    if below is None:
        return LayerRows(own_rows, part)
    return LayerRows(torch.searchsorted(below, outputs), select_sources(part, shard.local_index(below)))
