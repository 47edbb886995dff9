"""Decoupled models: a network on each node, then rounds of propagation, or the other way round.

Ai et al.: NeutronTP, PVLDB 18(2), 2024, section 4.1, which moves the network "to the beginning or end". With fixed
weights and restarts it is APPNP: Gasteiger, Bojchevski & Guennemann, Predict then propagate, ICLR 2019. Models with
the network at the end are SGC (Wu et al., Simplifying graph convolutional networks, ICML 2019) and SIGN, which reads
the features of all hops (Frasca et al., SIGN: Scalable inception graph neural networks, 2020).
"""

from __future__ import annotations

from typing import Any, Unpack

from outgrow.core.errors import InputError
from outgrow.core.validation import require_counts
from outgrow.nn.encoder import AttentionScores, Encoder, SequentialEncoder
from outgrow.nn.epilogue import Epilogue
from outgrow.nn.layer import Conv, Layer
from outgrow.nn.model import Model
from outgrow.nn.nodewise import NodewiseConv
from outgrow.nn.propagation import AttentionPropagateConv, PropagateConv, RelationPropagateConv
from outgrow.nn.stack import LayerPosition, StackOptions, accept_stack_options, make_stack


@accept_stack_options()
def Decoupled(
    in_features: int,
    hidden: int,
    out_features: int,
    *,
    rounds: int | None = None,
    gamma: float = 1.0,
    alpha: float = 0.0,
    aggregator: str = "symmetric",
    heads: int = 0,
    num_relations: int = 0,
    **stack: Unpack[StackOptions],
) -> Model:
    """``Z_0 = MLP(X)``, then ``Z_k = alpha Z_0 + (1 - alpha) gamma A Z_(k-1)`` for each round ``k``.

    The last ``Z`` are the logits. ``A`` is the adjacency of `PropagateConv` by ``aggregator``; with ``heads``, the
    attention of ``Z_0`` of `AttentionPropagateConv`; with ``num_relations``, that of `RelationPropagateConv`, with its
    own weights in each round.

    Args:
        in_features: Width of the features.
        hidden: Width of the hidden layers of the MLP.
        out_features: Number of classes.
        rounds: Rounds of propagation, at least 1; None for as many as the MLP has layers.
        gamma: Factor of each round, in (0, 1].
        alpha: Probability of a restart, in [0, 1): the share of ``Z_0`` in each round.
        aggregator: ``"symmetric"`` as GCN, ``"mean"`` as GraphSAGE or ``"sum"`` as GIN; see `PropagateConv`.
        heads: Heads of attention; 0 for edge weights that depend on the graph alone.
        num_relations: Number of relations of edges, each with diagonal weights; 0 if they are not read.
        **stack: ``layers`` (or ``num_layers``), ``dropout``, ``norm`` and the other fields of `Stack`, for the MLP.

    Raises:
        InputError: An option is out of range, or options exclude one another.
    """
    options = make_stack(stack)
    count = options.layers if rounds is None else rounds
    require_counts(rounds=count)
    require_counts(0, heads=heads, num_relations=num_relations)
    _require_at_most_one(heads=heads, num_relations=num_relations, aggregator=aggregator)

    def make_conv(index: int) -> Conv:
        hops_in, hops_out = _carried_hops(index, count, alpha)
        given: dict[str, Any] = {"gamma": gamma, "alpha": alpha, "hops_in": hops_in, "hops_out": hops_out}
        if heads:
            return AttentionPropagateConv(out_features, heads, last=index == count - 1, **given)
        if num_relations:
            return RelationPropagateConv(out_features, num_relations, **given)
        return PropagateConv(out_features, aggregator=aggregator, **given)

    encoders: list[Encoder] = options.build_mlp((in_features, hidden, out_features))
    # Scores are computed once, from the encoded nodes, and pass through all rounds as extra columns.
    if heads:
        encoders.append(AttentionScores(out_features, heads))
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
    alpha: float = 0.0,
    heads: int = 8,
    **stack: Unpack[StackOptions],
) -> Model:
    """Build `Decoupled` with attention of at least one head; by default as many heads as a `GAT`.

    Args:
        in_features: Width of the features.
        hidden: Width of the hidden layers.
        out_features: Number of classes.
        rounds: Rounds of propagation, at least 1; None for as many as the MLP has layers.
        gamma: Factor of each round, in (0, 1].
        alpha: Probability of a restart, in [0, 1): the share of ``Z_0`` in each round.
        heads: Heads of attention, at least 1.
        **stack: The fields of `Stack`.
    """
    require_counts(heads=heads)
    return Decoupled(in_features, hidden, out_features, rounds=rounds, gamma=gamma, alpha=alpha, heads=heads, **stack)


@accept_stack_options()
def SIGN(
    in_features: int,
    hidden: int,
    out_features: int,
    *,
    rounds: int = 2,
    alpha: float = 0.0,
    aggregator: str = "symmetric",
    concat_hops: bool = True,
    **stack: Unpack[StackOptions],
) -> Model:
    """``Z_0 = X``, ``Z_k = alpha Z_0 + (1 - alpha) A Z_(k-1)`` for each round, and the MLP of all ``Z`` side by side.

    SGC is the model with ``concat_hops=False``, whose MLP reads the last ``Z`` alone, and one layer. The ``Z`` have no
    parameters and are the same in all steps: strategies ``full`` and ``tensor`` compute them once, ``offload`` the
    first sum. Features must be dense.

    Args:
        in_features: Width of the features.
        hidden: Width of the hidden layers of the MLP.
        out_features: Number of classes.
        rounds: Rounds of propagation, at least 1.
        alpha: Share of ``Z_0`` in each round, in [0, 1).
        aggregator: ``"symmetric"``, ``"mean"`` or ``"sum"``; see `PropagateConv`.
        concat_hops: Whether the MLP reads all ``Z``, the last one first; else the last one alone.
        **stack: ``layers`` (or ``num_layers``), ``dropout``, ``norm`` and the other fields of `Stack`, for the MLP.
            ``input_dropout`` is that of the MLP's input.

    Raises:
        InputError: An option is out of range.
    """
    options = make_stack(stack)
    require_counts(rounds=rounds)

    def propagate(index: int) -> Layer:
        hops_in, hops_out = (index, index + 1) if concat_hops else _carried_hops(index, rounds, alpha)
        given = {"hops_in": hops_in, "hops_out": hops_out}
        return Layer(PropagateConv(in_features, aggregator=aggregator, alpha=alpha, **given))

    def project(width_in: int, width_out: int, position: LayerPosition) -> Conv:
        return NodewiseConv(width_in, width_out)

    width = in_features * (rounds + 1 if concat_hops else 1)
    layers = options.build((width, hidden, out_features), project).layers_list()
    if options.input_dropout:
        # Dropout before the propagation would change what is propagated in every step.
        kept = NodewiseConv(width, width, linear=False)
        layers.insert(0, Layer(kept, Epilogue(dropout=options.input_dropout)))
    return Model([*(propagate(index) for index in range(rounds)), *layers])


def _carried_hops(index: int, count: int, alpha: float) -> tuple[int, int]:
    """Return how many earlier rounds the input and the output of a round carry: those of a restart."""
    # A restart reads the initial columns alone, and the first round has them as its input.
    return int(alpha > 0 and index > 0), int(alpha > 0 and index < count - 1)


def _require_at_most_one(**options: int | str) -> None:
    """Refuse options that exclude one another, of which more than one is not its default.

    Raises:
        InputError: More than one is given.
    """
    given = [f"{name}={value}" for name, value in options.items() if value not in (0, "symmetric")]
    if len(given) > 1:
        raise InputError(
            "options of a decoupled model exclude one another",
            needed=f"at most one of {', '.join(options)}",
            got=" and ".join(given),
            repair="leave the others out",
        )
