"""Ready-made models of layers that read features of edges; see `outgrow.nn.zoo`."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from torch.nn import functional

from outgrow.nn.edge_attention import GATv2Conv, TransformerConv
from outgrow.nn.edge_messages import GINEConv, NNConv
from outgrow.nn.layer import Conv
from outgrow.nn.model import Model
from outgrow.nn.stack import LayerPosition, StackOptions, accept_stack_options, choose_heads, make_stack


@accept_stack_options(activation=functional.elu)
def GATv2(
    in_features: int,
    hidden: int,
    out_features: int,
    *,
    heads: int = 8,
    out_heads: int = 1,
    attention_dropout: float = 0.0,
    edge_dim: int = 0,
    share_weights: bool = False,
    **stack: Unpack[StackOptions],
) -> Model:
    """A stack of `GATv2Conv` with ELU; other arguments as in `GCN`.

    Args:
        in_features: Width of the features.
        hidden: Width of hidden layers, all heads together.
        out_features: Number of classes.
        heads: Heads of hidden layers; divides ``hidden``.
        out_heads: Heads of the last layer, averaged.
        attention_dropout: Probability of dropping an edge of a head, in [0, 1).
        edge_dim: Features of edges that are read, ``graph.num_edge_features``; 0 if they are not.
        share_weights: Whether destinations have the projection of sources.
        **stack: ``layers`` (or ``num_layers``), ``dropout``, ``norm`` and the other fields of `Stack`.
    """
    make_conv = partial(GATv2Conv, attention_dropout=attention_dropout, edge_dim=edge_dim, share_weights=share_weights)
    widths = in_features, hidden, out_features
    return make_stack(stack).build(widths, choose_heads(make_conv, heads, out_heads))


@accept_stack_options()
def Transformer(
    in_features: int,
    hidden: int,
    out_features: int,
    *,
    heads: int = 4,
    out_heads: int = 1,
    attention_dropout: float = 0.0,
    edge_dim: int = 0,
    beta: bool = False,
    **stack: Unpack[StackOptions],
) -> Model:
    """A stack of `TransformerConv`; other arguments as in `GCN`.

    Args:
        in_features: Width of the features.
        hidden: Width of hidden layers, all heads together.
        out_features: Number of classes.
        heads: Heads of hidden layers; divides ``hidden``.
        out_heads: Heads of the last layer, averaged.
        attention_dropout: Probability of dropping an edge of a head, in [0, 1).
        edge_dim: Features of edges that are read, ``graph.num_edge_features``; 0 if they are not.
        beta: Whether a gate mixes a node's own projection and the attention.
        **stack: ``layers`` (or ``num_layers``), ``dropout``, ``norm`` and the other fields of `Stack`.
    """
    make_conv = partial(TransformerConv, attention_dropout=attention_dropout, edge_dim=edge_dim, beta=beta)
    widths = in_features, hidden, out_features
    return make_stack(stack).build(widths, choose_heads(make_conv, heads, out_heads))


@accept_stack_options()
def GINE(
    in_features: int,
    hidden: int,
    out_features: int,
    *,
    edge_dim: int,
    sparse_input: bool = False,
    **stack: Unpack[StackOptions],
) -> Model:
    """A stack of `GINEConv`; other arguments as in `GCN`.

    Args:
        in_features: Width of the features.
        hidden: Width of hidden layers, and between the two projections of all layers.
        out_features: Number of classes.
        edge_dim: Features of edges, ``graph.num_edge_features``.
        sparse_input: The first layer projects the input before all else, as sparse features need; this is another
            model, with one more product.
        **stack: ``layers`` (or ``num_layers``), ``dropout``, ``norm`` and the other fields of `Stack`.
    """

    def make_conv(width_in: int, width_out: int, position: LayerPosition) -> Conv:
        # Not the number of classes: a last layer with two of them would decide by two numbers.
        project_first = position.is_first and sparse_input
        return GINEConv(width_in, width_out, edge_dim, hidden=hidden, project_first=project_first)

    return make_stack(stack).build((in_features, hidden, out_features), make_conv)


@accept_stack_options()
def EdgeNetwork(
    in_features: int,
    hidden: int,
    out_features: int,
    *,
    edge_dim: int,
    mean: bool = False,
    sparse_input: bool = False,
    **stack: Unpack[StackOptions],
) -> Model:
    """A stack of `NNConv`; other arguments as in `GINE`.

    Args:
        in_features: Width of the features.
        hidden: Width of hidden layers.
        out_features: Number of classes.
        edge_dim: Features of edges, ``graph.num_edge_features``.
        mean: Whether messages are averaged instead of added.
        sparse_input: The first layer projects the input before all else, as sparse features need.
        **stack: ``layers`` (or ``num_layers``), ``dropout``, ``norm`` and the other fields of `Stack`.
    """

    def make_conv(width_in: int, width_out: int, position: LayerPosition) -> Conv:
        first = position.is_first and sparse_input
        return NNConv(width_in, width_out, edge_dim, mean=mean, project_first=first)

    return make_stack(stack).build((in_features, hidden, out_features), make_conv)
