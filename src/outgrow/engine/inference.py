"""Layer-wise inference over the full neighbourhood, in chunks of destinations: evaluation and `predict` for all."""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.constant import kept_aggregate
from outgrow.graph.csc import Topology
from outgrow.nn.layer import Features, Layer, Rows
from outgrow.nn.model import Model
from outgrow.ops.half import computed, is_half
from outgrow.ops.sparse import SparseRows


def features_for(model: Model, features: Features) -> Features:
    """Features as a model computes with them: of the type of its parameters.

    Constant features in half precision stay so where the first layer widens them row by row.
    """
    return features if stay_half(model, features) else features.to(next(model.parameters()).dtype)


def stay_half(model: Model, features: Features) -> bool:
    """Whether features in half precision stay so."""
    fits = computed(features.dtype) == next(model.parameters()).dtype and isinstance(features, Tensor)
    return is_half(features.dtype) and fits and model.stages()[0].takes_half and model.input_dropout == 0


@torch.no_grad()
def infer(model: Model, topology: Topology, features: Features, *, chunk_bytes: int = 256 << 20) -> Tensor:
    """Logits of every node, with all its neighbours and without random draws.

    Each layer is computed for all nodes before the next, so nothing is computed twice and memory does not grow with
    depth: it holds the input, the source rows and the output of one layer, and what one chunk needs on top.

    Args:
        model: The model.
        topology: In-edges of all nodes.
        features: ``[V, D]``, as `features_for` gives them.
        chunk_bytes: Largest size of the temporary rows of one chunk of destinations.

    Returns:
        ``[V, C]``.
    """
    x = model.input(features, topology.nodes, None)
    for layer in model.stages():
        x = _layer(layer, view_of(topology, layer), x, chunk_bytes)
    assert isinstance(x, Tensor)
    return x


def view_of(topology: Topology, layer: Layer) -> Topology:
    """The graph as a layer wants it: as it is, or with one self-loop per node."""
    return topology.with_self_loops if layer.widths.self_loops else topology


def _layer(layer: Layer, topology: Topology, x: Features, chunk_bytes: int) -> Tensor:
    known = kept_aggregate(layer, topology.block, x)
    source = layer.source(x) if known is None else Rows(known, None)
    assert source.columns is not None
    channels, columns = layer.widths.aggregate
    row_bytes = (channels * columns + 2 * layer.widths.out_features) * source.columns.element_size()
    step = max(1, min(topology.num_nodes, chunk_bytes // max(1, row_bytes)))

    def update(block: Block, x_dst: Features, first: int, last: int) -> Tensor:
        if known is not None:
            return layer.update(x_dst, known[first:last], block)
        return layer.update(x_dst, layer.aggregate(block, source, layer.target(x_dst)), block)

    if step == topology.num_nodes:
        return update(topology.block, x, 0, step)
    out = torch.empty(topology.num_nodes, layer.widths.out_features, dtype=computed(source.columns.dtype))
    for first in range(0, topology.num_nodes, step):
        last = min(first + step, topology.num_nodes)
        out[first:last] = update(topology.destinations(first, last), _rows(x, first, last), first, last)
    return out


def whole_blocks(model: Model, topology: Topology) -> list[Block]:
    """One block per layer, each the whole graph as the layer wants it; the arrays derived from them are shared."""
    return [view_of(topology, layer).block for layer in model.stages()]


def _rows(x: Features, first: int, last: int) -> Features:
    return x.rows(first, last) if isinstance(x, SparseRows) else x[first:last]
