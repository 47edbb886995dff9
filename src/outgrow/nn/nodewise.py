"""`NodewiseConv` and `MLP`: layers that read a node alone, for models of features or node vectors without a graph.

Letters as in `outgrow.nn.layer`.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError
from outgrow.nn.epilogue import Epilogue
from outgrow.nn.layer import Conv, ConvSpec, Features, Layer, NodeMessages
from outgrow.nn.model import Model
from outgrow.nn.node_embedding import NodeEmbedding
from outgrow.nn.projection import Projection
from outgrow.nn.stack import LayerPosition, StackOptions, accept_stack_options, make_stack
from outgrow.ops.aggregation.no_messages import NoMessages


@check_arguments()
class NodewiseConv(Conv):
    """``x'_v = x_v W + b``, or ``x'_v = x_v``: no neighbour is read, and no row is sent.

    Args:
        in_features: ``D``.
        out_features: ``O``.
        linear: Whether the row is multiplied; else it is passed on as it is.

    Raises:
        InputError: Rows are to be passed on to another width.
    """

    accepts_half = True
    reads_weights = False

    def __init__(self, in_features: int, out_features: int, *, linear: bool = True) -> None:
        super().__init__()
        if not linear and in_features != out_features:
            raise InputError(
                "a NodewiseConv that passes rows on has two widths",
                needed="one width",
                got=f"{in_features} in, {out_features} out",
                repair="make both equal, or leave linear=False out",
            )
        self.itself = Projection(in_features, out_features, bias=True) if linear else None
        self.aggregation = NoMessages()
        self.accepts_sparse = linear
        self.accepts_half = linear
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            source=(1, 1),
            aggregate=(1, 1),
            static_edge_weight=True,
            reads_target=True,
        )

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 1, 1]``: a zero, since strategies that keep source rows in tables keep rows of some width."""
        if not isinstance(x_VD, Tensor):
            return NodeMessages(x_VD.new_zeros(len(x_VD), 1, 1), None)
        return NodeMessages(0 * x_VD[:, None, :1], None)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the row, multiplied or as it is."""
        if self.itself is None:
            assert isinstance(x_VD, Tensor)
            return x_VD
        out: Tensor = self.itself(x_VD)
        return out


@check_arguments()
def Embedding(
    in_features: int,
    hidden: int,
    out_features: int,
    *,
    combine: str | None = None,
    std: float | None = None,
    dropout: float = 0.0,
) -> Model:
    """A `NodeEmbedding` and no neighbours: the shallow embedding of knowledge graphs, or a linear model of features.

    Args:
        in_features: Width of the features; 0 for a graph without features.
        hidden: Width of the vectors.
        out_features: Number of classes or, for links, ``hidden``: the vectors then go to the decoder as they are.
        combine: See `NodeEmbedding`.
        std: See `NodeEmbedding`.
        dropout: Probability of zeroing a number of the result, in [0, 1).
    """
    encoder = NodeEmbedding(hidden, in_features=in_features, combine=combine, std=std)
    width = encoder.out_features
    conv = NodewiseConv(width, out_features, linear=width != out_features)
    return Model([Layer(conv, Epilogue(dropout=dropout))], encoder=encoder)


@accept_stack_options()
def MLP(in_features: int, hidden: int, out_features: int, **stack: Unpack[StackOptions]) -> Model:
    """A stack of `NodewiseConv`: a multilayer perceptron of each node's own row, without neighbours.

    Args:
        in_features: Width of the features.
        hidden: Width of hidden layers.
        out_features: Number of classes.
        **stack: ``layers`` (or ``num_layers``), ``dropout``, ``norm`` and the other fields of `Stack`.
    """

    def make_conv(width_in: int, width_out: int, position: LayerPosition) -> Conv:
        return NodewiseConv(width_in, width_out)

    return make_stack(stack).build((in_features, hidden, out_features), make_conv)
