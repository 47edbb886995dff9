"""Feature-wise linear modulation: a destination scales and shifts the messages that it hears."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outgrow.core.block import Block
from outgrow.nn.layer import Conv, Features, Projection, Rows, Widths, side_by_side
from outgrow.ops.edge_weight import mean_weight
from outgrow.ops.film import Film


class FiLMConv(Conv):
    """``x'_v = relu(g'_v * x_v W' + b'_v) + mean over in-edges (u, v) of relu(g_v * x_u W + b_v)``.

    ``g`` and ``b`` are linear in ``x_v``, as are ``g'`` and ``b'``; products are column by column, and ``g`` starts
    near 1. Brockschmidt, GNN-FiLM, ICML 2020, which adds messages up; their mean keeps deep stacks stable on nodes of
    high degree. Relations of edges are not read.

    Args:
        in_features: ``D``.
        out_features: ``O``.
        slope: Slope of the activation of messages below zero: 0 for ReLU, 1 for none.
    """

    def __init__(self, in_features: int, out_features: int, *, slope: float = 0.0) -> None:
        super().__init__()
        self.message, self.itself = Projection(in_features, out_features), Projection(in_features, out_features)
        self.scale, self.shift, self.own_scale, self.own_shift = (
            Projection(in_features, out_features, bias=True) for _ in range(4)
        )
        for scale in (self.scale, self.own_scale):
            assert scale.bias is not None
            nn.init.ones_(scale.bias)
        self.slope = slope
        self.aggregation = Film(slope)
        self.widths = Widths(
            in_features=in_features,
            out_features=out_features,
            source=(1, out_features),
            target=(2, out_features),
            aggregate=(1, out_features),
            fixed_weight=True,
            reads_target=True,
        )

    def source(self, x_VD: Features) -> Rows:
        """``[V, 1, O]``: the message, not modulated yet."""
        return Rows(self.message(x_VD)[:, None], None)

    def target(self, x_VD: Features) -> Rows:
        """``[V, 2, O]``: scale and shift of what the node hears."""
        return Rows(side_by_side(x_VD, self.scale, self.shift), None)

    def weigh(self, block: Block, source: Rows, target: Rows) -> Tensor:
        """``[E, 1]``: one over the degree of the destination."""
        assert source.columns is not None
        return mean_weight(block, source.columns.dtype)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """``[Vd, O]``: what the node says to itself, modulated too, and what it heard."""
        own: Tensor = self.own_scale(x_VD) * self.itself(x_VD) + self.own_shift(x_VD)
        return torch.nn.functional.leaky_relu(own, self.slope) + aggregate_VCF[:, 0]
