"""The sizes of a model, as far as costs depend on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from outgrow.engine.constant_sums import find_summed_first_layer, has_static_first_aggregate
from outgrow.engine.features.remote import input_dtype
from outgrow.engine.layer_plan import LayerPlan, has_fixed_weights, plan_layers
from outgrow.graph.graph import Graph
from outgrow.nn.layer import ConvSpec, Layer
from outgrow.nn.model import Model
from outgrow.nn.node_embedding import count_embedding_numbers
from outgrow.nn.propagation import only_propagates, propagates_without_parameters
from outgrow.nn.pyg import PyGAggregation
from outgrow.nn.source_products import skips_source_products
from outgrow.ops.owned_rows import held_rows
from outgrow.planning.aggregation_sizes import (
    count_attention,
    count_edge_scores,
    count_heads,
    count_inner_numbers,
    count_scaled_weights,
    count_update_numbers,
    groups_by_relation,
    has_edge_weights,
)
from outgrow.planning.matrix_sizes import count_matrix_numbers
from outgrow.runtime.distributed.serialization import serialize
from outgrow.strategies.orchestrate.host_side import bottom_parameters
from outgrow.strategies.orchestrate.hot_inputs import aggregates_raw_features
from outgrow.strategies.split.layers import supports_partial_sums
from outgrow.strategies.tensor.model_pass import group_propagation_runs
from outgrow.strategies.tensor.propagated_hops import count_new_hops


@dataclass(frozen=True, kw_only=True)
class LayerSizes:
    """The sizes of a layer.

    Attributes:
        spec: Widths of its convolution.
        has_static_aggregate: Whether the aggregate is one of raw features, which is computed once and kept.
        is_parameter_free: Whether its aggregation has no parameters.
        supports_partial_sums: See `outgrow.strategies.split.layers.supports_partial_sums`.
        has_edge_weights: Whether its edges have weights.
        reads_target: Whether it reads the input of its destinations.
        reads_sources: Whether it reads neighbours at all.
        run_index: Index of its run in `outgrow.strategies.tensor.model_pass.group_propagation_runs`.
        only_propagates: Whether it only propagates.
        is_constant: Whether strategies compute its output once, because all layers up to it propagate raw features.
        gathered_hops: If it is the last of a run: rounds of the run whose columns its output has.
        weights: Numbers of the matrices that sources are multiplied by, and of those for destinations.
        edge_numbers: Numbers of an edge's message, where layers of PyG materialise it; else 0.
        edge_dim: Features of edges that it reads; 0 if it reads none.
        edge_scores: Numbers that it computes of the features of an edge for its scores; 0 if it computes none.
        attention: Attention weights of an edge, computed from scores of both ends.
        heads: Attention weights of an edge that its aggregation computes from rows of both ends.
        groups_by_pair: Whether edges are grouped by pairs of relation and row.
        groups_by_relation: Whether the edges of each relation are a block of their own.
        inner_numbers: Numbers of a destination that its update holds beside the output.
        update_numbers: Numbers of a destination that its update passes through an activation or the like.
        scaled_weights: Numbers of a matrix that multiplies a sum with the input, scaled by a trained number.
        skips_source_products: Whether the gradient of its source rows is computed without these.
        type_widths: Numbers of a source row that are used, and so sent, of each node type; empty if all of them are.
        type_nodes: Number of nodes of each type, if there are widths of types.
    """

    spec: ConvSpec
    has_static_aggregate: bool
    is_parameter_free: bool
    supports_partial_sums: bool
    has_edge_weights: bool
    reads_target: bool
    run_index: int
    only_propagates: bool
    weights: tuple[int, int]
    edge_numbers: int
    is_constant: bool = False
    gathered_hops: int = 1
    edge_dim: int = 0
    edge_scores: int = 0
    attention: int = 0
    heads: int = 0
    groups_by_pair: bool = False
    groups_by_relation: bool = False
    inner_numbers: int = 0
    update_numbers: int = 0
    scaled_weights: int = 0
    skips_source_products: bool = False
    type_widths: tuple[int, ...] = ()
    type_nodes: tuple[int, ...] = ()
    reads_sources: bool = True

    @property
    def source_width(self) -> int:
        """Numbers of a source row as it is held: its columns over all channels, and its scores."""
        channels, columns = self.spec.source
        return channels * columns + self.spec.score

    @property
    def sent_width(self) -> float:
        """Mean numbers of a source row that are used, and so cross links, over the nodes of all types."""
        if not self.type_widths:
            return self.source_width
        used = sum(width * count for width, count in zip(self.type_widths, self.type_nodes, strict=True))
        return used / max(1, sum(self.type_nodes))

    @property
    def aggregate_width(self) -> int:
        """Columns of the aggregate over all channels."""
        return self.spec.aggregate[0] * self.spec.aggregate[1]


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """The sizes of a model.

    Attributes:
        layers: Sizes of the layers, from the bottom up.
        parameters: Number of parameter tensors, and of numbers in all of them.
        number_bytes: Bytes of a parameter, an activation or a gradient.
        state_bytes: Bytes of all parameters and buffers as they are sent to a worker.
        source_is_features: Whether raw features are the sources of the first layer.
        has_input_dropout: Whether raw features have dropout.
        reads_features: Whether features are the input of the first layer, without an encoder.
        row_bytes: Bytes of a row of dense features in the dtype that the model computes with.
        aggregate_first_layer: The first layer in its form that aggregates dense features first; None if it has none.
        aggregates_raw_features: Whether that form has no parameters before the aggregate, nor has an encoder.
        summed_first_layer: The first layer in the form of `outgrow.engine.constant_sums.find_summed_first_layer`; None
            if it has none, or if layers see other edges in each step.
        bottom_parameters: Numbers of the parameters of the encoder and of the first layer.
        encoder_numbers: Numbers of the matrices of the encoder before the first layer.
        reads_types: Whether it has modules per type: its last layer then computes the rows of types with targets.
        layer_plans: Plans of the layers for passes over chunks.
        embedding_numbers: Numbers of the vectors of all nodes, which workers share out.
        sliced_layers: The layers in their forms that keep columns apart, if these are others.
    """

    layers: tuple[LayerSizes, ...]
    parameters: tuple[int, int]
    number_bytes: int
    state_bytes: int
    source_is_features: bool
    has_input_dropout: bool
    reads_features: bool
    row_bytes: int
    aggregate_first_layer: LayerSizes | None
    aggregates_raw_features: bool
    summed_first_layer: LayerSizes | None
    bottom_parameters: int
    encoder_numbers: int
    reads_types: bool
    layer_plans: tuple[LayerPlan, ...]
    embedding_numbers: int = 0
    sliced_layers: tuple[LayerSizes, ...] = ()

    def keep_columns_apart(self) -> ModelSizes:
        """Return the sizes with layers in their forms that keep columns apart."""
        if not self.sliced_layers:
            return self
        from_features = self.source_is_features and self.sliced_layers[0].spec.source_is_input
        return replace(self, layers=self.sliced_layers, sliced_layers=(), source_is_features=from_features)

    def sum_features_first(self) -> ModelSizes:
        """Return the sizes with the first layer in its form that sums features once, if it has one."""
        if self.summed_first_layer is None:
            return self
        return replace(
            self,
            layers=(self.summed_first_layer, *self.layers[1:]),
            source_is_features=True,
            summed_first_layer=None,
        )

    @property
    def views(self) -> tuple[bool, ...]:
        """For each layer, whether self-loops are added."""
        return tuple(layer.spec.self_loops for layer in self.layers)


def model_sizes(model: Model, graph: Graph, *, hides_edges: bool = False) -> ModelSizes:
    """Return the sizes of a model for a graph with features; ``hides_edges``: layers see other edges in each step."""
    assert graph.features is not None
    features = held_rows(graph.features)
    constant = has_static_first_aggregate(model, features) and not hides_edges
    stages = model.layers_list()
    first = stages[0].aggregate_first()
    # Sparse features are multiplied first: the product makes them narrow and dense.
    summed = None if graph.sparse or first is None else _layer_sizes(first, graph, constant=constant, run=0)
    sliced = [Layer(layer.conv.with_sliceable_columns() or layer.conv, layer.epilogue) for layer in stages]
    once = None if hides_edges else find_summed_first_layer(model, features)
    differs = any(one.conv is not other.conv for one, other in zip(sliced, stages, strict=True))
    parameters = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    return ModelSizes(
        layers=_sizes_of_layers(stages, graph, constant=constant),
        parameters=(len(parameters), sum(parameters)),
        number_bytes=model.dtype.itemsize,
        state_bytes=len(serialize(model.state_dict())),
        source_is_features=model.source_is_features,
        has_input_dropout=model.input_dropout > 0,
        reads_features=model.encoder is None,
        row_bytes=graph.num_features * input_dtype(model, features).itemsize,
        aggregate_first_layer=summed,
        aggregates_raw_features=summed is not None and first is not None and aggregates_raw_features(model, first),
        summed_first_layer=None if once is None else _layer_sizes(once, graph, constant=True, run=0),
        bottom_parameters=sum(each.numel() for each in bottom_parameters(model) if each.requires_grad),
        encoder_numbers=0 if model.encoder is None else count_matrix_numbers(model.encoder, graph),
        reads_types=model.reads_types,
        layer_plans=tuple(plan_layers(model, features, cache=not hides_edges)),
        embedding_numbers=count_embedding_numbers(model, graph.num_nodes),
        sliced_layers=_sizes_of_layers(sliced, graph, constant=constant) if differs else (),
    )


def _sizes_of_layers(layers: Sequence[Layer], graph: Graph, *, constant: bool) -> tuple[LayerSizes, ...]:
    sizes = []
    for number, run in enumerate(group_propagation_runs(layers)):
        is_constant = constant and number == 0 and all(propagates_without_parameters(layer) for layer in run)
        for index, (layer, hops) in enumerate(zip(run, count_new_hops(run), strict=True)):
            of_layer = _layer_sizes(layer, graph, constant=constant and number == index == 0, run=number)
            sizes.append(replace(of_layer, is_constant=is_constant, gathered_hops=hops))
    return tuple(sizes)


def _layer_sizes(layer: Layer, graph: Graph, *, constant: bool, run: int) -> LayerSizes:
    fixed = has_fixed_weights(layer)
    widths = layer.spec
    weights = count_matrix_numbers(layer, graph)
    # A layer that aggregates its input applies all its matrices to destinations, after the aggregation.
    at_sources = 0 if widths.source_is_input else min(weights, widths.in_features * widths.source[0] * widths.source[1])
    return LayerSizes(
        spec=widths,
        has_static_aggregate=constant,
        is_parameter_free=fixed,
        supports_partial_sums=supports_partial_sums(layer),
        has_edge_weights=not fixed or has_edge_weights(layer, graph),
        reads_target=layer.reads_target,
        run_index=run,
        only_propagates=only_propagates(layer),
        weights=(at_sources, weights - at_sources),
        edge_numbers=max(widths.in_features, widths.out_features) * isinstance(layer.conv.aggregation, PyGAggregation),
        edge_dim=layer.conv.edge_dim,
        edge_scores=count_edge_scores(layer, graph),
        attention=count_attention(layer.conv),
        heads=count_heads(layer.conv),
        groups_by_pair=layer.conv.aggregation.sums_pairs,
        groups_by_relation=groups_by_relation(layer.conv),
        inner_numbers=count_inner_numbers(layer.conv),
        update_numbers=count_update_numbers(layer.conv),
        scaled_weights=count_scaled_weights(layer.conv),
        skips_source_products=skips_source_products(type(layer.conv)),
        reads_sources=layer.conv.aggregation.reads_sources,
        **_type_widths(layer, graph),
    )


def _type_widths(layer: Layer, graph: Graph) -> dict[str, Any]:
    used = layer.row_widths()
    if used is None:
        return {}
    widths = tuple(sum(of_type) for of_type in zip(*(each for _, each in used.parts), strict=True))
    return {"type_widths": widths, "type_nodes": tuple(kind.last - kind.first for kind in graph.node_types)}
