"""Feature-wise linear modulation: a destination scales and shifts the messages that it receives."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.block import Block
from outgrow.core.validation import require_counts
from outgrow.nn.layer import Conv, ConvSpec, Features, NodeMessages
from outgrow.nn.projection import Projection, project_channels
from outgrow.ops.aggregation.film import Film
from outgrow.ops.edge_weight import mean_weight


@check_arguments()
class FiLMConv(Conv):
    """``x'_v = relu(g'_v * x_v W' + b'_v) + mean over in-edges (u, v) of relu(g_v * x_u W + b_v)``.

    ``g`` and ``b`` are linear in ``x_v``, as are ``g'`` and ``b'``; products are column by column, and ``g``
    starts near 1. With relations, each has its own ``W``, ``g`` and ``b``, and the mean is over the edges of
    all relations together. Brockschmidt, GNN-FiLM, ICML 2020. The paper sums the messages; their mean keeps
    deep stacks stable on nodes of high degree.

    Args:
        in_features: ``D``.
        out_features: ``O``.
        slope: Slope of the activation of messages below zero: 0 for ReLU, 1 for none.
        num_relations: ``R``; 0 if relations of edges are not read. Else a node sends one row for each
            relation, and uses two rows for each as a destination.

    Raises:
        InputError: ``num_relations`` is negative.
    """

    accepts_half = True
    normalizes_weights = True

    def __init__(self, in_features: int, out_features: int, *, slope: float = 0.0, num_relations: int = 0) -> None:
        super().__init__()
        require_counts(0, num_relations=num_relations)
        self.num_relations = num_relations
        channels = max(1, num_relations)
        self.message = _stack_projections(in_features, out_features, channels)
        self.itself = Projection(in_features, out_features)
        self.scale, self.shift = (_stack_projections(in_features, out_features, channels, bias=True) for _ in range(2))
        self.own_scale, self.own_shift = (Projection(in_features, out_features, bias=True) for _ in range(2))
        # A scale near 1 and a shift near 0: the layer starts as a plain mean of projections.
        for scale in (self.scale, self.own_scale):
            assert scale.bias is not None
            nn.init.ones_(scale.bias)
        self.slope = slope
        self.aggregation = Film(slope, num_relations)
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            source=(channels, out_features),
            target=(2 * channels, out_features),
            aggregate=(1, out_features),
            static_edge_weight=True,
            reads_target=True,
        )

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, max(1, R), O]``: the messages before modulation."""
        # Modulation by the destination comes after the source's projection, so each node projects once.
        message_VJ: Tensor = self.message(x_VD)
        return NodeMessages(torch.unflatten(message_VJ, 1, self.spec.source), None)

    def target(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 2 max(1, R), O]``: scale and shift of received messages, relation by relation."""
        both_V2J = project_channels(x_VD, self.scale, self.shift)
        both_V2RO = torch.unflatten(both_V2J.flatten(1), 1, (2, *self.spec.source))
        # The kernel reads the scale and the shift of one relation next to each other.
        return NodeMessages(both_V2RO.transpose(1, 2).flatten(1, 2), None)

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor:
        """Return ``[E, 1]``: one over the in-degree of the destination."""
        assert source.values is not None
        return mean_weight(block, source.values.dtype)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the node's own modulated message plus the aggregate."""
        own: Tensor = self.own_scale(x_VD) * self.itself(x_VD) + self.own_shift(x_VD)
        return torch.nn.functional.leaky_relu(own, self.slope) + aggregate_VCF.squeeze(1)


def _stack_projections(in_features: int, out_features: int, count: int, *, bias: bool = False) -> Projection:
    """Return ``count`` projections as one, each initialised as if it stood alone."""
    projection = Projection(in_features, count * out_features, bias=bias)
    # Glorot's bound depends on the width: for the whole matrix it would be too small for each part.
    if count > 1:
        for first in range(0, count * out_features, out_features):
            nn.init.xavier_uniform_(projection.weight[:, first : first + out_features])
    return projection
