"""Ready-made models with modules per type: `HGT`, and the input of each type before a stack of layers."""

from __future__ import annotations

from typing import Unpack

import torch

from outgrow.core.errors import InputError
from outgrow.core.graph_types import GraphTypes
from outgrow.nn.hetero_encoder import HeteroEncoder
from outgrow.nn.hgt import HGTConv
from outgrow.nn.layer import Conv, Epilogue
from outgrow.nn.model import Model
from outgrow.nn.stack import LayerPosition, StackOptions, accept_stack_options, make_stack


@accept_stack_options(activation=None)
def HGT(
    in_features: int,
    hidden: int,
    out_features: int,
    *,
    types: GraphTypes,
    heads: int = 8,
    embeddings: bool = True,
    **stack: Unpack[StackOptions],
) -> Model:
    """A stack of `HGTConv` after an input of its own for each node type; other arguments as in `GCN`.

    Features are projected to ``hidden`` by type, with ReLU; the last layer ends with a projection to the classes that
    all types share.

    Args:
        in_features: Width of the features of all types: that of the graph.
        hidden: Width of the inputs and of hidden layers.
        out_features: Number of classes.
        types: ``graph.types``.
        heads: Heads of each layer; divides ``hidden``.
        embeddings: Whether each node of a type without features has a learned row; else one row serves the type.
        **stack: ``layers`` (or ``num_layers``), ``dropout``, ``norm`` and the other fields of `Stack`.
    """

    def make_conv(width_in: int, width_out: int, position: LayerPosition) -> Conv:
        names = types.names, types.edge_types
        if position.is_last:
            return HGTConv(width_in, width_out, *names, heads, hidden=hidden)
        return HGTConv(width_in, width_out, *names, heads)

    encoder = make_type_encoder(types, in_features, hidden, Epilogue(activation=torch.relu), embeddings=embeddings)
    return with_encoder(make_stack(stack).build((hidden, hidden, out_features), make_conv), encoder)


def make_type_encoder(
    types: GraphTypes, in_features: int, out_features: int, epilogue: Epilogue, *, embeddings: bool
) -> HeteroEncoder:
    """Return an encoder with a projection for each type with features, and learned rows for the others.

    Args:
        types: The types.
        in_features: Width of the features of all types.
        out_features: Width of the encoded rows.
        epilogue: Operations after it.
        embeddings: Whether each node of a type without features has a row of its own.

    Raises:
        InputError: ``in_features`` is another number than that of the types' columns.
    """
    if in_features != types.columns[-1]:
        raise InputError(
            "in_features does not fit the types",
            needed=f"{types.columns[-1]}, the columns of {', '.join(types.names)}",
            got=str(in_features),
            repair="give graph.num_features and graph.types of the same graph",
        )
    spans = {name: types.type_columns(name) for name in types.names}
    widths = {name: last - first for name, (first, last) in spans.items() if last > first}
    rest = [name for name in types.names if name not in widths]
    counts = {name: last - first for name, (first, last) in ((name, types.type_nodes(name)) for name in rest)}
    return HeteroEncoder(
        widths,
        out_features,
        embeddings=counts if embeddings else None,
        without_input=() if embeddings else rest,
        shared_columns=types.shares_columns and types.num_types > 1,
        epilogue=epilogue,
    )


def with_encoder(model: Model, encoder: HeteroEncoder) -> Model:
    """Return a model of the same layers after an encoder."""
    return Model(model.layers_list(), input_dropout=model.input_dropout, encoder=encoder)
