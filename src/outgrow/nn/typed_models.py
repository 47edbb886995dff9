"""Ready-made models with modules per type, and the input of each type before a stack of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

import torch

from outgrow.core.errors import InputError
from outgrow.core.graph_types import GraphTypes
from outgrow.core.validation import require_counts
from outgrow.nn.epilogue import Epilogue
from outgrow.nn.hetero_encoder import HeteroEncoder
from outgrow.nn.hgt import HGTConv
from outgrow.nn.layer import Conv
from outgrow.nn.model import Model
from outgrow.nn.relation_matrices import RGCNMatrixConv
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


@accept_stack_options()
def TypedRGCN(
    in_features: int,
    hidden: int,
    out_features: int,
    *,
    types: GraphTypes,
    num_blocks: int | None = None,
    project_first: bool | None = None,
    sparse_input: bool = False,
    embeddings: bool = True,
    **stack: Unpack[StackOptions],
) -> Model:
    """A stack of `RGCNMatrixConv` with a weight of its own for the nodes of each type; other arguments as in `RGCN`.

    Where types have feature columns of their own, or none, each has an input of its own, of width ``hidden``.

    Args:
        in_features: Width of the features of all types: that of the graph.
        hidden: Width of hidden layers.
        out_features: Number of classes.
        types: ``graph.types``.
        num_blocks: Blocks on the diagonals of the matrices of relations, in layers whose widths it divides; None for
            full ones.
        project_first: Project before the sum in all layers, as strategy ``tensor`` needs; None for the order with
            narrower source rows.
        sparse_input: Whether features are sparse: where types share columns the first layer projects first.
        embeddings: Whether each node of a type without features has a learned row; else one row serves the type.
        **stack: ``layers`` (or ``num_layers``), ``dropout``, ``norm`` and the other fields of `Stack`.

    Raises:
        InputError: ``num_blocks`` that no layer can have, or ``in_features`` that are not those of the types.
    """
    encodes = not types.shares_columns
    first = project_first if encodes else sparse_input or project_first
    make_conv = make_matrix_convs(
        types.num_relations, num_blocks, node_types=types.names, project_first=project_first, first_layer=first
    )
    width = hidden if encodes else in_features
    model = require_blocks(make_stack(stack).build((width, hidden, out_features), make_conv), num_blocks)
    if not encodes:
        return model
    return with_encoder(model, make_type_encoder(types, in_features, hidden, Epilogue(), embeddings=embeddings))


def make_matrix_convs(
    num_relations: int,
    num_blocks: int | None,
    *,
    node_types: Sequence[str] = (),
    project_first: bool | None,
    first_layer: bool | None,
) -> Callable[[int, int, LayerPosition], Conv]:
    """Return what makes the `RGCNMatrixConv` of each layer of a stack.

    Args:
        num_relations: ``R``.
        num_blocks: Blocks in layers whose widths it divides; None for full matrices.
        node_types: Node types with weights of their own.
        project_first: Option of all layers but the first.
        first_layer: Option of the first layer.
    """
    require_counts(num_blocks=1 if num_blocks is None else num_blocks)

    def make_conv(width_in: int, width_out: int, position: LayerPosition) -> Conv:
        fits = num_blocks is not None and width_in % num_blocks == width_out % num_blocks == 0
        return RGCNMatrixConv(
            width_in,
            width_out,
            num_relations,
            num_blocks=num_blocks if fits else None,
            node_types=node_types,
            project_first=first_layer if position.is_first else project_first,
        )

    return make_conv


def require_blocks(model: Model, num_blocks: int | None) -> Model:
    """Return a model whose matrices should have blocks, if any.

    Raises:
        InputError: No layer has widths that can be cut into them.
    """
    widths = [(layer.spec.in_features, layer.spec.out_features) for layer in model.layers_list()]
    if num_blocks is None or any(
        width_in % num_blocks == width_out % num_blocks == 0 for width_in, width_out in widths
    ):
        return model
    raise InputError(
        "no layer can have blocks",
        needed="num_blocks that divides both widths of a layer at least",
        got=f"num_blocks {num_blocks} for widths {', '.join(f'{a} to {b}' for a, b in widths)}",
        repair="change num_blocks or hidden",
    )


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
