"""What does not change while a model trains: the first layer's aggregate of raw features."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.nn.layer import Features, Layer, Rows
from outgrow.nn.model import Model

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
