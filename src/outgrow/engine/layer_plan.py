"""Plans of layers: which aggregates are constant, cached or recomputed, and the bytes of whole-layer training."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.engine.constant_sums import has_static_first_aggregate
from outgrow.engine.features.inputs import keeps_half
from outgrow.nn.layer import Features, Layer, NodeMessages
from outgrow.nn.model import Model
from outgrow.nn.pyg import PyGAggregation, PyGConv
from outgrow.ops.aggregation.gated import Gated
from outgrow.ops.aggregation.pair_edges import CHUNK_ROWS
from outgrow.ops.aggregation.typed_attention import TypedAttention
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.epilogue import is_fused_activation
from outgrow.ops.sparse import SparseRows

FIXED_BYTES = 80 << 20
"""Kernels loaded on their first call, staging buffers of reading threads, and their stacks."""
INDEX_BYTES = 8
_PER_SCORE = 3
"""Numbers of attention for each edge and head: weights before and after dropout, and a temporary one."""


class AggregatePolicy(Enum):
    """How the backward pass gets a layer's aggregate."""

    CONSTANT = "computed once"
    CACHED = "read from host"
    RECOMPUTED = "computed again"
    LAST = "just computed"


class LayerPlan(NamedTuple):
    """Properties of a layer within its model.

    Attributes:
        layer: The layer.
        aggregate_policy: How the backward pass gets its aggregate.
        reads_input: Whether it reads the input of its destinations.
        source_is_input: Whether its source rows are its input.
        reads_features: Whether its input is the features: it is the first, and there is no encoder.
        encoder_width: Numbers of a row during encoding, for the first layer after an encoder; else 0.
        input_requires_grad: Whether its input has a gradient.
        source_requires_grad: Whether its source rows have a gradient.
        input_numbers: Numbers in a row of its input as it is held; of a sparse row, the mean.
    """

    layer: Layer
    aggregate_policy: AggregatePolicy
    reads_input: bool
    source_is_input: bool
    reads_features: bool
    encoder_width: int
    input_requires_grad: bool
    source_requires_grad: bool
    input_numbers: int

    @property
    def source_is_features(self) -> bool:
        """Whether its source rows are the features."""
        return self.source_is_input and self.reads_features

    @property
    def source_width(self) -> int:
        """Numbers in a source row: its columns, then its scores."""
        channels, columns = self.layer.spec.source
        return channels * columns + self.layer.spec.score

    @property
    def aggregate_width(self) -> int:
        """Numbers in an aggregate."""
        channels, columns = self.layer.spec.aggregate
        return channels * columns

    @property
    def needs_sources_backward(self) -> bool:
        """Whether the backward pass needs the source rows."""
        return self.aggregate_policy in (AggregatePolicy.RECOMPUTED, AggregatePolicy.LAST)

    @property
    def reads_unreferenced_rows(self) -> bool:
        """Whether its aggregation reads rows without edges, which must not be overwritten meanwhile."""
        return isinstance(self.layer.conv.aggregation, Gated | PyGAggregation)

    @property
    def needs_transpose(self) -> bool:
        """Whether the gradient of its source rows needs their out-edges."""
        return self.source_requires_grad and not isinstance(self.layer.conv.aggregation, PyGAggregation)

    @property
    def keeps_input(self) -> bool:
        """Whether the input that its destinations read is stored apart from source rows."""
        return self.reads_input and not self.source_is_input

    @property
    def shares_input(self) -> bool:
        """Whether the input that its destinations read is that of its sources."""
        return self.reads_input and self.source_is_input

    def unflatten_source(self, rows_NW: Tensor) -> NodeMessages:
        """Return flat source rows as messages, the columns by channel and the scores apart."""
        channels, columns = self.layer.spec.source
        wide = torch.unflatten(rows_NW[:, : channels * columns], 1, (channels, columns))
        return NodeMessages(wide, rows_NW[:, channels * columns :] if self.layer.spec.score else None)


def plan_layers(model: Model, features: Features, *, cache: bool, keeps_constants: bool = True) -> list[LayerPlan]:
    """Return the plans of all layers of a model.

    Args:
        model: The model.
        features: ``[V, D]``, as the graph stores them.
        cache: Whether aggregates without parameters are cached; else all are recomputed.
        keeps_constants: Whether an aggregate of raw features with fixed weights is the same in all steps.
    """
    stages = model.layers_list()
    found = []
    for index, layer in enumerate(stages):
        raw = layer.spec.source_is_input
        if index == 0 and keeps_constants and has_static_first_aggregate(model, features):
            policy = AggregatePolicy.CONSTANT
        # The backward pass starts with the last layer, so its aggregate is still in memory.
        elif index == len(stages) - 1:
            policy = AggregatePolicy.LAST
        else:
            policy = AggregatePolicy.CACHED if cache and has_fixed_weights(layer) else AggregatePolicy.RECOMPUTED
        reads_features = index == 0 and model.encoder is None
        # Only the first layer holds rows of the encoder: it encodes them chunk by chunk.
        encoded = model.in_features + model.encoder.activation_width if index == 0 and model.encoder is not None else 0
        # Raw features get no gradient; rows projected from them do, since the projection is trained.
        trains = not reads_features
        held = _numbers_of_row(features) if reads_features else layer.spec.in_features
        found.append(
            LayerPlan(layer, policy, layer.reads_target, raw, reads_features, encoded, trains, trains or not raw, held)
        )
    return found


def _numbers_of_row(features: Features) -> int:
    """Return the numbers that a row of features takes: a sparse one a value, a column and a pointer for its entries."""
    rows, width = features.shape
    if not isinstance(features, SparseRows):
        return int(width)
    return min(int(width), -(-3 * features.num_values // max(1, rows)) + 2)


def has_fixed_weights(layer: Layer) -> bool:
    """Whether the gradient of source rows depends on the graph and the aggregate's gradient alone."""
    widths = layer.spec
    # Then the backward pass is the same sum over out-edges, and no source row is needed for it.
    fixed = widths.static_edge_weight and widths.target == (0, 0) and widths.score == 0
    return fixed and isinstance(layer.conv.aggregation, WeightedSum)


def describe_layers(model: Model, features: Features, *, cache_constants: bool = True) -> list[str]:
    """Describe each layer, or several equal ones, in a line: its order of steps, and what is cached or fused.

    Args:
        model: The model.
        features: ``[V, D]``, as the graph stores them.
        cache_constants: Whether constants are cached, as if every step sees the whole graph.
    """
    lines = [_describe_layer(layer) for layer in model.layers_list()]
    found = []
    first = 1
    if model.encoder is None:
        lines[0] += _describe_features(model, features, cache_constants=cache_constants)
    else:
        widths = f"{model.in_features} to {model.encoder.out_features}"
        found = [
            f"encoder {widths}: node by node{_describe_features(model, features, cache_constants=cache_constants)}"
        ]
    for line, same in groupby(lines):
        last = first + len(list(same)) - 1
        name = f"layer {first}" if first == last else f"layers {first} to {last}"
        found.append(f"{name}, {line}")
        first = last + 1
    return found


def _describe_layer(layer: Layer) -> str:
    widths = layer.spec
    steps = _epilogue_steps(layer)
    kind = type(layer.conv).__name__
    width_in = widths.in_features
    width_out = widths.out_features
    channels, columns = widths.source
    moved = f"{channels} x {columns}" if channels > 1 else f"{columns}"
    if isinstance(layer.conv, PyGConv):
        order = "aggregates in its own way"
    else:
        order = (
            f"aggregates rows of {moved} as they come"
            if widths.source_is_input
            else f"aggregates projected rows of {moved}"
        )
    fused = len(steps) > 1 and is_fused_activation(layer.epilogue.activation)
    return f"{kind} {width_in} to {width_out}: {order}" + (f"; {', '.join(steps)} in one pass" if fused else "")


def _epilogue_steps(layer: Layer) -> list[str]:
    finish = layer.epilogue
    given = {
        "bias": layer.conv.epilogue_bias is not None,
        "norm": finish.norm,
        "activation": finish.activation is not None,
        "residual": finish.residual,
        "dropout": finish.dropout > 0,
    }
    return [name for name, wanted in given.items() if wanted]


def _describe_features(model: Model, features: Features, *, cache_constants: bool) -> str:
    said = ""
    if cache_constants and has_static_first_aggregate(model, features):
        said += "; that aggregate of raw features is constant: computed once, not every epoch"
    if keeps_half(model, features):
        said += f"; features stay in {str(features.dtype).removeprefix('torch.')}"
    return said + "; no gradient for the features"


def full_graph_bytes(
    base: int,
    layer_plans: Sequence[LayerPlan],
    num_own: int,
    num_sources: int,
    num_edges: int,
    number_bytes: int,
    edge_row_bytes: int = 0,
) -> int:
    """Return an upper bound of a worker's resident bytes when it trains everything at once.

    Args:
        base: Bytes that it holds already.
        layer_plans: The layers.
        num_own: Number of own nodes.
        num_sources: Number of own nodes and sources of their in-edges together.
        num_edges: Number of in-edges of own nodes.
        number_bytes: Bytes of a number of a row.
        edge_row_bytes: Bytes of the features of an edge.
    """
    total = layer_plans[0].layer.spec.in_features * num_sources + layer_plans[0].encoder_width * num_own
    for each in layer_plans:
        widths = each.layer.spec
        # Twice: values and their gradients.
        sources = 2 * num_sources * each.source_width
        total += sources + 2 * num_own * (each.aggregate_width + 2 * widths.out_features + target_width(each))
        # Attention, weights or a foreign layer's rows, again with gradients.
        total += 2 * num_edges * numbers_per_edge(each)
    # Three indices for each edge: its source, and source and number in the transpose. Features twice: edges from own
    # nodes are held apart from those of the halo.
    of_edge = 3 * INDEX_BYTES + 2 * edge_row_bytes
    # Layers share the order of their edges, but for the last one, which may have the edges of some rows only.
    orders = min(2, len(layer_plans))
    pairs = max(
        orders * pair_index_bytes(each, num_edges) + pair_sum_bytes(each, num_edges, number_bytes)
        for each in layer_plans
    )
    return base + FIXED_BYTES + total * number_bytes + num_edges * of_edge + pairs


def pair_index_bytes(layer_plan: LayerPlan, num_edges: int) -> int:
    """Return the most that a layer keeps of the order of its edges by pairs of relation and row, of both ends.

    Sources and numbers of the edges; and for each pair, of which each edge may have its own, the row and the end.
    """
    return 6 * INDEX_BYTES * num_edges if layer_plan.layer.conv.aggregation.sums_pairs else 0


def pair_sum_bytes(layer_plan: LayerPlan, num_edges: int, number_bytes: int) -> int:
    """Return the most that sums by pairs, what they are multiplied with and the products take at a time."""
    if not layer_plan.layer.conv.aggregation.sums_pairs:
        return 0
    width = 2 * layer_plan.source_width + layer_plan.aggregate_width
    return min(num_edges, CHUNK_ROWS) * width * number_bytes


def target_width(layer_plan: LayerPlan) -> int:
    """Return the numbers that a layer computes for each destination before it aggregates."""
    channels, columns = layer_plan.layer.spec.target
    return channels * columns


def numbers_per_edge(layer_plan: LayerPlan) -> int:
    """Return the numbers that a layer holds for each edge at a time."""
    widths = layer_plan.layer.spec
    if isinstance(layer_plan.layer.conv.aggregation, PyGAggregation):
        return widths.in_features + widths.out_features + 2
    if isinstance(layer_plan.layer.conv.aggregation, TypedAttention):
        return _PER_SCORE * layer_plan.layer.conv.aggregation.heads
    return max(1, _PER_SCORE * widths.score, widths.aggregate[0])
