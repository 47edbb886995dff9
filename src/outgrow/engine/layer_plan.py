"""Per layer: what is kept, recomputed, constant."""

from __future__ import annotations

from enum import Enum
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.engine.features.inputs import stay_half
from outgrow.engine.full_graph import is_constant
from outgrow.nn.layer import Features, Layer, Rows
from outgrow.nn.model import Model
from outgrow.nn.pyg import Opaque, PyGConv
from outgrow.ops.aggregation.gated import Gated
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.epilogue import in_one_pass


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


def choices(model: Model, features: Features, *, keeps: bool = True) -> list[str]:
    """One line for each layer, or for several alike: in which order it works, what is kept, what is fused.

    Args:
        model: The model.
        features: ``[V, D]``, as the graph has them.
        keeps: Whether what is constant is kept, as where every step sees the whole graph.
    """
    lines = [_line(layer) for layer in model.stages()]
    found, first = [], 1
    if model.encoder is None:
        lines[0] += _of_features(model, features, keeps=keeps)
    else:
        widths = f"{model.in_features} to {model.encoder.out_features}"
        found = [f"encoder {widths}: node by node{_of_features(model, features, keeps=keeps)}"]
    for line, same in groupby(lines):
        last = first + len(list(same)) - 1
        name = f"layer {first}" if first == last else f"layers {first} to {last}"
        found.append(f"{name}, {line}")
        first = last + 1
    return found


def _line(layer: Layer) -> str:
    widths, steps = layer.widths, _steps(layer)
    kind, width_in, width_out = type(layer.conv).__name__, widths.in_features, widths.out_features
    channels, columns = widths.source
    moved = f"{channels} x {columns}" if channels > 1 else f"{columns}"
    if isinstance(layer.conv, PyGConv):
        order = "aggregates in its own way"
    else:
        order = (
            f"aggregates rows of {moved} as they come" if widths.raw_source else f"aggregates projected rows of {moved}"
        )
    fused = len(steps) > 1 and in_one_pass(layer.finish.activation)
    return f"{kind} {width_in} to {width_out}: {order}" + (f"; {', '.join(steps)} in one pass" if fused else "")


def _steps(layer: Layer) -> list[str]:
    finish = layer.finish
    given = {
        "bias": layer.conv.late_bias is not None,
        "norm": finish.norm,
        "activation": finish.activation is not None,
        "residual": finish.residual,
        "dropout": finish.dropout > 0,
    }
    return [name for name, wanted in given.items() if wanted]


def _of_features(model: Model, features: Features, *, keeps: bool) -> str:
    said = ""
    if keeps and is_constant(model, features):
        said += "; that aggregate of raw features is constant: computed once, not every epoch"
    if stay_half(model, features):
        said += f"; features stay in {str(features.dtype).removeprefix('torch.')}"
    return said + "; no gradient for the features"
