"""Sizes of a graph and of a model, as far as costs depend on them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outgrow.engine.features.cache import row_bytes
from outgrow.engine.features.remote import row_type
from outgrow.engine.full_graph import is_constant
from outgrow.engine.layer_plan import Traits, traits_of, without_parameters
from outgrow.graph.graph import Graph
from outgrow.graph.topology import Topology
from outgrow.nn.layer import Layer, Rows, Widths
from outgrow.nn.model import Model
from outgrow.nn.pyg import Opaque
from outgrow.runtime.distributed.serialization import packed
from outgrow.strategies.split.layers import is_summed
from outgrow.strategies.tensor.model_pass import only_propagates, runs_of


@dataclass(frozen=True, kw_only=True)
class Sizes:
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
        widths: Those of its convolution.
        constant: Whether the aggregate is that of raw features, and kept.
        fixed: Whether its aggregation has no parameters.
        summed: See `outgrow.strategies.split.layers.is_summed`.
        weighed: Whether its edges have weights.
        reads_target: Whether it reads the input of its destinations.
        run: See `outgrow.strategies.tensor.model_pass.runs_of`: the number of that which it is in.
        propagates: Whether it only propagates.
        weights: Numbers of the matrices that sources are multiplied by, and destinations.
        edge_numbers: Numbers of the message of an edge, where it is held: in layers of PyG; else 0.
    """

    widths: Widths
    constant: bool
    fixed: bool
    summed: bool
    weighed: bool
    reads_target: bool
    run: int
    propagates: bool
    weights: tuple[int, int]
    edge_numbers: int

    @property
    def source_row(self) -> int:
        """Numbers of a source's row: its columns, then its scores."""
        channels, columns = self.widths.source
        return channels * columns + self.widths.score

    @property
    def aggregate(self) -> int:
        """Columns of the aggregate over all channels."""
        return self.widths.aggregate[0] * self.widths.aggregate[1]


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """Of a model.

    Attributes:
        layers: From the bottom up.
        parameters: How many tensors of parameters there are, and how many numbers in all of them.
        number_bytes: Of a parameter, an activation and a gradient.
        state_bytes: Of all parameters and buffers as they are sent to a worker.
        takes_raw: Whether raw features are sources of the first layer.
        drops_raw: Whether they have dropout.
        reads_features: Whether the first layer's input are the features: there is no encoder.
        row_bytes: Of a row of dense features as the model computes with them.
        summing: The first layer, where dense features can be summed first, so summed; else None.
        encoder: Numbers of the matrices that features are multiplied by before the first layer.
        traits: The layers as passes over chunks see them.
    """

    layers: tuple[LayerSizes, ...]
    parameters: tuple[int, int]
    number_bytes: int
    state_bytes: int
    takes_raw: bool
    drops_raw: bool
    reads_features: bool
    row_bytes: int
    summing: LayerSizes | None
    encoder: int
    traits: tuple[Traits, ...]

    @property
    def views(self) -> tuple[bool, ...]:
        """For each layer, whether nodes have edges to themselves besides."""
        return tuple(layer.widths.self_loops for layer in self.layers)


def graph_sizes(graph: Graph) -> Sizes:
    """Of a graph at hand, which has features and labels."""
    assert graph.features is not None
    features = graph.features
    entries = features.shape[1] if isinstance(features, Tensor) else len(features.values) / max(1, graph.num_nodes)
    return Sizes(
        nodes=graph.num_nodes,
        edges=graph.num_edges,
        features=graph.num_features,
        feature_bytes=features.dtype.itemsize,
        row_entries=entries,
        row_bytes=row_bytes(features),
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
    return round(graph.num_nodes * row_bytes(graph.features)) + sum(each.nbytes for each in edges if each is not None)


def model_sizes(model: Model, graph: Graph) -> ModelSizes:
    """Of a model on a graph, which has features."""
    assert graph.features is not None
    constant, first = is_constant(model, graph.features), model.stages()[0].summing_first()
    layers = [
        _layer(layer, graph, constant=constant and number == place == 0, run=number)
        for number, run in enumerate(runs_of(model.stages()))
        for place, layer in enumerate(run)
    ]
    parameters = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    return ModelSizes(
        layers=tuple(layers),
        parameters=(len(parameters), sum(parameters)),
        number_bytes=next(model.parameters()).dtype.itemsize,
        state_bytes=len(packed(model.state_dict())),
        takes_raw=model.passes_features_on,
        drops_raw=model.input_dropout > 0,
        reads_features=model.encoder is None,
        row_bytes=graph.num_features * row_type(model, graph.features).itemsize,
        summing=None if graph.sparse or first is None else _layer(first, graph, constant=constant, run=0),
        encoder=0 if model.encoder is None else _weights(model.encoder),
        traits=tuple(traits_of(model, graph.features, cache=True)),
    )


def _layer(layer: Layer, graph: Graph, *, constant: bool, run: int) -> LayerSizes:
    fixed, widths, weights = without_parameters(layer), layer.widths, _weights(layer)
    at_sources = 0 if widths.raw_source else min(weights, widths.in_features * widths.source[0] * widths.source[1])
    return LayerSizes(
        widths=widths,
        constant=constant,
        fixed=fixed,
        summed=is_summed(layer),
        weighed=not fixed or _is_weighed(layer, graph),
        reads_target=layer.reads_target,
        run=run,
        propagates=only_propagates(layer),
        weights=(at_sources, weights - at_sources),
        edge_numbers=max(widths.in_features, widths.out_features) * isinstance(layer.conv.aggregation, Opaque),
    )


def _weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.dim() > 1)


def _is_weighed(layer: Layer, graph: Graph) -> bool:
    """Whether a layer whose weights the graph fixes has some: tried on one node with an edge to itself."""
    weight = None if graph.topology.weight is None else graph.topology.weight[:1].new_ones(1)
    one = Topology(indptr=torch.tensor([0, 1]), indices=torch.zeros(1, dtype=torch.int32), weight=weight)
    rows = Rows(torch.empty(1, 1, layer.widths.source[1]), None)
    return layer.conv.weigh(one.block, rows, Rows(None, None)) is not None
