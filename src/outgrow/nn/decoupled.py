"""Decoupled models: an MLP on each node first, then rounds of propagation.

Ai et al.: NeutronTP, PVLDB 18(2), 2024, section 4.1; with fixed weights it is the propagation of Gasteiger,
Bojchevski & Guennemann, Predict then propagate, ICLR 2019, without its restarts.
"""

from __future__ import annotations

from typing import Unpack

from outgrow.core.errors import InputError
from outgrow.core.validation import require_counts
from outgrow.nn.encoder import AttentionScores, Encoder, SequentialEncoder
from outgrow.nn.layer import Conv, Layer
from outgrow.nn.model import Model
from outgrow.nn.propagation import AttentionPropagateConv, PropagateConv, RelationPropagateConv
from outgrow.nn.stack import StackOptions, accept_stack_options, make_stack


@accept_stack_options()
def Decoupled(
    in_features: int,
    hidden: int,
    out_features: int,
    *,
    rounds: int | None = None,
    gamma: float = 1.0,
    heads: int = 0,
    num_relations: int = 0,
    **stack: Unpack[StackOptions],
) -> Model:
    """``Z_0 = MLP(X)``, then ``Z_k = gamma * A Z_(k-1)`` for each round ``k``; the last ``Z`` are the logits.

    ``A`` is the normalised adjacency of `PropagateConv`; with ``heads``, the attention of ``Z_0`` of
    `AttentionPropagateConv`; with ``num_relations``, that of `RelationPropagateConv`, with its own weights in
    each round.

    Args:
        in_features: Width of the features.
        hidden: Width of the hidden layers of the MLP.
        out_features: Number of classes.
        rounds: Rounds of propagation, at least 1; None for as many as the MLP has layers.
        gamma: Factor of each round, in (0, 1].
        heads: Heads of attention; 0 for edge weights that depend on the graph alone.
        num_relations: Number of relations of edges, each with diagonal weights; 0 if they are not read.
        **stack: ``layers`` (or ``num_layers``), ``dropout``, ``norm`` and the other fields of `Stack`, for the MLP.

    Raises:
        InputError: ``rounds``, ``gamma`` or ``heads`` is out of range, or both heads and relations are given.
    """
    options = make_stack(stack)
    count = options.layers if rounds is None else rounds
    require_counts(rounds=count)
    require_counts(0, heads=heads, num_relations=num_relations)
    if heads and num_relations:
        raise InputError(
            "heads and relations are given",
            needed="heads or num_relations, not both",
            got=f"{heads} heads, {num_relations} relations",
            repair="leave one of the two out",
        )
    encoders: list[Encoder] = options.build_mlp((in_features, hidden, out_features))
    # Scores are computed once, from the encoded nodes, and pass through all rounds as extra columns.
    if heads:
        encoders.append(AttentionScores(out_features, heads))

    def make_conv(index: int) -> Conv:
        if heads:
            return AttentionPropagateConv(out_features, heads, gamma=gamma, last=index == count - 1)
        if num_relations:
            return RelationPropagateConv(out_features, num_relations, gamma=gamma)
        return PropagateConv(out_features, gamma=gamma)

    # Without epilogues: rounds are linear in the columns, so slices of these can stay apart.
    layers = [Layer(make_conv(index)) for index in range(count)]
    return Model(layers, input_dropout=options.input_dropout, encoder=SequentialEncoder(encoders))


@accept_stack_options()
def DecoupledGAT(
    in_features: int,
    hidden: int,
    out_features: int,
    *,
    rounds: int | None = None,
    gamma: float = 1.0,
    heads: int = 8,
    **stack: Unpack[StackOptions],
) -> Model:
    """Build `Decoupled` with attention of at least one head; by default as many heads as a `GAT`."""
    require_counts(heads=heads)
    return Decoupled(in_features, hidden, out_features, rounds=rounds, gamma=gamma, heads=heads, **stack)
