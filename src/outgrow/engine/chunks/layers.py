"""What a layer is to a pass over chunks: which of its rows are kept where, and how its gradient comes about."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.engine.constant import is_constant
from outgrow.nn.layer import Features, Layer, Rows
from outgrow.nn.model import Model
from outgrow.nn.opaque import Opaque
from outgrow.ops.aggregation.gated import Gated
from outgrow.ops.aggregation.weighted_sum import WeightedSum


class Way(Enum):
    """How the backward pass comes by a layer's aggregate."""

    CONSTANT = "computed once"
    CACHED = "read from host"
    RECOMPUTED = "computed again"
    LAST = "just computed"


class Traits(NamedTuple):
    """A layer as one of a model.

    Attributes:
        layer: The layer.
        way: How its aggregate comes about in the backward pass.
        reads_input: Whether it reads the input of its destinations.
        raw: Whether its source rows are its input.
        reads_features: Whether its input are the features: it is the first, and there is no encoder.
        encoded: Numbers that a row takes while it is encoded, in the first layer behind an encoder; else 0.
        trains_input: Whether its input has a gradient.
        trains_source: Whether its source rows have a gradient.
    """

    layer: Layer
    way: Way
    reads_input: bool
    raw: bool
    reads_features: bool
    encoded: int
    trains_input: bool
    trains_source: bool

    @property
    def from_features(self) -> bool:
        """Whether its source rows are the features."""
        return self.raw and self.reads_features

    @property
    def source_width(self) -> int:
        """Numbers in a source row: its columns, then its scores."""
        channels, columns = self.layer.widths.source
        return channels * columns + self.layer.widths.score

    @property
    def aggregate_width(self) -> int:
        """Numbers in an aggregate."""
        channels, columns = self.layer.widths.aggregate
        return channels * columns

    @property
    def assembled_backward(self) -> bool:
        """Whether the backward pass needs the source rows."""
        return self.way in (Way.RECOMPUTED, Way.LAST)

    @property
    def reads_all_rows(self) -> bool:
        """Whether its aggregation looks at rows that no edge comes from: then none may come in meanwhile."""
        return isinstance(self.layer.conv.aggregation, Gated | Opaque)

    @property
    def transposes(self) -> bool:
        """Whether the gradient of its source rows needs the out-edges of these."""
        return self.trains_source and not isinstance(self.layer.conv.aggregation, Opaque)

    @property
    def own_input(self) -> bool:
        """Whether the input that its destinations read is kept apart from source rows."""
        return self.reads_input and not self.raw

    @property
    def shared_input(self) -> bool:
        """Whether the input that its destinations read is that of its sources."""
        return self.reads_input and self.raw

    def split(self, rows_NW: Tensor) -> Rows:
        """Source rows as the layer takes them."""
        channels, columns = self.layer.widths.source
        wide = torch.unflatten(rows_NW[:, : channels * columns], 1, (channels, columns))
        return Rows(wide, rows_NW[:, channels * columns :] if self.layer.widths.score else None)


def traits_of(model: Model, features: Features, *, cache: bool) -> list[Traits]:
    """All layers of a model.

    Args:
        model: The model.
        features: ``[V, D]``, as the graph has them.
        cache: Whether aggregates without parameters are cached; else all are computed again.
    """
    stages, found = model.stages(), []
    for index, layer in enumerate(stages):
        raw = layer.widths.raw_source
        if index == 0 and is_constant(model, features):
            way = Way.CONSTANT
        elif index == len(stages) - 1:
            way = Way.LAST
        else:
            way = Way.CACHED if cache and without_parameters(layer) else Way.RECOMPUTED
        reads_features = index == 0 and model.encoder is None
        encoded = model.in_features + model.encoder.held if index == 0 and model.encoder is not None else 0
        trains = not reads_features
        found.append(Traits(layer, way, layer.reads_target, raw, reads_features, encoded, trains, trains or not raw))
    return found


def without_parameters(layer: Layer) -> bool:
    """Whether the gradient of a layer's source rows needs nothing but that of its aggregate, and the graph."""
    widths = layer.widths
    fixed = widths.fixed_weight and widths.target == (0, 0) and widths.score == 0
    return fixed and isinstance(layer.conv.aggregation, WeightedSum)
