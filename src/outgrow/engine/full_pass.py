"""A pass of a whole model over a worker's share of a graph, in training."""

from __future__ import annotations

from torch import Tensor

from outgrow.engine.exchange import exchanged
from outgrow.engine.inputs import Input
from outgrow.engine.share import Share
from outgrow.nn.model import Model, layer_key
from outgrow.ops.sparse import rows_between


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
