"""Convolutions whose messages are made of the features of nodes and of edges: GINE.

Letters as in `outgrow.nn.layer`; ``I`` inputs that the features of an edge are. No message is held for an edge.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.block import Block
from outgrow.core.validation import require_counts
from outgrow.nn.layer import Conv, ConvSpec, Features, NodeMessages
from outgrow.nn.projection import Projection
from outgrow.ops.aggregation.edge_relu import GineSum
from outgrow.ops.edge_weight import graph_edge_weight
from outgrow.ops.epilogue import epilogue
from outgrow.ops.linear import affine


@check_arguments()
class GINEConv(Conv):
    """``x'_v = relu(((1 + eps) x_v + sum over in-edges (u, v) of relu(x_u + e_uv U + d)) W + c) W' + b``.

    ``e`` are features of edges; ``eps`` is trained and starts at 0. Weights of edges multiply messages. Hu et al.,
    Strategies for pre-training graph neural networks, ICLR 2020; without the batch norm, which mixes nodes.

    Args:
        in_features: ``D``.
        out_features: ``O``; also the width between the two projections.
        edge_dim: ``I``.
        project_first: Project the input to ``O`` columns before all else, as sparse features need: messages are as
            wide as these then, and ``x`` above is the projection.

    Raises:
        InputError: ``edge_dim`` is less than 1.
    """

    def __init__(self, in_features: int, out_features: int, edge_dim: int, *, project_first: bool = False) -> None:
        super().__init__()
        require_counts(edge_dim=edge_dim)
        width = out_features if project_first else in_features
        # The ReLU of a message is taken before any product: sparse rows, as wide as all features, must be projected.
        self.accepts_sparse = project_first
        self.accepts_half = True
        self.edge_dim = edge_dim
        self.embed = Projection(in_features, width) if project_first else None
        self.eps = nn.Parameter(torch.zeros(()))
        self.first = Projection(width, out_features)
        self.bias = nn.Parameter(torch.zeros(out_features))
        self.second = Projection(out_features, out_features, bias=True)
        self.aggregation = GineSum(edge_dim, width)
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            source=(1, width),
            aggregate=(1, width),
            static_edge_weight=True,
            reads_target=True,
        )

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 1, D]``: the input, or ``[V, 1, O]`` its projection."""
        return NodeMessages(self._embed_rows(x_VD)[:, None], None)

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor | None:
        """Return ``[E, 1]``: the graph's edge weights, or None."""
        assert source.values is not None
        return graph_edge_weight(block, source.values.dtype)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: both projections of the aggregate plus the node itself."""
        total_VF = aggregate_VCF[:, 0]
        # One factor per column: torch's sum of a matrix to one gradient depends on the number of threads.
        own_F = (1 + self.eps).expand(total_VF.shape[1])
        summed_VF = torch.addcmul(total_VF, own_F, self._embed_rows(x_VD).to(total_VF.dtype))
        between_VO = epilogue(affine((summed_VF, self.first.weight), bias_O=self.bias), activation=torch.relu)
        out_VO: Tensor = self.second(between_VO)
        return out_VO

    def _embed_rows(self, x_VD: Features) -> Tensor:
        if self.embed is None:
            assert isinstance(x_VD, Tensor)
            return x_VD
        rows_VO: Tensor = self.embed(x_VD)
        return rows_VO
