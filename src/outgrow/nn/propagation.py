"""Propagation: convolutions that only aggregate columns, for decoupled models.

Letters as in `outgrow.nn.layer`; ``R`` relations. The result for a column depends on that column alone, and
on the scores that every node carries behind its columns. Any slice of the columns can therefore be propagated
by itself. Ai et al.: NeutronTP, PVLDB 18(2), 2024, equation 9.
"""

from __future__ import annotations

from abc import ABC
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.arguments import check_arguments
from outgrow.core.block import Block
from outgrow.core.validation import out_of_range_error, require_counts
from outgrow.nn.layer import Conv, ConvSpec, Features, NodeMessages
from outgrow.ops.aggregation.attention import attention_weight
from outgrow.ops.aggregation.relation_edges import with_loop_relation
from outgrow.ops.aggregation.relational import RelationScale, relation_mean_weight
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.edge_weight import symmetric_weight


class PropagationBase(Conv, ABC):
    """Convolution whose sources are the columns of its input, and whose output is the aggregate.

    Attributes:
        carried_columns: Number of last columns of the input, which are scores and stay unchanged.
    """

    accepts_sparse = False
    carried_columns: int = 0

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 1, D]``: the input."""
        assert isinstance(x_VD, Tensor)
        return NodeMessages(x_VD[:, None], None)

    def split_scores(self, carried_VJ: Tensor) -> tuple[NodeMessages, NodeMessages]:
        """Return what `edge_weight` reads of sources and destinations, from carried columns; by default nothing."""
        # Values of width 0 tell the type of the weights without moving a column.
        return NodeMessages(carried_VJ[:, None, :0], None), NodeMessages(None, None)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, F]``: the aggregate."""
        return aggregate_VCF.squeeze(1)


class _ScaledWeight(NamedTuple):
    given: Tensor
    product: Tensor


@check_arguments()
class PropagateConv(PropagationBase):
    """``x'_v = gamma * sum over in-edges (u, v) and the self-loop of w_uv / sqrt(d_u d_v) * x_u``.

    ``d`` is the weighted in-degree with the self-loop, as in `GCNConv`. There are no parameters.

    Args:
        features: ``D``, also ``O``.
        gamma: In (0, 1].
    """

    accepts_half = True
    normalizes_weights = True

    def __init__(self, features: int, *, gamma: float = 1.0) -> None:
        super().__init__()
        require_counts(features=features)
        self.gamma = require_gamma(gamma)
        self.aggregation = WeightedSum()
        self.spec = ConvSpec(
            in_features=features,
            out_features=features,
            source=(1, features),
            aggregate=(1, features),
            static_edge_weight=True,
            reads_target=False,
            self_loops=True,
            source_is_input=True,
        )

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor:
        """Return ``[E, 1]``: the symmetric normalisation, times gamma."""
        assert source.values is not None
        return multiply_by_gamma(block, symmetric_weight(block, source.values.dtype), self.gamma)

    @property
    def edge_weight_key(self) -> tuple[object, ...]:
        """The class and gamma."""
        return PropagateConv, self.gamma


@check_arguments()
class AttentionPropagateConv(PropagationBase):
    """``x'_v = gamma * sum over in-edges (u, v) and the self-loop of alpha_uv * x_u``.

    ``alpha_uv`` is the mean over heads ``k`` of the softmax over the in-edges of ``v`` of ``leaky_relu(s_uk +
    t_vk, 0.2)``. The scores ``s`` and ``t`` stand behind the columns of ``x``; all rounds share them, so
    attention is computed once, on the encoded nodes. There are no parameters.

    Args:
        features: Columns of ``x``, without the scores.
        heads: ``K``.
        gamma: In (0, 1].
        last: Whether this is the last round, whose output has no scores.
    """

    reads_weights = False

    def __init__(self, features: int, heads: int, *, gamma: float = 1.0, last: bool = False) -> None:
        super().__init__()
        require_counts(features=features, heads=heads)
        self.heads = heads
        self.gamma = require_gamma(gamma)
        self.last = last
        self.carried_columns = 2 * heads
        self.aggregation = WeightedSum()
        self.spec = ConvSpec(
            in_features=features + 2 * heads,
            # Scores pass through to the next round; behind the last one only the logits are of use.
            out_features=features if last else features + 2 * heads,
            source=(1, features),
            score=heads,
            aggregate=(1, features),
            static_edge_weight=False,
            reads_target=True,
            self_loops=True,
            needs_full_neighborhood=True,
        )

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 1, F]`` columns and ``[V, K]`` scores."""
        assert isinstance(x_VD, Tensor)
        return NodeMessages(x_VD[:, None, : -self.carried_columns], x_VD[:, -self.carried_columns : -self.heads])

    def target(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, K]`` scores."""
        assert isinstance(x_VD, Tensor)
        return NodeMessages(None, x_VD[:, -self.heads :])

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor:
        """Return ``[E, 1]``: the mean attention over heads, times gamma."""
        assert source.scores is not None
        assert target.scores is not None
        # Scores are slices of the columns, and the kernel needs contiguous rows.
        alpha_EK = attention_weight(block.edges, source.scores.contiguous(), target.scores.contiguous(), 0.2, None)
        # The mean and gamma in one factor: a single pass over the edges.
        return alpha_EK.sum(1, keepdim=True) * (self.gamma / self.heads)

    @property
    def edge_weight_key(self) -> tuple[object, ...]:
        """The class, heads and gamma."""
        return AttentionPropagateConv, self.heads, self.gamma

    def split_scores(self, carried_VJ: Tensor) -> tuple[NodeMessages, NodeMessages]:
        """Return ``[V, K]`` scores of sources, and of destinations."""
        source_VK, target_VK = torch.split(carried_VJ, self.heads, 1)
        return NodeMessages(carried_VJ[:, None, :0], source_VK), NodeMessages(None, target_VK)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, F + 2 K]`` with unchanged scores; ``[Vd, F]`` in the last round."""
        assert isinstance(x_VD, Tensor)
        out_VF = aggregate_VCF.squeeze(1)
        return out_VF if self.last else torch.cat([out_VF, x_VD[:, -self.carried_columns :]], 1)


@check_arguments()
class RelationPropagateConv(PropagationBase):
    """``x'_v = gamma * sum over relations r of the mean over in-edges (u, v) of relation r of x_u diag(s_r)``.

    Added self-loops count as one more relation. The relations' weights are diagonal, so that columns stay
    apart: this is a decoupled R-GCN (see `outgrow.nn.relational`). The weights begin near ``1 / (R + 1)``.

    Args:
        features: ``D``, also ``O``.
        num_relations: ``R``.
        gamma: In (0, 1].
    """

    normalizes_weights = True

    def __init__(self, features: int, num_relations: int, *, gamma: float = 1.0) -> None:
        super().__init__()
        require_counts(features=features, num_relations=num_relations)
        self.num_relations = num_relations
        self.gamma = require_gamma(gamma)
        self.aggregation = RelationScale(num_relations, features, loops=True)
        # R + 1 means are summed: unscaled, each round would multiply the columns by about that number.
        with torch.no_grad():
            self.aggregation.scale.div_(num_relations + 1)
        self.spec = ConvSpec(
            in_features=features,
            out_features=features,
            source=(1, features),
            aggregate=(1, features),
            static_edge_weight=True,
            reads_target=False,
            self_loops=True,
            needs_full_neighborhood=True,
        )

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor:
        """Return ``[E, 1]``: one over the destination's in-edges of the same relation, times gamma."""
        assert source.values is not None
        # Self-loops have no relation in the graph: here they get the number after the last one.
        related = with_loop_relation(block, self.num_relations)
        mean_E1 = relation_mean_weight(related, self.num_relations + 1, source.values.dtype)
        return multiply_by_gamma(block, mean_E1, self.gamma)

    @property
    def edge_weight_key(self) -> tuple[object, ...]:
        """The class, relations and gamma."""
        return RelationPropagateConv, self.num_relations, self.gamma


def multiply_by_gamma(block: Block, weight_E1: Tensor, gamma: float) -> Tensor:
    """Return ``[E, 1]``: fixed edge weights times gamma, computed once per block."""
    if gamma == 1:
        return weight_E1
    slot = f"weights times {gamma}"
    # Compared by identity: another type of weights has another tensor, and needs another product.
    kept = block.edges.cache.get(slot)
    if not (isinstance(kept, _ScaledWeight) and kept.given is weight_E1):
        kept = block.edges.cache[slot] = _ScaledWeight(weight_E1, weight_E1 * gamma)
    return kept.product


def require_gamma(gamma: float) -> float:
    """Return the factor of a round, which must be in (0, 1].

    Raises:
        InputError: It is out of range.
    """
    if not 0 < gamma <= 1:
        raise out_of_range_error("gamma", "above 0, at most 1", gamma)
    return gamma
