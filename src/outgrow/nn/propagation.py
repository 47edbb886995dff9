"""Propagation: convolutions that only pass columns on, as decoupled models do once every node is encoded.

Letters as in `outgrow.nn.layer`; ``R`` relations. What becomes of a column depends on that column alone, and on
scores that every node carries along behind its columns: so any slice of the columns can be propagated as it is.
Ai et al.: NeutronTP, PVLDB 18(2), 2024, equation 9.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.nn.layer import Conv, Features, Rows, Widths, require_counts
from outgrow.ops.aggregation.attention import attention_weight
from outgrow.ops.aggregation.relation_edges import related_loops
from outgrow.ops.aggregation.relational import RelationScale, relation_mean
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.edge_weight import symmetric_weight


class Propagation(Conv, ABC):
    """A convolution whose `source` passes the columns of its input on, and `update` those of the aggregate.

    Attributes:
        carries: Last columns of the input, which are scores and are passed on as they are.
    """

    takes_sparse = False
    carries: int = 0

    @property
    @abstractmethod
    def rule(self) -> tuple[object, ...]:
        """Equal for propagations that give edges the same weights, if they carry the same scores."""

    def source(self, x_VD: Features) -> Rows:
        """``[V, 1, D]``: the input as it comes."""
        assert isinstance(x_VD, Tensor)
        return Rows(x_VD[:, None], None)

    def scores(self, carried_VJ: Tensor) -> tuple[Rows, Rows]:
        """What `weigh` reads of sources and destinations, from what they carry; by default nothing.

        The columns are of no width: they say of what type weights are.
        """
        return Rows(carried_VJ[:, None, :0], None), Rows(None, None)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """``[Vd, F]``: the aggregate as it is."""
        return aggregate_VCF[:, 0]


class _Scaled(NamedTuple):
    given: Tensor
    product: Tensor


class PropagateConv(Propagation):
    """``x'_v = gamma * sum over in-edges (u, v) and the self-loop of w_uv / sqrt(d_u d_v) * x_u``.

    ``d`` is the weighted in-degree with the self-loop, as in `GCNConv`. It has no parameters.

    Args:
        features: ``D``, also ``O``.
        gamma: In (0, 1].
    """

    takes_half = True

    def __init__(self, features: int, *, gamma: float = 1.0) -> None:
        super().__init__()
        self.gamma = require_gamma(gamma)
        self.aggregation = WeightedSum()
        self.widths = Widths(
            in_features=features,
            out_features=features,
            source=(1, features),
            aggregate=(1, features),
            fixed_weight=True,
            reads_target=False,
            self_loops=True,
            raw_source=True,
        )

    def weigh(self, block: Block, source: Rows, target: Rows) -> Tensor:
        """``[E, 1]``: the symmetric normalisation, times gamma."""
        assert source.columns is not None
        return scaled(block, symmetric_weight(block, source.columns.dtype), self.gamma)

    @property
    def rule(self) -> tuple[object, ...]:
        """See `Propagation.rule`."""
        return PropagateConv, self.gamma


class AttentionPropagateConv(Propagation):
    """``x'_v = gamma * sum over in-edges (u, v) and the self-loop of alpha_uv * x_u``.

    ``alpha_uv`` is the mean over heads ``k`` of the softmax over the in-edges of ``v`` of
    ``leaky_relu(s_uk + t_vk, 0.2)``, of scores ``s`` and ``t`` that lie behind the columns of ``x`` and that all rounds
    of propagation share: attention of the encoded nodes, computed once. It has no parameters.

    Args:
        features: Columns of ``x``, without the scores.
        heads: ``K``.
        gamma: In (0, 1].
        last: Whether no other round follows: the scores end here.
    """

    def __init__(self, features: int, heads: int, *, gamma: float = 1.0, last: bool = False) -> None:
        super().__init__()
        require_counts(heads=heads)
        self.heads, self.gamma, self.last = heads, require_gamma(gamma), last
        self.carries = 2 * heads
        self.aggregation = WeightedSum()
        self.widths = Widths(
            in_features=features + 2 * heads,
            out_features=features if last else features + 2 * heads,
            source=(1, features),
            score=heads,
            aggregate=(1, features),
            fixed_weight=False,
            reads_target=True,
            self_loops=True,
            whole_rows=True,
        )

    def source(self, x_VD: Features) -> Rows:
        """``[V, 1, F]`` columns and ``[V, K]`` scores."""
        assert isinstance(x_VD, Tensor)
        return Rows(x_VD[:, None, : -self.carries], x_VD[:, -self.carries : -self.heads])

    def target(self, x_VD: Features) -> Rows:
        """``[V, K]`` scores."""
        assert isinstance(x_VD, Tensor)
        return Rows(None, x_VD[:, -self.heads :])

    def weigh(self, block: Block, source: Rows, target: Rows) -> Tensor:
        """``[E, 1]``: the mean of the attention of all heads, times gamma."""
        assert source.score is not None
        assert target.score is not None
        alpha_EK = attention_weight(block.edges, source.score.contiguous(), target.score.contiguous(), 0.2, None)
        return alpha_EK.sum(1, keepdim=True) * (self.gamma / self.heads)

    @property
    def rule(self) -> tuple[object, ...]:
        """See `Propagation.rule`."""
        return AttentionPropagateConv, self.heads, self.gamma

    def scores(self, carried_VJ: Tensor) -> tuple[Rows, Rows]:
        """See `Propagation.scores`: ``[V, K]`` each."""
        source_VK, target_VK = torch.split(carried_VJ, self.heads, 1)
        return Rows(carried_VJ[:, None, :0], source_VK), Rows(None, target_VK)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """``[Vd, F + 2 K]``, with the scores unchanged; ``[Vd, F]`` of the last."""
        assert isinstance(x_VD, Tensor)
        out_VF = aggregate_VCF[:, 0]
        return out_VF if self.last else torch.cat([out_VF, x_VD[:, -self.carries :]], 1)


class RelationPropagateConv(Propagation):
    """``x'_v = gamma * sum over relations r of the mean over in-edges (u, v) of relation r of x_u diag(s_r)``.

    The self-loops that are added count as one more relation. The relations' weights are diagonal, so that columns stay
    apart: R-GCN (see `outgrow.nn.relational`), decoupled. They begin near ``1 / (R + 1)``.

    Args:
        features: ``D``, also ``O``.
        num_relations: ``R``.
        gamma: In (0, 1].
    """

    def __init__(self, features: int, num_relations: int, *, gamma: float = 1.0) -> None:
        super().__init__()
        require_counts(num_relations=num_relations)
        self.num_relations, self.gamma = num_relations, require_gamma(gamma)
        self.aggregation = RelationScale(num_relations, features, loops=True)
        with torch.no_grad():
            self.aggregation.scale.div_(num_relations + 1)
        self.widths = Widths(
            in_features=features,
            out_features=features,
            source=(1, features),
            aggregate=(1, features),
            fixed_weight=True,
            reads_target=False,
            self_loops=True,
            whole_rows=True,
        )

    def weigh(self, block: Block, source: Rows, target: Rows) -> Tensor:
        """``[E, 1]``: one over the number of edges of the same relation at the destination, times gamma."""
        assert source.columns is not None
        related = related_loops(block, self.num_relations)
        mean_E1 = relation_mean(related, self.num_relations + 1, source.columns.dtype)
        return scaled(block, mean_E1, self.gamma)

    @property
    def rule(self) -> tuple[object, ...]:
        """See `Propagation.rule`."""
        return RelationPropagateConv, self.num_relations, self.gamma


def scaled(block: Block, weight_E1: Tensor, gamma: float) -> Tensor:
    """``[E, 1]``: weights that the graph fixes, times gamma; computed once per block."""
    if gamma == 1:
        return weight_E1
    slot = f"weights times {gamma}"
    kept = block.edges.derived.get(slot)
    if not (isinstance(kept, _Scaled) and kept.given is weight_E1):
        kept = block.edges.derived[slot] = _Scaled(weight_E1, weight_E1 * gamma)
    return kept.product


def require_gamma(gamma: float) -> float:
    """The factor of a round, in (0, 1].

    Raises:
        ValueError: It is out of range.
    """
    if not 0 < gamma <= 1:
        raise ValueError(f"gamma must be in (0, 1], got {gamma}")
    return gamma
