"""Convolutions with gates: on edges (GGCN), and on the states of nodes (GGNN).

Letters as in `outgrow.nn.layer`; ``S`` width of the state.
"""

from __future__ import annotations

from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.block import Block
from outgrow.nn.layer import Conv, ConvSpec, Features, NodeMessages
from outgrow.nn.projection import Projection, project_channels
from outgrow.ops.aggregation.gated import Gated
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.edge_weight import graph_edge_weight


@check_arguments()
class GGCNConv(Conv):
    """``x'_v = x_v W + b + sum over in-edges (u, v) of sigmoid(x_u G + x_v G' + c) * (x_u W' + d)``, column by column.

    Bresson & Laurent, Residual gated graph ConvNets, 2017.

    Args:
        in_features: ``D``.
        out_features: ``O``.
    """

    accepts_half = True

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.itself = Projection(in_features, out_features, bias=True)
        self.gate = Projection(in_features, out_features, bias=True)
        self.value = Projection(in_features, out_features, bias=True)
        self.target_gate = Projection(in_features, out_features)
        self.aggregation = Gated()
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            # The gate's term is sent with the value: both are needed at every edge.
            source=(2, out_features),
            target=(1, out_features),
            aggregate=(1, out_features),
            static_edge_weight=True,
            reads_target=True,
        )

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 2, O]``: the source's term of the gate, and the value."""
        return NodeMessages(project_channels(x_VD, self.gate, self.value), None)

    def target(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 1, O]``: the destination's term of the gate."""
        # The gate is a sigmoid of a sum, so each end projects its term once per node, not once per edge.
        return NodeMessages(self.target_gate(x_VD)[:, None], None)

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor | None:
        """Return ``[E, 1]``: the graph's edge weights, or None."""
        assert source.values is not None
        return graph_edge_weight(block, source.values.dtype)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the node's own projection plus the aggregate."""
        itself: Tensor = self.itself(x_VD)
        return itself + aggregate_VCF.squeeze(1)


@check_arguments()
class GGNNConv(Conv):
    """``h'_v = GRU(sum over in-edges (u, v) of h_u W, h_v)``: one step of a gated graph network.

    The state ``h`` is the input itself if that is dense and of the same width, else a projection of it. If
    the output has another width than the state, it is a projection of the new state. Li, Tarlow, Brockschmidt
    & Zemel, Gated graph sequence neural networks, ICLR 2016.

    Args:
        in_features: ``D``.
        out_features: ``O``.
        state: ``S``; None for ``out_features``.
        project_first: Project the input even if it is as wide as the state, as sparse features need.
    """

    def __init__(
        self, in_features: int, out_features: int, *, state: int | None = None, project_first: bool = False
    ) -> None:
        super().__init__()
        width = out_features if state is None else state
        # Sparse or half-precision rows cannot be a GRU's state: they are accepted only behind a projection.
        self.accepts_sparse = self.accepts_half = project_first or in_features != width
        self.embed = Projection(in_features, width, bias=True) if self.accepts_sparse else None
        self.message = Projection(width, width)
        self.cell = nn.GRUCell(width, width)
        self.readout = None if out_features == width else Projection(width, out_features, bias=True)
        self.aggregation = WeightedSum()
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            source=(1, width),
            aggregate=(1, width),
            static_edge_weight=True,
            reads_target=True,
        )

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 1, S]``: the message of each node."""
        # Projected before the sum: state and message have one width, so the order does not change what moves.
        return NodeMessages(self.message(self._node_state(x_VD))[:, None], None)

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor | None:
        """Return ``[E, 1]``: the graph's edge weights, or None."""
        assert source.values is not None
        return graph_edge_weight(block, source.values.dtype)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the new state, or a projection of it."""
        # Messages do not contain the state, so destinations compute theirs from their own input.
        state: Tensor = self.cell(aggregate_VCF.squeeze(1), self._node_state(x_VD))
        return state if self.readout is None else self.readout(state)

    def _node_state(self, x_VD: Features) -> Tensor:
        if self.embed is None:
            assert isinstance(x_VD, Tensor)
            return x_VD
        state: Tensor = self.embed(x_VD)
        return state
