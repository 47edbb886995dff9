"""`to_hetero`: a model of one kind of nodes and edges as a model of several."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError
from outgrow.core.graph_types import EdgeType, GraphTypes
from outgrow.nn.attention import GATConv
from outgrow.nn.convolution import CommNetConv, SAGEConv, SAGEMaxConv
from outgrow.nn.edge_attention import GATv2Conv
from outgrow.nn.hetero import SUM, HeteroConv
from outgrow.nn.layer import Conv, Layer
from outgrow.nn.model import Model
from outgrow.nn.pyg import PyGAggregation


@runtime_checkable
class HasTypes(Protocol):
    """A graph, whose types a model is made for."""

    @property
    def types(self) -> GraphTypes:
        """Its types."""


@check_arguments(unchecked=("graph",))
def to_hetero(model: Model, graph: HasTypes | GraphTypes, combine: str = SUM) -> Model:
    """Return a model with a copy of each convolution for each edge type of a graph, as PyG's ``to_hetero`` does.

    Each copy has parameters of its own, whose matrices are drawn anew from torch's generator (Glorot-uniform; PyG's
    convolutions reset theirs). Attention is without self-loops, which edges between two types do not have. What
    follows a convolution, an encoder and a decoder are shared by all types, as they are. Where types have feature
    columns of their own, convolutions that take pairs of widths (`SAGEConv`, `SAGEMaxConv`, `CommNetConv`) have
    matrices as high as their types need; others those of all columns.

    Args:
        model: A model whose layers fit a `HeteroConv`: see docs/typed-graphs.md. It stays as it is.
        graph: The graph, or its ``types``.
        combine: How the results of relations that enter a type are combined: ``sum``, ``mean`` or ``max``.

    Raises:
        InputError: A layer does not fit, or edges of a relation are between nodes of several types.
    """
    if not isinstance(graph, GraphTypes | HasTypes):
        raise InputError(
            "to_hetero was given no graph",
            needed="a graph, or its types",
            got=type(graph).__name__,
            repair="give og.load(...) or graph.types",
        )
    types = graph if isinstance(graph, GraphTypes) else graph.types
    if any(layer.conv.reads_types for layer in model.layers_list()):
        raise InputError(
            "to_hetero was given a model that has modules per type already",
            needed="a model of one kind of nodes and edges, such as og.nn.SAGE",
            got="a model with " + ", ".join(type(layer.conv).__name__ for layer in model.layers_list()),
            repair="use it as it is",
        )
    if model.encoder is None and not types.shares_columns:
        _require_columns(types)
    layers = []
    for index, layer in enumerate(model.layers_list()):
        reads_columns = index == 0 and model.encoder is None and not types.shares_columns
        convs: dict[EdgeType, Conv] = {
            each: _copy_for(layer.conv, each, types if reads_columns else None) for each in types.edge_types
        }
        typed = Layer(HeteroConv(convs, combine), copy.deepcopy(layer.epilogue))
        typed.norm = copy.deepcopy(layer.norm)
        layers.append(typed)
    encoder, decoder = copy.deepcopy(model.encoder), copy.deepcopy(model.decoder)
    other = Model(layers, input_dropout=model.input_dropout, encoder=encoder, decoder=decoder)
    other.bind_types(types)
    return other


def _copy_for(conv: Conv, edge_type: EdgeType, types: GraphTypes | None) -> Conv:
    """Return a convolution like another, with parameters of its own, for the columns of two types if these have any."""
    if types is not None and isinstance(conv, SAGEConv | CommNetConv | SAGEMaxConv):
        first, last = types.type_columns(edge_type[0])
        begin, end = types.type_columns(edge_type[2])
        return type(conv)((last - first, end - begin), conv.spec.out_features)
    other = copy.deepcopy(conv)
    if isinstance(other.aggregation, PyGAggregation):
        # Every convolution of PyG has it.
        foreign: Any = other.aggregation.conv
        foreign.reset_parameters()
        return other
    if isinstance(other, GATConv | GATv2Conv):
        # Between two types there are no self-loops; PyG needs add_self_loops=False for the same reason.
        other.spec = replace(other.spec, self_loops=False)
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
    return other


def _require_columns(types: GraphTypes) -> None:
    """Refuse types without features, which a layer would read zeros of."""
    empty = [name for name in types.names if len({*types.type_columns(name)}) == 1]
    if empty:
        raise InputError(
            "a type has no input",
            needed="features of all types, or a model with an encoder that knows what they have",
            got=f"no features of {', '.join(empty)}",
            repair="begin the model with og.nn.HeteroEncoder, which has embeddings and types without input",
        )
