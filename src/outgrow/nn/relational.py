"""Convolutions over edges of several relations: R-GCN with shared bases, and with diagonal weights.

Letters as in `outgrow.nn.layer`; ``R`` relations, ``B`` bases. Both take a mean per relation, whose counts
are taken from the block if it has them, as a sampled one does, and else counted.
"""

from __future__ import annotations

import copy
from enum import Enum

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.block import Block
from outgrow.core.validation import require_counts
from outgrow.nn.layer import Conv, ConvSpec, Features, NodeMessages
from outgrow.nn.projection import Projection
from outgrow.ops.aggregation.base import Aggregation
from outgrow.ops.aggregation.relation_matmul import relation_matmul_sum
from outgrow.ops.aggregation.relational import RelationScale, basis_weight, relation_mean_weight
from outgrow.ops.aggregation.weighted_sum import WeightedSum


class _Order(Enum):
    """What `RGCNConv` does first."""

    PROJECT_FIRST = "projects sources to all bases"
    SUM_BASES = "sums a row for each basis"
    SUM_PAIRS = "sums rows of each pair of destination and relation"


@check_arguments()
class RGCNConv(Conv):
    """``x'_v = x_v W + b + sum over relations r of the mean over in-edges (u, v) of relation r of x_u W_r``.

    ``W_r = sum over bases of share[r, basis] * W_basis``. Schlichtkrull et al., Modeling relational data with
    graph convolutional networks, ESWC 2018. If aggregation comes first, only input rows move: ``W_r`` multiplies the
    mean of each pair of destination and relation that has edges, and no row of all bases exists. Where columns are
    kept apart, as strategy ``tensor`` needs, all bases share one source row.

    Args:
        in_features: ``D``.
        out_features: ``O``.
        num_relations: ``R``.
        bases: ``B``.
        project_first: Project before the sum, as sparse features need; None for the order with narrower rows.

    Raises:
        InputError: ``num_relations`` or ``bases`` is less than 1.
    """

    accepts_half = True
    normalizes_weights = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_relations: int,
        *,
        bases: int = 4,
        project_first: bool | None = None,
    ) -> None:
        super().__init__()
        require_counts(num_relations=num_relations, bases=bases)
        self.num_relations = num_relations
        self.bases = bases
        self.itself = Projection(in_features, out_features, bias=True)
        self.basis = Projection(in_features, bases * out_features)
        self.share = nn.Parameter(torch.empty(num_relations, bases))
        nn.init.xavier_uniform_(self.share)
        # Projected rows have a channel per basis, input rows only one: all bases count in the comparison.
        first = bases * out_features < in_features if project_first is None else project_first
        self._set_order(_Order.PROJECT_FIRST if first else _Order.SUM_PAIRS, in_features, out_features)

    def _set_order(self, order: _Order, in_features: int, out_features: int) -> None:
        self._order = order
        first = order is _Order.PROJECT_FIRST
        self.accepts_sparse = first
        self.aggregation = BasisMatrixSum(self) if order is _Order.SUM_PAIRS else WeightedSum()
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            # The order decides what moves: one input row per node, or a projected row per basis.
            source=(self.bases, out_features) if first else (1, in_features),
            aggregate={
                _Order.PROJECT_FIRST: (self.bases, out_features),
                _Order.SUM_BASES: (self.bases, in_features),
                _Order.SUM_PAIRS: (1, out_features),
            }[order],
            static_edge_weight=order is _Order.SUM_PAIRS,
            source_is_input=not first,
            reads_target=True,
            needs_full_neighborhood=True,
            # The sum over bases needs one column of each at a time, so whoever cuts columns may take it.
            sums_channels=first,
        )

    def make_matrices(self) -> Tensor:
        """Return ``[R, D, O]``: the matrix of each relation."""
        bases_BDO = self._shape_bases()
        return torch.unflatten(self.share @ bases_BDO.flatten(1), 1, bases_BDO.shape[1:])

    def _shape_bases(self) -> Tensor:
        """Return ``[B, D, O]``."""
        return self.basis.weight.view(self.spec.in_features, self.bases, self.spec.out_features).transpose(0, 1)

    def with_projection_first(self) -> Conv:
        """Return the form that projects before the sum."""
        return self if self.accepts_sparse else self._reorder(_Order.PROJECT_FIRST)

    def with_sliceable_columns(self) -> Conv:
        """Return the form that sums to a row for each basis: a matrix would mix the columns."""
        return self._reorder(_Order.SUM_BASES) if self._order is _Order.SUM_PAIRS else self

    def aggregate_first(self) -> Conv:
        """Return the form that sums before it multiplies."""
        return self._reorder(_Order.SUM_PAIRS) if self.accepts_sparse else self

    def _reorder(self, order: _Order) -> Conv:
        # A shallow copy shares the parameters.
        reordered = copy.copy(self)
        reordered._set_order(order, self.spec.in_features, self.spec.out_features)
        return reordered

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, B, O]`` rows projected by every basis, or ``[V, 1, D]`` the input."""
        if self.accepts_sparse:
            h_VJ: Tensor = self.basis(x_VD)
            return NodeMessages(torch.unflatten(h_VJ, 1, (self.bases, self.spec.out_features)), None)
        assert isinstance(x_VD, Tensor)
        return NodeMessages(x_VD[:, None], None)

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor:
        """Return ``[E, B]``: the relation's share of each basis, over its in-edges at the destination.

        Sums of pairs need no more than ``[E, 1]``, one over these edges.
        """
        assert source.values is not None
        mean_E1 = relation_mean_weight(block, self.num_relations, source.values.dtype)
        # For a plain weighted sum the weights carry all that depends on relations.
        return mean_E1 if self._order is _Order.SUM_PAIRS else basis_weight(block.edges, self.share, mean_E1)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the node's own projection plus the aggregate, summed over bases if it has several."""
        if self._order is _Order.SUM_BASES:
            # The sum over bases is part of the product: channels and columns of the aggregate are one long row.
            return self.itself.add_products(x_VD, (aggregate_VCF.flatten(1), self._shape_bases().flatten(0, 1)))
        itself: Tensor = self.itself(x_VD)
        # In place: nothing else reads the projection.
        return itself.add_(aggregate_VCF.sum(1) if self.accepts_sparse else aggregate_VCF.squeeze(1))


class BasisMatrixSum(Aggregation):
    """``out[v] = sum over in-edges e of weight[e] * src[source of e] @ matrix of e's relation``, made of bases. Final.

    Args:
        conv: The convolution, whose parameters it reads.
    """

    additive = True
    sliceable = False
    has_parameters = True
    sums_pairs = True

    def __init__(self, conv: RGCNConv) -> None:
        self.conv = conv

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Return ``[Vd, 1, O]`` of one source channel and one weight per edge; see `Aggregation`."""
        assert weight_EK is not None
        matrix_R1DO = self.conv.make_matrices()[:, None]
        return relation_matmul_sum(block.edges, src_VsCF.squeeze(1), weight_EK, matrix_R1DO)[:, None]


@check_arguments()
class RGCNDiagonalConv(Conv):
    """``x'_v = x_v W + b + sum over relations r of the mean over in-edges (u, v) of relation r of x_u W' diag(s_r)``.

    All relations share ``W'``, and each scales its columns: the block-diagonal weights of Schlichtkrull et
    al. (see `RGCNConv`) with blocks of one column, after a projection. Source rows are as narrow as the
    output.

    Args:
        in_features: ``D``.
        out_features: ``O``.
        num_relations: ``R``.

    Raises:
        InputError: ``num_relations`` is less than 1.
    """

    accepts_half = True
    normalizes_weights = True

    def __init__(self, in_features: int, out_features: int, num_relations: int) -> None:
        super().__init__()
        require_counts(num_relations=num_relations)
        self.num_relations = num_relations
        self.itself = Projection(in_features, out_features, bias=True)
        self.neighbour = Projection(in_features, out_features)
        self.aggregation = RelationScale(num_relations, out_features)
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            source=(1, out_features),
            aggregate=(1, out_features),
            static_edge_weight=True,
            reads_target=True,
            needs_full_neighborhood=True,
        )

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 1, O]``: the projection that all relations share."""
        # Before the sum, since relations scale columns of the projection.
        return NodeMessages(self.neighbour(x_VD)[:, None], None)

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor:
        """Return ``[E, 1]``: one over the destination's in-edges of the same relation."""
        assert source.values is not None
        return relation_mean_weight(block, self.num_relations, source.values.dtype)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the node's own projection plus the aggregate."""
        itself: Tensor = self.itself(x_VD)
        return itself + aggregate_VCF.squeeze(1)
