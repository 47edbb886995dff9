"""Convolutions whose edge weights are computed from nodes: graph attention."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.block import Block
from outgrow.core.errors import InputError
from outgrow.core.validation import require_counts, validate_probability
from outgrow.nn.layer import ConvSpec, Features, NodeMessages
from outgrow.nn.projection import Projection, project_rows
from outgrow.nn.source_products import SourceProductConv, project_rows_without_values
from outgrow.ops.aggregation.attention import attention_weight
from outgrow.ops.aggregation.edge_attention import drop_attention
from outgrow.ops.aggregation.relation_edges import self_loop_relation
from outgrow.ops.aggregation.relational import basis_weight
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.edge_features import project_edges


@check_arguments()
class GATConv(SourceProductConv):
    """``x'_v = b + for each head k: sum over in-edges (u, v) and the self-loop of alpha_uvk * x_u W_k``.

    ``alpha_uvk`` is the softmax over the in-edges of ``v`` of
    ``leaky_relu(a_k . x_u W_k + a'_k . x_v W_k, 0.2)``. Heads are concatenated, or averaged in a last layer.
    Velickovic et al., Graph attention networks, ICLR 2018. Three learned terms per head may be added to the score
    of an edge before the leaky ReLU: one for its relation (added self-loops count as one more relation), a multiple
    of its weight, and ``a''_k . e_uv U_k`` of its features ``e``.

    Args:
        in_features: ``D``.
        out_features: ``O``.
        heads: ``K``; must divide ``O`` if heads are concatenated.
        average: Average the heads, each ``O`` wide, instead of concatenating them, each ``O / K`` wide.
        attention_dropout: Probability of dropping an edge of a head, in [0, 1).
        num_relations: ``R``; 0 if relations of edges are not read.
        edge_weights: Whether weights of edges are read.
        edge_dim: Features of edges that are read; 0 for none. An added self-loop has zeros, one that is there keeps
            its features.
        self_loops: Whether exactly one self-loop per node is among the in-edges; False for the edges of the graph.

    Raises:
        InputError: ``heads`` does not divide ``out_features``, ``attention_dropout`` is out of range, or
            ``num_relations`` or ``edge_dim`` is negative.
    """

    accepts_half = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        heads: int = 8,
        *,
        average: bool = False,
        attention_dropout: float = 0.0,
        num_relations: int = 0,
        edge_weights: bool = False,
        edge_dim: int = 0,
        self_loops: bool = True,
    ) -> None:
        super().__init__()
        columns = head_columns(out_features, heads, average)
        validate_probability("attention_dropout", attention_dropout)
        require_counts(0, num_relations=num_relations, edge_dim=edge_dim)
        self.heads = heads
        self.columns = columns
        self.average = average
        self.dropout = attention_dropout
        self.project = Projection(in_features, heads * columns)
        self.source_score = nn.Parameter(torch.empty(heads, columns))
        self.target_score = nn.Parameter(torch.empty(heads, columns))
        self.bias = nn.Parameter(torch.zeros(out_features))
        self.num_relations = num_relations
        self.relation_score = nn.Parameter(torch.empty(num_relations + 1, heads)) if num_relations else None
        self.weight_score = nn.Parameter(torch.zeros(heads)) if edge_weights else None
        self.reads_weights = edge_weights
        self.edge_dim = edge_dim
        self.edge_project = Projection(edge_dim, heads * columns) if edge_dim else None
        self.edge_score = nn.Parameter(torch.empty(heads, columns)) if edge_dim else None
        nn.init.xavier_uniform_(self.source_score)
        nn.init.xavier_uniform_(self.target_score)
        for score in (self.relation_score, self.edge_score):
            if score is not None:
                nn.init.xavier_uniform_(score)
        self.aggregation = WeightedSum()
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            source=(heads, columns),
            score=heads,
            aggregate=(heads, columns),
            static_edge_weight=False,
            reads_target=True,
            self_loops=self_loops,
            needs_full_neighborhood=True,
        )

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, K, F]`` projections and ``[V, K]`` scores."""
        return NodeMessages(self._project_heads(x_VD), project_rows(x_VD, _fold_score(self.project, self.source_score)))

    def source_without_values(self, x_VD: Features) -> NodeMessages:
        """Return `source` for its gradient alone: projections and scores are NaN."""
        weights = self.project.weight, _fold_score(self.project, self.source_score)
        h_VJ, score_VK = (project_rows_without_values(x_VD, weight) for weight in weights)
        return NodeMessages(torch.unflatten(h_VJ, 1, (self.heads, self.columns)), score_VK)

    def target(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, K]`` scores."""
        return NodeMessages(None, project_rows(x_VD, _fold_score(self.project, self.target_score)))

    def source_and_target(self, x_VD: Features) -> tuple[NodeMessages, NodeMessages]:
        """Return `source` and `target`, with one product for both scores."""
        h_VKF = self._project_heads(x_VD)
        scores = (self.source_score, self.target_score)
        # From the projections if these are narrower than the input, else from the input with folded weights.
        if self.heads * self.columns < self.spec.in_features:
            weight_JK = torch.cat([_block_diagonal_score(score_KF) for score_KF in scores], 1)
            score_VJ = project_rows(h_VKF.flatten(1), weight_JK)
        else:
            score_VJ = project_rows(x_VD, torch.cat([_fold_score(self.project, score_KF) for score_KF in scores], 1))
        source_VK, target_VK = torch.split(score_VJ, self.heads, 1)
        return NodeMessages(h_VKF, source_VK), NodeMessages(None, target_VK)

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor:
        """Return ``[E, K]``: attention, with dropout if ``block.key`` is not None."""
        assert source.scores is not None
        assert target.scores is not None
        edge_EK = self.edge_scores(block) if block.edge_scores is None else block.edge_scores
        alpha_EK = attention_weight(block.edges, source.scores, target.scores, 0.2, edge_EK)
        return drop_attention(block, alpha_EK, self.dropout)

    def edge_scores(self, block: Block) -> Tensor | None:
        """Return ``[E, K]``: the terms of relations, weights and features in the scores; None if there are none."""
        edges = block.edges
        terms_EK = []
        if self.relation_score is not None:
            ones_E1 = self.relation_score.new_ones(edges.num_edges, 1)
            related = self_loop_relation(edges, self.num_relations)
            terms_EK.append(basis_weight(related, self.relation_score, ones_E1))
        if self.weight_score is not None:
            # A graph without weights counts as one whose weights are all 1.
            weight_E = self.weight_score.new_ones(edges.num_edges) if edges.weight is None else edges.weight
            terms_EK.append(weight_E.to(self.weight_score.dtype)[:, None] * self.weight_score)
        if self.edge_project is not None and self.edge_score is not None:
            # a . (e U) = e . (U a): a product to scores, instead of a row as wide as all heads for each edge.
            terms_EK.append(project_edges(edges, _fold_score(self.edge_project, self.edge_score)))
        return reduce(torch.add, terms_EK) if terms_EK else None

    def _project_heads(self, x_VD: Features) -> Tensor:
        h_VJ: Tensor = self.project(x_VD)
        return torch.unflatten(h_VJ, 1, (self.heads, self.columns))

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the heads concatenated, or their mean."""
        return mean_over_heads(aggregate_VCF) if self.average else aggregate_VCF.flatten(1)

    @property
    def epilogue_bias(self) -> Tensor:
        """The bias, fused with the epilogue."""
        return self.bias


def head_columns(out_features: int, heads: int, average: bool) -> int:
    """Return the columns of each head of a layer.

    Raises:
        InputError: ``heads`` is less than 1, or does not divide ``out_features`` though heads are concatenated.
    """
    require_counts(heads=heads)
    if not average and out_features % heads:
        raise InputError(
            "heads must divide out_features",
            needed=f"a multiple of {heads} features, or average=True",
            got=f"{heads} heads and {out_features} features",
            repair="change one of the two",
        )
    return out_features if average else out_features // heads


def _fold_score(projection: Projection, score_KF: Tensor) -> Tensor:
    """Return ``[D, K]``: the weight that maps inputs to scores of their projection directly."""
    # a . (x W) = x . (W a): no pass over the projections of all nodes.
    return (torch.unflatten(projection.weight, 1, tuple(score_KF.shape)) * score_KF).sum(-1)


def _block_diagonal_score(score_KF: Tensor) -> Tensor:
    """Return ``[K * F, K]``: the block-diagonal weight that maps concatenated heads to their scores."""
    heads = torch.eye(len(score_KF), dtype=score_KF.dtype, device=score_KF.device)
    return (score_KF[:, :, None] * heads[:, None]).flatten(0, 1)


def mean_over_heads(aggregate_VCF: Tensor) -> Tensor:
    """Return ``[V, F]``: the mean of the heads; a single head without a copy."""
    return aggregate_VCF.squeeze(1) if aggregate_VCF.shape[1] == 1 else aggregate_VCF.mean(1)
