"""Convolutions whose messages are made of the features of nodes and of edges: GINE, edge networks.

Letters as in `outgrow.nn.layer`; ``I`` inputs that the features of an edge are. No message is held for an edge.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.block import Block
from outgrow.core.validation import require_counts
from outgrow.nn.layer import Conv, ConvSpec, Features, NodeMessages
from outgrow.nn.projection import Projection, project_rows
from outgrow.ops.aggregation.edge_outer import FeatureWeightedSum
from outgrow.ops.aggregation.edge_relu import GineSum
from outgrow.ops.aggregation.max import Max
from outgrow.ops.edge_weight import graph_edge_weight, mean_weight
from outgrow.ops.epilogue import epilogue
from outgrow.ops.linear import affine


@check_arguments()
class GINEConv(Conv):
    """``x'_v = relu(((1 + eps) x_v + sum over in-edges (u, v) of relu(x_u + e_uv U + d)) W + c) W' + b``.

    ``e`` are features of edges; ``eps`` is trained and starts at 0. Weights of edges multiply messages. Hu et al.,
    Strategies for pre-training graph neural networks, ICLR 2020; without the batch norm, which mixes nodes.

    Args:
        in_features: ``D``.
        out_features: ``O``.
        edge_dim: ``I``.
        hidden: ``H``, the width between the two projections; None for ``O``.
        project_first: Project the input to ``H`` columns before all else, as sparse features need: messages are as
            wide as these then, and ``x`` above is the projection.

    Raises:
        InputError: ``edge_dim`` or ``hidden`` is less than 1.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        edge_dim: int,
        *,
        hidden: int | None = None,
        project_first: bool = False,
    ) -> None:
        super().__init__()
        inner = out_features if hidden is None else hidden
        require_counts(edge_dim=edge_dim, hidden=inner)
        width = inner if project_first else in_features
        # The ReLU of a message is taken before any product: sparse rows, as wide as all features, must be projected.
        self.accepts_sparse = project_first
        self.accepts_half = True
        self.edge_dim = edge_dim
        self.embed = Projection(in_features, width) if project_first else None
        self.eps = nn.Parameter(torch.zeros(()))
        self.first = Projection(width, inner)
        self.bias = nn.Parameter(torch.zeros(inner))
        self.second = Projection(inner, out_features, bias=True)
        self.aggregation = GineSum(edge_dim, width)
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            source=(1, width),
            aggregate=(1, width),
            static_edge_weight=True,
            reads_target=True,
            source_is_input=not project_first,
        )

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 1, D]``: the input, or ``[V, 1, H]`` its projection."""
        return NodeMessages(embed_rows(self.embed, x_VD)[:, None], None)

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor | None:
        """Return ``[E, 1]``: the graph's edge weights, or None."""
        assert source.values is not None
        return graph_edge_weight(block, source.values.dtype)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: both projections of the aggregate plus the node itself."""
        total_VF = aggregate_VCF.squeeze(1)
        # One factor per column: torch's sum of a matrix to one gradient depends on the number of threads.
        own_F = (1 + self.eps).expand(total_VF.shape[1])
        summed_VF = torch.addcmul(total_VF, own_F, embed_rows(self.embed, x_VD).to(total_VF.dtype))
        between_VH = epilogue(affine((summed_VF, self.first.weight), bias_O=self.bias), activation=torch.relu)
        out_VO: Tensor = self.second(between_VH)
        return out_VO


@check_arguments()
class NNConv(Conv):
    """``x'_v = x_v W + b + sum over in-edges (u, v) of x_u (A_0 + sum over i of e_uvi A_i)``: an edge network, linear.

    ``e`` are features of edges, each of which has a weight ``A_i`` of its own. Weights of edges multiply messages.
    Gilmer et al., Neural message passing for quantum chemistry, ICML 2017. Rows are summed before the product, once for
    each feature, so no weight is made for an edge.

    Args:
        in_features: ``D``.
        out_features: ``O``.
        edge_dim: ``I``. The aggregate of a node has ``I + 1`` rows.
        mean: Divide the sum by the in-degree.
        project_first: Project the input to ``O`` columns before all else, as sparse features need; ``x`` above is the
            projection.

    Raises:
        InputError: ``edge_dim`` is less than 1.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        edge_dim: int,
        *,
        mean: bool = False,
        project_first: bool = False,
    ) -> None:
        super().__init__()
        require_counts(edge_dim=edge_dim)
        width = out_features if project_first else in_features
        self.accepts_sparse = project_first
        self.accepts_half = True
        self.normalizes_weights = mean
        self.edge_dim = edge_dim
        self.mean = mean
        self.embed = Projection(in_features, width) if project_first else None
        self.itself = Projection(width, out_features, bias=True)
        self.edge_weights = nn.Parameter(torch.empty(edge_dim + 1, width, out_features))
        for weight_DO in self.edge_weights:
            nn.init.xavier_uniform_(weight_DO)
        self.aggregation = FeatureWeightedSum(edge_dim)
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            source=(1, width),
            aggregate=(edge_dim + 1, width),
            static_edge_weight=True,
            reads_target=True,
            source_is_input=not project_first,
        )

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 1, D]``: the input, or ``[V, 1, O]`` its projection."""
        return NodeMessages(embed_rows(self.embed, x_VD)[:, None], None)

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor | None:
        """Return ``[E, 1]``: the graph's edge weights, or None; over the in-degree for a mean."""
        assert source.values is not None
        return (mean_weight if self.mean else graph_edge_weight)(block, source.values.dtype)

    @property
    def edge_weight_key(self) -> tuple[object, ...]:
        """The class, and whether a mean is taken."""
        return NNConv, self.mean

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the node's own projection plus the products of the sums."""
        # Rows of features are behind one another: one product does the sum over them.
        return self.itself.add_products(
            embed_rows(self.embed, x_VD), (aggregate_VCF.flatten(1), self.edge_weights.flatten(0, 1))
        )


@check_arguments()
class EdgeConv(Conv):
    """``x'_v = max over in-edges (u, v) of relu(x_v A + (x_u - x_v) B + b)``; zeros for a node without in-edges.

    Wang et al., Dynamic graph CNN for learning on point clouds, ACM TOG 2019, with an edge network of one layer. The
    maximum commutes with the ReLU and with what is the same for all in-edges, so it is taken of ``x_u B``: one row for
    each node. Features of edges are not read.

    Args:
        in_features: ``D``.
        out_features: ``O``.
    """

    accepts_half = True
    reads_weights = False

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.itself = Projection(in_features, out_features, bias=True)
        self.difference = Projection(in_features, out_features)
        # Below every number, so that the ReLU makes zeros of a node without in-edges.
        self.aggregation = Max(empty=-torch.inf)
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            source=(1, out_features),
            aggregate=(1, out_features),
            static_edge_weight=True,
            reads_target=True,
        )

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 1, O]``: the source's term of its messages."""
        rows_VO: Tensor = self.difference(x_VD)
        return NodeMessages(rows_VO[:, None], None)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the ReLU of the maximum and the destination's term."""
        own_VO = project_rows(x_VD, self.itself.weight - self.difference.weight, self.itself.bias)
        return torch.relu(own_VO + aggregate_VCF.squeeze(1))


def embed_rows(embed: Projection | None, x_VD: Features) -> Tensor:
    """Return the rows that messages are made of: the input, or its projection."""
    if embed is None:
        assert isinstance(x_VD, Tensor)
        return x_VD
    rows_VO: Tensor = embed(x_VD)
    return rows_VO
