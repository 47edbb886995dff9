"""Layer-wise inference over the full neighbourhood, in chunks of destinations: evaluation and `predict` for all."""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.constant import kept_aggregate
from outgrow.engine.exchange import sources
from outgrow.engine.inputs import Input
from outgrow.engine.share import Share, Whole
from outgrow.graph.csc import Topology
from outgrow.nn.layer import Features, Layer, Rows
from outgrow.nn.model import Model
from outgrow.ops.half import computed
from outgrow.ops.sparse import rows_between

_CHUNK_BYTES = 256 << 20


def infer(model: Model, topology: Topology, features: Features, *, chunk_bytes: int = _CHUNK_BYTES) -> Tensor:
    """Logits of every node, on one worker; see `infer_share`.

    Args:
        model: The model.
        topology: In-edges of all nodes.
        features: ``[V, D]``, as `engine.inputs.features_for` gives them.
        chunk_bytes: Largest size of the temporary rows of one chunk of destinations.

    Returns:
        ``[V, C]``.
    """
    return infer_share(model, Whole(topology), Input(features, features), chunk_bytes=chunk_bytes)


@torch.no_grad()
def infer_share(model: Model, share: Share, given: Input, *, chunk_bytes: int = _CHUNK_BYTES) -> Tensor:
    """Logits of the nodes that a worker owns, with all their neighbours and without random draws.

    Each layer is computed for all nodes before the next, so nothing is computed twice and memory does not grow with
    depth: it holds the input, the source rows and the output of one layer, and what one chunk needs on top.

    Args:
        model: The model.
        share: What the worker holds of the graph.
        given: Features of its nodes.
        chunk_bytes: Largest size of the temporary rows of one chunk of destinations.

    Returns:
        ``[n, C]``.
    """
    x = given.own
    for index, layer in enumerate(model.stages()):
        block = share.view(layer).block
        known = kept_aggregate(layer, block, given.source) if index == 0 else None
        if known is not None:
            source = Rows(known, None)
        elif index == 0 and layer.widths.raw_source:
            source = layer.source(given.source)
        else:
            source = sources(share, layer.source(x))
        x = _layer(layer, block, x, source, known, chunk_bytes)
    assert isinstance(x, Tensor)
    return x


def _layer(layer: Layer, whole: Block, x: Features, source: Rows, known: Tensor | None, chunk_bytes: int) -> Tensor:
    assert source.columns is not None
    channels, columns = layer.widths.aggregate
    row_bytes = (channels * columns + 2 * layer.widths.out_features) * source.columns.element_size()
    num_dst = len(whole.dst_nodes)
    step = max(1, min(num_dst, chunk_bytes // max(1, row_bytes)))

    def update(block: Block, x_dst: Features, first: int, last: int) -> Tensor:
        if known is not None:
            return layer.update(x_dst, known[first:last], block)
        return layer.update(x_dst, layer.aggregate(block, source, layer.target(x_dst)), block)

    if step >= num_dst:
        return update(whole, x, 0, num_dst)
    out = torch.empty(num_dst, layer.widths.out_features, dtype=computed(source.columns.dtype))
    for first in range(0, num_dst, step):
        last = min(first + step, num_dst)
        out[first:last] = update(whole.destinations(first, last), rows_between(x, first, last), first, last)
    return out
