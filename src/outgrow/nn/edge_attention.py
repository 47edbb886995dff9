"""Convolutions with attention of which scores need the values of both ends: GATv2, and the graph transformer.

Letters as in `outgrow.nn.layer`; ``K`` heads, ``I`` inputs that the features of an edge are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.validation import require_counts, validate_probability
from outgrow.nn.attention import head_columns, mean_over_heads
from outgrow.nn.layer import Conv, ConvSpec, Features, NodeMessages
from outgrow.nn.projection import Projection, project_channels
from outgrow.ops.aggregation.edge_attention import DotProductAttention, DynamicAttention


@check_arguments()
class GATv2Conv(Conv):
    """``x'_v = b + for each head k: sum over in-edges (u, v) and the self-loop of alpha_uvk * (x_u W_k + c_k)``.

    ``alpha_uvk`` is the softmax over the in-edges of ``v`` of
    ``a_k . leaky_relu(x_u W_k + c_k + x_v W'_k + c'_k + e_uv U_k, 0.2)``, ``e`` features of edges. Heads are
    concatenated, or averaged in a last layer. Brody, Alon & Yahav, How attentive are graph attention networks?, ICLR
    2022.

    Args:
        in_features: ``D``.
        out_features: ``O``.
        heads: ``K``; must divide ``O`` if heads are concatenated.
        average: Average the heads, each ``O`` wide, instead of concatenating them, each ``O / K`` wide.
        attention_dropout: Probability of dropping an edge of a head, in [0, 1).
        edge_dim: ``I``; 0 if features of edges are not read. An added self-loop has zeros, one that is there keeps
            its features.
        share_weights: Whether destinations have the projection of sources: ``W' = W``, ``c' = c``.
        self_loops: Whether exactly one self-loop per node is among the in-edges; False for the edges of the graph.

    Raises:
        InputError: ``heads`` does not divide ``out_features``, ``attention_dropout`` is out of range, or ``edge_dim``
            is negative.
    """

    accepts_half = True
    reads_weights = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        heads: int = 8,
        *,
        average: bool = False,
        attention_dropout: float = 0.0,
        edge_dim: int = 0,
        share_weights: bool = False,
        self_loops: bool = True,
    ) -> None:
        super().__init__()
        self.columns = head_columns(out_features, heads, average)
        validate_probability("attention_dropout", attention_dropout)
        require_counts(0, edge_dim=edge_dim)
        self.average = average
        self.edge_dim = edge_dim
        self.message = Projection(in_features, heads * self.columns, bias=True)
        self.itself = None if share_weights else Projection(in_features, heads * self.columns, bias=True)
        self.bias = nn.Parameter(torch.zeros(out_features))
        self.aggregation = DynamicAttention(heads, self.columns, edge_dim=edge_dim, dropout=attention_dropout)
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            source=(heads, self.columns),
            target=(heads, self.columns),
            aggregate=(heads, self.columns),
            static_edge_weight=True,
            reads_target=True,
            self_loops=self_loops,
            needs_full_neighborhood=True,
        )

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, K, F]``: the projections that are summed, and that scores are made of."""
        return self._project_heads(self.message, x_VD)

    def target(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, K, F]``: the terms of destinations in the scores."""
        return self._project_heads(self.itself or self.message, x_VD)

    def source_and_target(self, x_VD: Features) -> tuple[NodeMessages, NodeMessages]:
        """Return `source` and `target`: one product if they share the projection."""
        source = self.source(x_VD)
        return source, source if self.itself is None else self.target(x_VD)

    def _project_heads(self, projection: Projection, x_VD: Features) -> NodeMessages:
        h_VJ: Tensor = projection(x_VD)
        return NodeMessages(torch.unflatten(h_VJ, 1, self.spec.source), None)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the heads concatenated, or their mean."""
        return mean_over_heads(aggregate_VCF) if self.average else aggregate_VCF.flatten(1)

    @property
    def epilogue_bias(self) -> Tensor:
        """The bias, fused with the epilogue."""
        return self.bias


@check_arguments()
class TransformerConv(Conv):
    """``x'_v = x_v W + b + for each head k: sum over in-edges (u, v) of alpha_uvk * (x_u V_k + c_k + e_uv U_k)``.

    ``alpha_uvk`` is the softmax over the in-edges of ``v`` of ``q_vk . (x_u K_k + d_k + e_uv U_k) / sqrt(F)``, with the
    query ``q_vk = x_v Q_k + f_k`` and features ``e`` of edges. Heads are concatenated, or averaged in a last layer. Shi
    et al., Masked label prediction: unified message passing model for semi-supervised classification, IJCAI 2021.

    Args:
        in_features: ``D``.
        out_features: ``O``.
        heads: ``K``; must divide ``O`` if heads are concatenated.
        average: Average the heads, each ``O`` wide, instead of concatenating them, each ``O / K`` wide.
        attention_dropout: Probability of dropping an edge of a head, in [0, 1).
        edge_dim: ``I``; 0 if features of edges are not read.
        beta: Mix the root's projection ``r`` and the attention ``m`` instead of adding them: ``z r + (1 - z) m`` with
            the gate ``z = sigmoid([m, r, m - r] w)``.
        root_weight: Whether ``x_v W + b`` is part of the result.

    Raises:
        InputError: ``heads`` does not divide ``out_features``, ``attention_dropout`` is out of range, or ``edge_dim``
            is negative.
    """

    accepts_half = True
    reads_weights = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        heads: int = 8,
        *,
        average: bool = False,
        attention_dropout: float = 0.0,
        edge_dim: int = 0,
        beta: bool = False,
        root_weight: bool = True,
    ) -> None:
        super().__init__()
        columns = head_columns(out_features, heads, average)
        validate_probability("attention_dropout", attention_dropout)
        require_counts(0, edge_dim=edge_dim)
        self.average = average
        self.edge_dim = edge_dim
        self.key, self.value, self.query = (Projection(in_features, heads * columns, bias=True) for _ in range(3))
        self.root = Projection(in_features, out_features, bias=True) if root_weight else None
        self.gate = Projection(3 * out_features, 1) if beta and root_weight else None
        self.aggregation = DotProductAttention(heads, columns, edge_dim=edge_dim, dropout=attention_dropout)
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            source=(2 * heads, columns),
            target=(heads, columns),
            aggregate=(heads, columns),
            static_edge_weight=True,
            reads_target=True,
            needs_full_neighborhood=True,
        )

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 2 K, F]``: the keys of all heads, then the values."""
        both_V2J = project_channels(x_VD, self.key, self.value)
        return NodeMessages(torch.unflatten(both_V2J.flatten(1), 1, self.spec.source), None)

    def target(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, K, F]``: the queries."""
        query_VJ: Tensor = self.query(x_VD)
        return NodeMessages(torch.unflatten(query_VJ, 1, self.spec.target), None)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the heads, and the projection of the node itself."""
        mean_VO = mean_over_heads(aggregate_VCF) if self.average else aggregate_VCF.flatten(1)
        if self.root is None:
            return mean_VO
        root_VO: Tensor = self.root(x_VD)
        if self.gate is None:
            return mean_VO + root_VO
        share_V1 = torch.sigmoid(self.gate(torch.cat([mean_VO, root_VO, mean_VO - root_VO], 1)))
        return share_V1 * root_VO + (1 - share_V1) * mean_VO
