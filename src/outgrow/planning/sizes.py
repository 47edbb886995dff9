"""Sizes of a graph and of a model, as far as costs depend on them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outgrow.engine.features.cache import mean_row_bytes
from outgrow.engine.features.remote import input_dtype
from outgrow.engine.full_graph import has_static_first_aggregate
from outgrow.engine.layer_plan import LayerPlan, has_fixed_weights, plan_layers
from outgrow.graph.graph import Graph
from outgrow.graph.topology import Topology
from outgrow.nn.layer import ConvSpec, Layer, NodeMessages
from outgrow.nn.model import Model
from outgrow.nn.pyg import PyGAggregation
from outgrow.runtime.distributed.serialization import serialize
from outgrow.strategies.split.layers import supports_partial_sums
from outgrow.strategies.tensor.model_pass import group_propagation_runs, only_propagates


@dataclass(frozen=True, kw_only=True)
class DatasetSizes:
    """Of a graph.

    Attributes:
        nodes: ``V``.
        edges: ``E``, without self-loops that a layer adds.
        features: Columns of raw features ``D``.
        feature_bytes: Of a raw feature as it is stored.
        row_entries: Entries of a row of raw features that are stored, on average: ``D``, or fewer in sparse rows.
        row_bytes: Of a row of raw features as it is stored.
        sparse: Whether raw features are sparse rows.
        train: Nodes to train on.
        classes: Columns of the logits.
        resident_bytes: Of the graph where it is in memory, in the process that reads it; 0 if it lies in a store.
    """

    nodes: int
    edges: int
    features: int
    feature_bytes: int
    row_entries: float
    row_bytes: float
    sparse: bool
    train: int
    classes: int
    resident_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class LayerSizes:
    """Of a layer.

    Attributes:
        spec: Those of its convolution.
        has_static_aggregate: Whether the aggregate is that of raw features, and kept.
        is_parameter_free: Whether its aggregation has no parameters.
        supports_partial_sums: See `outgrow.strategies.split.layers.supports_partial_sums`.
        has_edge_weights: Whether its edges have weights.
        reads_target: Whether it reads the input of its destinations.
        run_index: See `outgrow.strategies.tensor.model_pass.group_propagation_runs`: the number of that which it is in.
        only_propagates: Whether it only propagates.
        weights: Numbers of the matrices that sources are multiplied by, and destinations.
        edge_numbers: Numbers of the message of an edge, where it is held: in layers of PyG; else 0.
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

    @property
    def source_width(self) -> int:
        """Numbers of a source's row: its columns, then its scores."""
        channels, columns = self.spec.source
        return channels * columns + self.spec.score

    @property
    def aggregate_width(self) -> int:
        """Columns of the aggregate over all channels."""
        return self.spec.aggregate[0] * self.spec.aggregate[1]


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """Of a model.

    Attributes:
        layers: From the bottom up.
        parameters: How many tensors of parameters there are, and how many numbers in all of them.
        number_bytes: Of a parameter, an activation and a gradient.
        state_bytes: Of all parameters and buffers as they are sent to a worker.
        source_is_features: Whether raw features are sources of the first layer.
        has_input_dropout: Whether they have dropout.
        reads_features: Whether the first layer's input are the features: there is no encoder.
        row_bytes: Of a row of dense features as the model computes with them.
        aggregate_first_layer: The first layer, where dense features can be summed first, so summed; else None.
        encoder_numbers: Numbers of the matrices that features are multiplied by before the first layer.
        layer_plans: The layers as passes over chunks see them.
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
    encoder_numbers: int
    layer_plans: tuple[LayerPlan, ...]

    @property
    def views(self) -> tuple[bool, ...]:
        """For each layer, whether nodes have edges to themselves besides."""
        return tuple(layer.spec.self_loops for layer in self.layers)


def dataset_sizes(graph: Graph) -> DatasetSizes:
    """Of a graph at hand, which has features and labels."""
    assert graph.features is not None
    features = graph.features
    entries = features.shape[1] if isinstance(features, Tensor) else len(features.values) / max(1, graph.num_nodes)
    return DatasetSizes(
        nodes=graph.num_nodes,
        edges=graph.num_edges,
        features=graph.num_features,
        feature_bytes=features.dtype.itemsize,
        row_entries=entries,
        row_bytes=mean_row_bytes(features),
        sparse=graph.sparse,
        train=len(graph.split.train),
        classes=graph.num_classes,
        resident_bytes=0 if graph.store is not None else _resident_bytes(graph),
    )


def _resident_bytes(graph: Graph) -> int:
    """Of features, edges and their ends."""
    assert graph.features is not None
    topology = graph.topology
    edges = [topology.indptr, topology.indices, topology.weight, topology.relation]
    return round(graph.num_nodes * mean_row_bytes(graph.features)) + sum(
        each.nbytes for each in edges if each is not None
    )


def model_sizes(model: Model, graph: Graph) -> ModelSizes:
    """Of a model on a graph, which has features."""
    assert graph.features is not None
    constant, first = has_static_first_aggregate(model, graph.features), model.layers_list()[0].aggregate_first()
    layers = [
        _layer_sizes(layer, graph, constant=constant and number == place == 0, run=number)
        for number, run in enumerate(group_propagation_runs(model.layers_list()))
        for place, layer in enumerate(run)
    ]
    parameters = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    return ModelSizes(
        layers=tuple(layers),
        parameters=(len(parameters), sum(parameters)),
        number_bytes=next(model.parameters()).dtype.itemsize,
        state_bytes=len(serialize(model.state_dict())),
        source_is_features=model.source_is_features,
        has_input_dropout=model.input_dropout > 0,
        reads_features=model.encoder is None,
        row_bytes=graph.num_features * input_dtype(model, graph.features).itemsize,
        aggregate_first_layer=None
        if graph.sparse or first is None
        else _layer_sizes(first, graph, constant=constant, run=0),
        encoder_numbers=0 if model.encoder is None else _count_weights(model.encoder),
        layer_plans=tuple(plan_layers(model, graph.features, cache=True)),
    )


def _layer_sizes(layer: Layer, graph: Graph, *, constant: bool, run: int) -> LayerSizes:
    fixed, widths, weights = has_fixed_weights(layer), layer.spec, _count_weights(layer)
    at_sources = 0 if widths.source_is_input else min(weights, widths.in_features * widths.source[0] * widths.source[1])
    return LayerSizes(
        spec=widths,
        has_static_aggregate=constant,
        is_parameter_free=fixed,
        supports_partial_sums=supports_partial_sums(layer),
        has_edge_weights=not fixed or _has_edge_weights(layer, graph),
        reads_target=layer.reads_target,
        run_index=run,
        only_propagates=only_propagates(layer),
        weights=(at_sources, weights - at_sources),
        edge_numbers=max(widths.in_features, widths.out_features) * isinstance(layer.conv.aggregation, PyGAggregation),
    )


def _count_weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.dim() > 1)


def _has_edge_weights(layer: Layer, graph: Graph) -> bool:
    """Whether a layer whose weights the graph fixes has some: tried on one node with an edge to itself."""
    weight = None if graph.topology.weight is None else graph.topology.weight[:1].new_ones(1)
    one = Topology(indptr=torch.tensor([0, 1]), indices=torch.zeros(1, dtype=torch.int32), weight=weight)
    rows = NodeMessages(torch.empty(1, 1, layer.spec.source[1]), None)
    return layer.conv.edge_weight(one.block, rows, NodeMessages(None, None)) is not None
