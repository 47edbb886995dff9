"""What first layers make of raw features without parameters: it is the same in all steps, and is computed once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.nn.layer import Features, Layer, NodeMessages
from outgrow.nn.model import Model
from outgrow.nn.propagation import propagates_without_parameters

_AGGREGATE_KEY = "constant aggregate"
MOST_COLUMNS = 32
"""Columns of features, for each that the first layer gives, up to which they are summed once."""


class _CachedAggregate(NamedTuple):
    features: Tensor
    edge_weight_key: tuple[object, ...]
    aggregate: Tensor


def has_static_first_aggregate(model: Model, features: Features) -> bool:
    """Whether the first layer aggregates raw features with fixed weights, and no dropout precedes it."""
    given = isinstance(features, Tensor) and model.source_is_features
    return given and model.layers_list()[0].has_static_aggregate and model.input_dropout == 0


def find_summed_first_layer(model: Model, features: Features) -> Layer | None:
    """Return the first layer in a form that sums dense features before it projects them, as it does not by itself.

    None if there is no such form, or if the sum would pay only after many epochs: once over all columns it takes as
    long as `MOST_COLUMNS` / 2 epochs of two sums, forward and backward, over those that the layer gives.
    """
    form = model.find_static_first_layer() if isinstance(features, Tensor) else None
    if form is None or form is model.layers_list()[0]:
        return None
    return form if form.spec.in_features <= MOST_COLUMNS * form.spec.out_features else None


@contextmanager
def first_layer_in_form(model: Model, form: Layer | None) -> Iterator[None]:
    """Context in which the first layer has the form of another with the same parameters; None for its own."""
    first = model.layers_list()[0]
    conv = first.conv
    first.conv = conv if form is None else form.conv
    try:
        yield
    finally:
        first.conv = conv


def first_aggregate_if_cached(layer: Layer, block: Block, features: Features) -> Tensor | None:
    """Return the aggregate stored by `cached_first_aggregate` for such a layer; None if there is none."""
    cached = block.edges.cache.get(_AGGREGATE_KEY)
    if not isinstance(cached, _CachedAggregate) or cached.features is not features or not layer.has_static_aggregate:
        return None
    return cached.aggregate if cached.edge_weight_key == layer.conv.edge_weight_key else None


def cached_first_aggregate(model: Model, block: Block, features: Features) -> Tensor | None:
    """Return the aggregate of the first layer, computed once and cached with the block's edges.

    Args:
        model: The model.
        block: The whole graph, with or without self-loops as the first layer needs it.
        features: ``[V, D]`` raw features.

    Returns:
        ``[V, 1, D]``; None if it is not constant, because the layer projects before it aggregates, its
        weights are trained, or dropout precedes it.
    """
    layer = model.layers_list()[0]
    if not has_static_first_aggregate(model, features) or not isinstance(features, Tensor):
        return None
    cached = first_aggregate_if_cached(layer, block, features)
    if cached is not None:
        return cached
    with torch.no_grad():
        aggregate = layer.aggregate(
            block.with_rng_key(None), layer.source(features, block.src_nodes), NodeMessages(None, None)
        )
    block.edges.cache[_AGGREGATE_KEY] = _CachedAggregate(features, layer.conv.edge_weight_key, aggregate)
    return aggregate


class ConstantRows(NamedTuple):
    """The constant output of the first layers of a model.

    Attributes:
        rows: ``[n, O]``, of own nodes.
        num_layers: Number of these layers.
    """

    rows: Tensor
    num_layers: int


def count_constant_layers(model: Model, features: Features) -> int:
    """Return how many first layers only propagate raw features with fixed weights, so that their output is constant."""
    if not has_static_first_aggregate(model, features):
        return 0
    return sum(1 for _ in takewhile(propagates_without_parameters, model.layers_list()))
