"""Ready-made models: a convolution, stacked.

Deep stacks are options: ``GCN(..., layers=7, norm=True, residual=True)`` is the residual GCN of Li et al. (DeepGCNs,
ICCV 2019) with 7 layers, ``FiLM(..., layers=10, norm=True, residual=True)`` a GNN-FiLM with 10.
"""

from __future__ import annotations

from functools import partial
from typing import Unpack

import torch
from torch.nn import functional

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice
from outgrow.nn.attention import GATConv
from outgrow.nn.convolution import CommNetConv, GCNConv, SAGEConv, SAGEMaxConv
from outgrow.nn.film import FiLMConv
from outgrow.nn.gated import GGCNConv, GGNNConv
from outgrow.nn.gin import GINConv
from outgrow.nn.layer import Conv
from outgrow.nn.model import Model
from outgrow.nn.relational import RGCNConv, RGCNDiagonalConv
from outgrow.nn.stack import LayerPosition, StackOptions, accept_stack_options, choose_heads, make_stack
from outgrow.nn.typed_models import make_matrix_convs, require_blocks


@accept_stack_options()
def GCN(
    in_features: int, hidden: int, out_features: int, *, sparse_input: bool = False, **stack: Unpack[StackOptions]
) -> Model:
    """A stack of `GCNConv`.

    Args:
        in_features: Width of the features.
        hidden: Width of hidden layers.
        out_features: Number of classes.
        sparse_input: The first layer projects before it aggregates, as sparse features need; `og.train` and the
            other functions that get a graph see to it by themselves.
        **stack: ``layers`` (or ``num_layers``), ``dropout``, ``norm`` and the other fields of `Stack`.
    """

    def make_conv(width_in: int, width_out: int, position: LayerPosition) -> Conv:
        return GCNConv(width_in, width_out, project_first=_first_projection_option(position, sparse_input))

    return make_stack(stack).build((in_features, hidden, out_features), make_conv)


@accept_stack_options()
def SAGE(
    in_features: int,
    hidden: int,
    out_features: int,
    *,
    pool: str = "mean",
    sparse_input: bool = False,
    **stack: Unpack[StackOptions],
) -> Model:
    """A stack of `SAGEConv` (``pool="mean"``) or `SAGEMaxConv` (``pool="max"``).

    Args:
        in_features: Width of the features.
        hidden: Width of hidden layers.
        out_features: Number of classes.
        pool: How neighbours are combined.
        sparse_input: The first layer projects before it aggregates, as sparse features need; `og.train` and the
            other functions that get a graph see to it by themselves.
        **stack: ``layers`` (or ``num_layers``), ``dropout``, ``norm`` and the other fields of `Stack`.

    Raises:
        InputError: Another ``pool``.
    """
    validate_choice("pool", pool, dict.fromkeys(("mean", "max")))

    def make_conv(width_in: int, width_out: int, position: LayerPosition) -> Conv:
        if pool == "max":
            return SAGEMaxConv(width_in, width_out)
        return SAGEConv(width_in, width_out, project_first=_first_projection_option(position, sparse_input))

    return make_stack(stack).build((in_features, hidden, out_features), make_conv)


@accept_stack_options(activation=functional.elu)
def GAT(
    in_features: int,
    hidden: int,
    out_features: int,
    *,
    heads: int = 8,
    out_heads: int = 1,
    attention_dropout: float = 0.0,
    num_relations: int = 0,
    edge_weights: bool = False,
    edge_dim: int = 0,
    **stack: Unpack[StackOptions],
) -> Model:
    """A stack of `GATConv` with ELU; other arguments as in `GCN`.

    Args:
        in_features: Width of the features.
        hidden: Width of hidden layers, all heads together.
        out_features: Number of classes.
        heads: Heads of hidden layers; divides ``hidden``.
        out_heads: Heads of the last layer, averaged.
        attention_dropout: Probability of dropping an edge of a head, in [0, 1).
        num_relations: Number of relations of edges, each with scores of its own; 0 if they are not read.
        edge_weights: Whether the weight of an edge adds to its scores.
        edge_dim: Features of edges that add to their scores, ``graph.num_edge_features``; 0 if they are not read.
        **stack: ``layers`` (or ``num_layers``), ``dropout``, ``norm`` and the other fields of `Stack`.
    """
    make_conv = partial(
        GATConv,
        attention_dropout=attention_dropout,
        num_relations=num_relations,
        edge_weights=edge_weights,
        edge_dim=edge_dim,
    )
    widths = in_features, hidden, out_features
    return make_stack(stack).build(widths, choose_heads(make_conv, heads, out_heads))


@accept_stack_options()
def GIN(
    in_features: int, hidden: int, out_features: int, *, sparse_input: bool = False, **stack: Unpack[StackOptions]
) -> Model:
    """A stack of `GINConv`; arguments as in `SAGE`."""

    def make_conv(width_in: int, width_out: int, position: LayerPosition) -> Conv:
        return GINConv(width_in, width_out, project_first=_first_projection_option(position, sparse_input))

    return make_stack(stack).build((in_features, hidden, out_features), make_conv)


@accept_stack_options(activation=torch.tanh)
def CommNet(
    in_features: int, hidden: int, out_features: int, *, sparse_input: bool = False, **stack: Unpack[StackOptions]
) -> Model:
    """A stack of `CommNetConv` with tanh; arguments as in `SAGE`."""

    def make_conv(width_in: int, width_out: int, position: LayerPosition) -> Conv:
        return CommNetConv(width_in, width_out, project_first=_first_projection_option(position, sparse_input))

    return make_stack(stack).build((in_features, hidden, out_features), make_conv)


@accept_stack_options()
def GGCN(in_features: int, hidden: int, out_features: int, **stack: Unpack[StackOptions]) -> Model:
    """A stack of `GGCNConv`; arguments as in `GCN`."""
    return make_stack(stack).build((in_features, hidden, out_features), lambda i, o, place: GGCNConv(i, o))


@accept_stack_options(activation=None)
def GGNN(
    in_features: int, hidden: int, out_features: int, *, sparse_input: bool = False, **stack: Unpack[StackOptions]
) -> Model:
    """A stack of `GGNNConv` without activations; arguments as in `SAGE`.

    The first layer projects the input to a state of width ``hidden`` where the widths differ, the last layer projects
    the state to the classes. Each layer has its own parameters.
    """

    def make_conv(width_in: int, width_out: int, position: LayerPosition) -> Conv:
        return GGNNConv(width_in, width_out, state=hidden, project_first=position.is_first and sparse_input)

    return make_stack(stack).build((in_features, hidden, out_features), make_conv)


@accept_stack_options()
def FiLM(
    in_features: int, hidden: int, out_features: int, *, num_relations: int = 0, **stack: Unpack[StackOptions]
) -> Model:
    """A stack of `FiLMConv`; other arguments as in `GCN`.

    Args:
        in_features: Width of the features.
        hidden: Width of hidden layers.
        out_features: Number of classes.
        num_relations: Number of relations of edges, each with weights of its own; 0 if they are not read.
        **stack: ``layers`` (or ``num_layers``), ``dropout``, ``norm`` and the other fields of `Stack`.
    """

    def make_conv(width_in: int, width_out: int, position: LayerPosition) -> Conv:
        return FiLMConv(width_in, width_out, num_relations=num_relations)

    return make_stack(stack).build((in_features, hidden, out_features), make_conv)


@accept_stack_options()
def RGCN(
    in_features: int,
    hidden: int,
    out_features: int,
    *,
    num_relations: int,
    bases: int | None = 4,
    num_blocks: int | None = None,
    project_first: bool | None = None,
    sparse_input: bool = False,
    **stack: Unpack[StackOptions],
) -> Model:
    """A stack of `RGCNConv`, or of `RGCNMatrixConv` with ``bases=None``; other arguments as in `GCN`.

    Args:
        in_features: Width of the features.
        hidden: Width of hidden layers.
        out_features: Number of classes.
        num_relations: Number of relations of edges.
        bases: Weights that the relations of a layer share; None for a matrix for each relation.
        num_blocks: Blocks on the diagonals of these matrices, in layers whose widths it divides; None for full ones.
        project_first: Project before the sum in all layers, as strategy ``tensor`` needs without bases; None for the
            order with narrower source rows.
        sparse_input: The first layer projects before it aggregates, as sparse features need; `og.train` and the
            other functions that get a graph see to it by themselves.
        **stack: ``layers`` (or ``num_layers``), ``dropout``, ``norm`` and the other fields of `Stack`.

    Raises:
        InputError: ``num_blocks`` beside ``bases``, or ``num_blocks`` that no layer can have.
    """
    if bases is not None and num_blocks is not None:
        raise InputError(
            "RGCN with bases has no blocks",
            needed="bases=None beside num_blocks",
            got=f"bases={bases}",
            repair="give bases=None, or leave num_blocks out",
        )
    built = make_stack(stack)
    if bases is None:
        first = sparse_input or project_first
        make_matrices = make_matrix_convs(num_relations, num_blocks, project_first=project_first, first_layer=first)
        return require_blocks(built.build((in_features, hidden, out_features), make_matrices), num_blocks)

    def make_conv(width_in: int, width_out: int, position: LayerPosition) -> Conv:
        first = _first_projection_option(position, sparse_input) or project_first
        return RGCNConv(width_in, width_out, num_relations, bases=bases, project_first=first)

    return built.build((in_features, hidden, out_features), make_conv)


@accept_stack_options()
def RGCNDiagonal(
    in_features: int, hidden: int, out_features: int, *, num_relations: int, **stack: Unpack[StackOptions]
) -> Model:
    """A stack of `RGCNDiagonalConv`; arguments as in `RGCN`."""

    def make_conv(width_in: int, width_out: int, position: LayerPosition) -> Conv:
        return RGCNDiagonalConv(width_in, width_out, num_relations)

    return make_stack(stack).build((in_features, hidden, out_features), make_conv)


def _first_projection_option(position: LayerPosition, sparse_input: bool) -> bool | None:
    return True if position.is_first and sparse_input else None
