"""Convolutions whose edge weights depend on the graph alone: GCN, GraphSAGE, CommNet.

Letters as in `outgrow.nn.layer`.
"""

from __future__ import annotations

from abc import ABC

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.block import Block
from outgrow.core.errors import InputError
from outgrow.nn.layer import Conv, ConvSpec, Features, NodeMessages
from outgrow.nn.projection import Projection
from outgrow.nn.projection_order import ReorderableConv, as_one_channel, should_project_first
from outgrow.ops.aggregation.max import Max
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.edge_weight import mean_weight, symmetric_weight
from outgrow.ops.epilogue import epilogue
from outgrow.ops.linear import affine

InputWidths = int | tuple[int, int]
"""Width of the input; or that of sources and that of destinations, which may be nodes of two types."""
_SIDES = 2


@check_arguments()
class GCNConv(ReorderableConv):
    """``x'_v = b + sum over in-edges (u, v) and the self-loop of w_uv / sqrt(d_u d_v) * x_u W``.

    ``d`` is the weighted in-degree with the self-loop. Kipf & Welling, Semi-supervised classification with
    graph convolutional networks, ICLR 2017.

    Args:
        in_features: ``D``.
        out_features: ``O``.
        project_first: Project before the sum, as sparse features need; None for the order with narrower rows.
    """

    accepts_half = True
    normalizes_weights = True

    def __init__(self, in_features: int, out_features: int, *, project_first: bool | None = None) -> None:
        super().__init__()
        self.project = Projection(in_features, out_features)
        self.bias = nn.Parameter(torch.zeros(out_features))
        self.aggregation = WeightedSum()
        # `accepts_sparse` also records the order: a layer accepts sparse rows if it projects them first.
        self.accepts_sparse = should_project_first(in_features, out_features, project_first)
        width = out_features if self.accepts_sparse else in_features
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            source=(1, width),
            aggregate=(1, width),
            static_edge_weight=True,
            # The self-loop is an edge of the block, so the destination's own input is not read apart.
            reads_target=False,
            self_loops=True,
            source_is_input=not self.accepts_sparse,
        )

    @property
    def neighbour_projection(self) -> Projection:
        """The projection that commutes with the sum."""
        return self.project

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor:
        """Return ``[E, 1]``: the symmetric normalisation."""
        assert source.values is not None
        return symmetric_weight(block, source.values.dtype)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the aggregate, projected with the bias unless `source` has projected it."""
        total = aggregate_VCF.squeeze(1)
        # Without a product to fuse the bias into, it is left to the epilogue: see `epilogue_bias`.
        return total if self.accepts_sparse else affine((total, self.project.weight), bias_O=self.bias)

    @property
    def epilogue_bias(self) -> Tensor | None:
        """The bias, unless `update` adds it."""
        return self.bias if self.accepts_sparse else None


class _MeanConv(ReorderableConv, ABC):
    """``x'_v = x_v W_self + mean over in-edges (u, v) of x_u W_neighbour``, with or without a bias.

    The mean commutes with the projection, so either may come first.

    Args:
        in_features: ``D``; or that of sources and that of destinations, in a `HeteroConv`.
        out_features: ``O``.
        project_first: Project before the mean, as sparse features need; None for the order with narrower
            rows.
        bias: Whether to add a bias.
    """

    accepts_half = True
    normalizes_weights = True

    def __init__(self, in_features: InputWidths, out_features: int, project_first: bool | None, *, bias: bool) -> None:
        super().__init__()
        of_sources, of_targets = input_widths(in_features)
        self.itself = Projection(of_targets, out_features, bias=bias)
        self.neighbour = Projection(of_sources, out_features)
        self.aggregation = WeightedSum()
        self.order_is_given = project_first is not None
        self.accepts_sparse = should_project_first(of_sources, out_features, project_first)
        width = out_features if self.accepts_sparse else of_sources
        self.spec = ConvSpec(
            in_features=of_sources,
            target_in_features=None if isinstance(in_features, int) else of_targets,
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
        return self.neighbour

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor:
        """Return ``[E, 1]``: one over the in-degree of the destination."""
        assert source.values is not None
        return mean_weight(block, source.values.dtype)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the node's own projection plus that of the mean."""
        mean = aggregate_VCF.squeeze(1)
        if self.accepts_sparse:
            itself: Tensor = self.itself(x_VD)
            # In place, as no one else has the product.
            return itself.add_(mean)
        # Both products accumulate into one output, without a tensor for each.
        return self.itself.add_products(x_VD, (mean, self.neighbour.weight))


@check_arguments()
class SAGEConv(_MeanConv):
    """``x'_v = x_v W_self + b + mean over in-edges (u, v) of x_u W_neighbour``.

    Hamilton, Ying & Leskovec, Inductive representation learning on large graphs, NeurIPS 2017.

    Args:
        in_features: ``D``; or that of sources and that of destinations, in a `HeteroConv`.
        out_features: ``O``.
        project_first: Project before the mean, as sparse features need; None for the order with narrower
            rows.
    """

    def __init__(self, in_features: InputWidths, out_features: int, *, project_first: bool | None = None) -> None:
        super().__init__(in_features, out_features, project_first, bias=True)


@check_arguments()
class CommNetConv(_MeanConv):
    """``x'_v = x_v W_self + mean over in-edges (u, v) of x_u W_neighbour``: communicating agents.

    Sukhbaatar, Szlam & Fergus, Learning multiagent communication with backpropagation, NeurIPS 2016. There
    the mean leaves out the agent itself; here it includes the agent if the graph has a self-loop.

    Args:
        in_features: ``D``; or that of sources and that of destinations, in a `HeteroConv`.
        out_features: ``O``.
        project_first: Project before the mean, as sparse features need; None for the order with narrower
            rows.
    """

    def __init__(self, in_features: InputWidths, out_features: int, *, project_first: bool | None = None) -> None:
        super().__init__(in_features, out_features, project_first, bias=False)


@check_arguments()
class SAGEMaxConv(Conv):
    """``x'_v = x_v W_self + b + (max over in-edges (u, v) of relu(x_u W_pool + c)) W_neighbour``.

    The pooling aggregator of GraphSAGE (see `SAGEConv`).

    Args:
        in_features: ``D``; or that of sources and that of destinations, in a `HeteroConv`.
        out_features: ``O``.
    """

    accepts_half = True
    reads_weights = False

    def __init__(self, in_features: InputWidths, out_features: int) -> None:
        super().__init__()
        of_sources, of_targets = input_widths(in_features)
        self.pool = Projection(of_sources, out_features, bias=True)
        self.itself = Projection(of_targets, out_features, bias=True)
        self.neighbour = Projection(out_features, out_features)
        self.aggregation = Max()
        self.spec = ConvSpec(
            in_features=of_sources,
            target_in_features=None if isinstance(in_features, int) else of_targets,
            out_features=out_features,
            source=(1, out_features),
            aggregate=(1, out_features),
            static_edge_weight=True,
            reads_target=True,
        )

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 1, O]``: the pooled projection of each node."""
        # Once per node, not per edge; the activation must come before the maximum, as in the paper.
        return as_one_channel(epilogue(self.pool(x_VD), activation=torch.relu))

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the node's own projection plus that of the maximum."""
        return self.itself.add_products(x_VD, (aggregate_VCF.squeeze(1), self.neighbour.weight))


def input_widths(in_features: InputWidths) -> tuple[int, int]:
    """Return the input width of sources, and that of destinations.

    Raises:
        InputError: They are neither a width nor two.
    """
    if isinstance(in_features, int):
        return in_features, in_features
    given: object = in_features
    if not isinstance(given, tuple) or len(given) != _SIDES:
        raise InputError(
            "a convolution has input widths of another number",
            needed="one width, or that of sources and that of destinations",
            got=f"{in_features!r}",
            repair="give one or two numbers",
        )
    return in_features
