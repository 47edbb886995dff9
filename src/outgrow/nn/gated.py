"""Convolutions with gates: on edges (GGCN) and on the state of a node (GGNN).

Letters as in `outgrow.nn.layer`; ``S`` width of the state.
"""

from __future__ import annotations

from torch import Tensor, nn

from outgrow.core.block import Block
from outgrow.nn.layer import Conv, Features, Projection, Rows, Widths, side_by_side
from outgrow.ops.aggregation.gated import Gated
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.edge_weight import graph_weight


class GGCNConv(Conv):
    """``x'_v = x_v W + b + sum over in-edges (u, v) of sigmoid(x_u G + x_v G' + c) * (x_u W' + d)``, column by column.

    Bresson & Laurent, Residual gated graph ConvNets, 2017.

    Args:
        in_features: ``D``.
        out_features: ``O``.
    """

    takes_half = True

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.itself = Projection(in_features, out_features, bias=True)
        self.gate = Projection(in_features, out_features, bias=True)
        self.value = Projection(in_features, out_features, bias=True)
        self.target_gate = Projection(in_features, out_features)
        self.aggregation = Gated()
        self.widths = Widths(
            in_features=in_features,
            out_features=out_features,
            source=(2, out_features),
            target=(1, out_features),
            aggregate=(1, out_features),
            fixed_weight=True,
            reads_target=True,
        )

    def source(self, x_VD: Features) -> Rows:
        """``[V, 2, O]``: the source's half of the gate, and the value."""
        return Rows(side_by_side(x_VD, self.gate, self.value), None)

    def target(self, x_VD: Features) -> Rows:
        """``[V, 1, O]``: the destination's half of the gate."""
        return Rows(self.target_gate(x_VD)[:, None], None)

    def weigh(self, block: Block, source: Rows, target: Rows) -> Tensor | None:
        """``[E, 1]``: weights of the graph, if it has any."""
        assert source.columns is not None
        return graph_weight(block, source.columns.dtype)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """``[Vd, O]``."""
        itself: Tensor = self.itself(x_VD)
        return itself + aggregate_VCF[:, 0]


class GGNNConv(Conv):
    """``h'_v = GRU(sum over in-edges (u, v) of h_u W, h_v)``: one step of a gated graph network.

    The state ``h`` is the input itself where it is as wide and dense, else a projection of it. Where the output is of
    another width than the state, it is a projection of the new state. Li, Tarlow, Brockschmidt & Zemel, Gated graph
    sequence neural networks, ICLR 2016.

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
        self.takes_sparse = self.takes_half = project_first or in_features != width
        self.embed = Projection(in_features, width, bias=True) if self.takes_sparse else None
        self.message = Projection(width, width)
        self.cell = nn.GRUCell(width, width)
        self.readout = None if out_features == width else Projection(width, out_features, bias=True)
        self.aggregation = WeightedSum()
        self.widths = Widths(
            in_features=in_features,
            out_features=out_features,
            source=(1, width),
            aggregate=(1, width),
            fixed_weight=True,
            reads_target=True,
        )

    def source(self, x_VD: Features) -> Rows:
        """``[V, 1, S]``: the message of a node."""
        return Rows(self.message(self._state(x_VD))[:, None], None)

    def weigh(self, block: Block, source: Rows, target: Rows) -> Tensor | None:
        """``[E, 1]``: weights of the graph, if it has any."""
        assert source.columns is not None
        return graph_weight(block, source.columns.dtype)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """``[Vd, O]``: the new state, or a projection of it."""
        state: Tensor = self.cell(aggregate_VCF[:, 0], self._state(x_VD))
        return state if self.readout is None else self.readout(state)

    def _state(self, x_VD: Features) -> Tensor:
        if self.embed is None:
            assert isinstance(x_VD, Tensor)
            return x_VD
        state: Tensor = self.embed(x_VD)
        return state
