"""The graph isomorphism network: `GINConv`. Letters as in `outgrow.nn.layer`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.block import Block
from outgrow.nn.layer import ConvSpec, Features, NodeMessages
from outgrow.nn.projection import Projection
from outgrow.nn.projection_order import ReorderableConv, should_project_first
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.edge_weight import graph_edge_weight
from outgrow.ops.epilogue import epilogue
from outgrow.ops.linear import affine
from outgrow.ops.linear_of_sum import add_scaled, matmul_of_sum
from outgrow.ops.sparse import SparseRows


class _OwnProduct:
    """The product of the rows that are sources and destinations at once, from `source` to `update`.

    Otherwise it would be computed twice, forward and backward. It belongs to a call: no copy of the convolution has it.
    """

    def __init__(self) -> None:
        self._rows: Features | None = None
        self._product: Tensor | None = None

    def keep(self, rows: Features, product: Tensor) -> None:
        """Keep the product of some rows, and no other."""
        self._rows, self._product = rows, product

    def take(self, rows: Features) -> Tensor | None:
        """Return the product of these very rows, if it is there; nothing is kept any longer."""
        found = self._product if self._rows is rows else None
        self._rows = self._product = None
        return found

    def __reduce__(self) -> tuple[type[_OwnProduct], tuple[()]]:
        return _OwnProduct, ()


@check_arguments()
class GINConv(ReorderableConv):
    """``x'_v = relu(((1 + eps) x_v + sum over in-edges (u, v) of x_u) W + c) W' + b``.

    The sum commutes with the first projection, so either may come first. ``eps`` is trained and starts at 0.
    Xu, Hu, Leskovec & Jegelka, How powerful are graph neural networks?, ICLR 2019; without its batch norm,
    which mixes nodes.

    Args:
        in_features: ``D``.
        out_features: ``O``; also the width between the two projections.
        project_first: Project before the sum, as sparse features need; None for the order with narrower rows.
    """

    accepts_half = True

    def __init__(self, in_features: int, out_features: int, *, project_first: bool | None = None) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.first = Projection(in_features, out_features)
        self.bias = nn.Parameter(torch.zeros(out_features))
        self.second = Projection(out_features, out_features, bias=True)
        self.aggregation = WeightedSum()
        self._own_product = _OwnProduct()
        self.accepts_sparse = should_project_first(in_features, out_features, project_first)
        width = out_features if self.accepts_sparse else in_features
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            source=(1, width),
            aggregate=(1, width),
            static_edge_weight=True,
            reads_target=True,
            source_is_input=not self.accepts_sparse,
        )

    @property
    def neighbour_projection(self) -> Projection:
        """The projection that commutes with the sum."""
        return self.first

    def source_and_target(self, x_VD: Features) -> tuple[NodeMessages, NodeMessages]:
        """Return `source`, and keep the product for `update` of the same rows."""
        source, target = super().source_and_target(x_VD)
        if self.accepts_sparse:
            assert source.values is not None
            self._own_product.keep(x_VD, source.values.squeeze(1))
        return source, target

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor | None:
        """Return ``[E, 1]``: the graph's edge weights, or None."""
        assert source.values is not None
        return graph_edge_weight(block, source.values.dtype)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: both projections of the aggregate plus the node itself."""
        total, scale = aggregate_VCF.squeeze(1), 1 + self.eps
        if self.accepts_sparse:
            own = self._own_product.take(x_VD)
            summed = add_scaled(total, self.first(x_VD) if own is None else own, scale)
        else:
            # As wide as the sum that is dense anyway.
            x_VD = x_VD.to_dense() if isinstance(x_VD, SparseRows) else x_VD
            assert isinstance(x_VD, Tensor)
            if x_VD.requires_grad or total.requires_grad:
                summed = affine((add_scaled(total, x_VD, scale), self.first.weight))
            else:
                # The same product, but the gradient of ``eps`` takes none of rows as wide as raw features.
                summed = matmul_of_sum(total, x_VD, scale, self.first.weight)
        between = epilogue(summed, bias_F=self.bias, activation=torch.relu)
        out: Tensor = self.second(between)
        return out
