"""Propagation: convolutions that only aggregate columns, for decoupled models.

Letters as in `outgrow.nn.layer`; ``R`` relations. The result for a column depends on that column alone, and
on the scores that every node carries behind its columns. Any slice of the columns can therefore be propagated
by itself. Ai et al.: NeutronTP, PVLDB 18(2), 2024, equation 9. With restarts (``alpha``) it is APPNP: Gasteiger,
Bojchevski & Guennemann, Predict then propagate, ICLR 2019, equation 4.

A row of ``D`` numbers has the ``F`` columns of its own round, then ``F`` for each earlier round that is carried, the
initial ones last, then scores.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.arguments import check_arguments
from outgrow.core.block import Block
from outgrow.core.validation import out_of_range_error, require_counts, validate_choice
from outgrow.nn.epilogue import Epilogue
from outgrow.nn.layer import Conv, ConvSpec, Features, Layer, NodeMessages
from outgrow.ops.aggregation.attention import attention_weight
from outgrow.ops.aggregation.relation_edges import with_loop_relation
from outgrow.ops.aggregation.relational import RelationScale, relation_mean_weight
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.edge_weight import graph_edge_weight, mean_weight, symmetric_weight
from outgrow.ops.kernels.numerics import accumulate_dtype


class PropagationBase(Conv, ABC):
    """Convolution whose sources are the columns of its input, and whose output is the aggregate.

    Attributes:
        features: ``F``, the columns that are propagated.
        gamma: In (0, 1].
        alpha: Share of the initial columns in the output, in [0, 1).
        hops_in: Number of earlier rounds whose columns the input carries behind its own.
        hops_out: The same for the output: the last ``hops_out`` of those of the input.
        carried_columns: Number of last columns of the input, which are scores and stay unchanged.
    """

    accepts_sparse = False
    features: int
    gamma: float = 1.0
    alpha: float = 0.0
    hops_in: int = 0
    hops_out: int = 0
    carried_columns: int = 0

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 1, F]``: the columns of the input's own round."""
        assert isinstance(x_VD, Tensor)
        return NodeMessages(x_VD[:, None, : self.features], None)

    def split_scores(self, carried_VJ: Tensor) -> tuple[NodeMessages, NodeMessages]:
        """Return what `edge_weight` reads of sources and destinations, from carried columns; by default nothing."""
        # Values of width 0 tell the type of the weights without moving a column.
        return NodeMessages(carried_VJ[:, None, :0], None), NodeMessages(None, None)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, (1 + hops_out) F]``: the aggregate, and the columns of earlier rounds that are carried."""
        assert isinstance(x_VD, Tensor)
        out_VF, width = aggregate_VCF.squeeze(1), (1 + self.hops_in) * self.features
        if self.alpha:
            # The factor of the aggregate, 1 - alpha, is in the weights of edges.
            out_VF = torch.add(out_VF, x_VD[:, width - self.features : width], alpha=self.alpha)
        carried = self.hops_out * self.features
        return torch.cat([out_VF, x_VD[:, width - carried : width]], 1) if carried else out_VF

    @property
    def factor(self) -> float:
        """Factor of the sum, which the weights of edges contain."""
        return self.gamma * (1 - self.alpha)

    def _set_rounds(self, features: int, gamma: float, alpha: float, hops_in: int, hops_out: int) -> None:
        require_counts(features=features)
        require_counts(0, hops_in=hops_in)
        if not 0 < gamma <= 1:
            raise out_of_range_error("gamma", "above 0, at most 1", gamma)
        if not 0 <= alpha < 1:
            raise out_of_range_error("alpha", "at least 0, below 1", alpha)
        if not 0 <= hops_out <= hops_in + 1:
            raise out_of_range_error("hops_out", f"from 0 to hops_in + 1, {hops_in + 1}", hops_out)
        self.features, self.hops_in, self.hops_out = features, hops_in, hops_out
        self.gamma, self.alpha = gamma, alpha


class _ScaledWeight(NamedTuple):
    given: Tensor | None
    product: Tensor


AGGREGATORS: Mapping[str, Callable[[Block, torch.dtype], Tensor | None]] = {
    "symmetric": symmetric_weight,
    "mean": mean_weight,
    "sum": graph_edge_weight,
}
"""Weights of edges of `PropagateConv`, by name."""


@check_arguments()
class PropagateConv(PropagationBase):
    """``x'_v = alpha x0_v + (1 - alpha) gamma * sum over in-edges (u, v) and the self-loop of c_uv * x_u``.

    With weights ``w`` of edges, 1 for an added self-loop, and their sum ``d`` over the in-edges and the self-loop of a
    node, ``c_uv`` is by ``aggregator``:

    - ``"symmetric"``: ``w_uv / sqrt(d_u d_v)``, as in `GCNConv`;
    - ``"mean"``: ``w_uv / d_v``, the mean of a node and its neighbours (Hamilton, Ying & Leskovec, Inductive
      representation learning on large graphs, NeurIPS 2017, equation 2);
    - ``"sum"``: ``w_uv``, as in `GINConv` with ``eps`` 0 (Xu, Hu, Leskovec & Jegelka, How powerful are graph neural
      networks?, ICLR 2019, equation 4.1).

    There are no parameters.

    Args:
        features: ``F``.
        gamma: In (0, 1].
        aggregator: ``"symmetric"``, ``"mean"`` or ``"sum"``.
        alpha: Share of the initial columns ``x0``, in [0, 1).
        hops_in: Earlier rounds whose columns the input carries, those of ``x0`` last; 0 if the input is ``x0``.
        hops_out: Earlier rounds whose columns the output carries, at most ``hops_in + 1``.

    Raises:
        InputError: An argument is out of range, or there is no such aggregator.
    """

    accepts_half = True

    def __init__(
        self,
        features: int,
        *,
        gamma: float = 1.0,
        aggregator: str = "symmetric",
        alpha: float = 0.0,
        hops_in: int = 0,
        hops_out: int = 0,
    ) -> None:
        super().__init__()
        self._set_rounds(features, gamma, alpha, hops_in, hops_out)
        validate_choice("aggregator", aggregator, AGGREGATORS)
        self.aggregator = aggregator
        self.normalizes_weights = aggregator != "sum"
        self.aggregation = WeightedSum()
        self.spec = ConvSpec(
            in_features=(1 + hops_in) * features,
            out_features=(1 + hops_out) * features,
            source=(1, features),
            aggregate=(1, features),
            static_edge_weight=True,
            reads_target=bool(alpha or hops_out),
            self_loops=True,
            source_is_input=hops_in == 0,
        )

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor | None:
        """Return ``[E, 1]``: the weights ``c``, times the factor of the sum; None if all are 1."""
        assert source.values is not None
        dtype = source.values.dtype
        return scale_weights(block, AGGREGATORS[self.aggregator](block, dtype), self.factor, dtype)

    @property
    def edge_weight_key(self) -> tuple[object, ...]:
        """The class, the aggregator and the factor of the sum."""
        return PropagateConv, self.aggregator, self.factor


@check_arguments()
class AttentionPropagateConv(PropagationBase):
    """``x'_v = alpha x0_v + (1 - alpha) gamma * sum over in-edges (u, v) and the self-loop of a_uv * x_u``.

    ``a_uv`` is the mean over heads ``k`` of the softmax over the in-edges of ``v`` of ``leaky_relu(s_uk +
    t_vk, 0.2)``. The scores ``s`` and ``t`` stand behind the columns of ``x``; all rounds share them, so
    attention is computed once, on the encoded nodes. There are no parameters.

    Args:
        features: ``F``, columns of ``x`` without the scores.
        heads: ``K``.
        gamma: In (0, 1].
        last: Whether this is the last round, whose output has no scores.
        alpha: Share of the initial columns ``x0``, in [0, 1).
        hops_in: See `PropagateConv`.
        hops_out: See `PropagateConv`.
    """

    reads_weights = False

    def __init__(
        self,
        features: int,
        heads: int,
        *,
        gamma: float = 1.0,
        last: bool = False,
        alpha: float = 0.0,
        hops_in: int = 0,
        hops_out: int = 0,
    ) -> None:
        super().__init__()
        self._set_rounds(features, gamma, alpha, hops_in, hops_out)
        require_counts(heads=heads)
        self.heads = heads
        self.last = last
        self.carried_columns = 2 * heads
        self.aggregation = WeightedSum()
        self.spec = ConvSpec(
            in_features=(1 + hops_in) * features + 2 * heads,
            # Scores pass through to the next round; behind the last one only the logits are of use.
            out_features=(1 + hops_out) * features + (0 if last else 2 * heads),
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
        return NodeMessages(x_VD[:, None, : self.features], x_VD[:, -self.carried_columns : -self.heads])

    def target(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, K]`` scores."""
        assert isinstance(x_VD, Tensor)
        return NodeMessages(None, x_VD[:, -self.heads :])

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor:
        """Return ``[E, 1]``: the mean attention over heads, times the factor of the sum."""
        assert source.scores is not None
        assert target.scores is not None
        # Scores are slices of the columns, and the kernel needs contiguous rows.
        alpha_EK = attention_weight(block.edges, source.scores.contiguous(), target.scores.contiguous(), 0.2, None)
        # The mean and the factor of the sum in one: a single pass over the edges.
        return alpha_EK.sum(1, keepdim=True) * (self.factor / self.heads)

    @property
    def edge_weight_key(self) -> tuple[object, ...]:
        """The class, heads and the factor of the sum."""
        return AttentionPropagateConv, self.heads, self.factor

    def split_scores(self, carried_VJ: Tensor) -> tuple[NodeMessages, NodeMessages]:
        """Return ``[V, K]`` scores of sources, and of destinations."""
        source_VK, target_VK = torch.split(carried_VJ, self.heads, 1)
        return NodeMessages(carried_VJ[:, None, :0], source_VK), NodeMessages(None, target_VK)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, (1 + hops_out) F + 2 K]`` with unchanged scores, without them in the last round."""
        out = super().update(x_VD, aggregate_VCF)
        assert isinstance(x_VD, Tensor)
        return out if self.last else torch.cat([out, x_VD[:, -self.carried_columns :]], 1)


@check_arguments()
class RelationPropagateConv(PropagationBase):
    """``x'_v = alpha x0_v + (1 - alpha) gamma * sum over relations r of mean_r(v)``.

    ``mean_r(v)`` is the mean over in-edges ``(u, v)`` of relation ``r`` of ``x_u diag(s_r)``. Added self-loops count
    as one more relation. The relations' weights are diagonal, so that columns stay apart: this is a decoupled R-GCN
    (see `outgrow.nn.relational`). The weights begin near ``1 / (R + 1)``.

    Args:
        features: ``F``.
        num_relations: ``R``.
        gamma: In (0, 1].
        alpha: Share of the initial columns ``x0``, in [0, 1).
        hops_in: See `PropagateConv`.
        hops_out: See `PropagateConv`.
    """

    normalizes_weights = True

    def __init__(
        self,
        features: int,
        num_relations: int,
        *,
        gamma: float = 1.0,
        alpha: float = 0.0,
        hops_in: int = 0,
        hops_out: int = 0,
    ) -> None:
        super().__init__()
        self._set_rounds(features, gamma, alpha, hops_in, hops_out)
        require_counts(num_relations=num_relations)
        self.num_relations = num_relations
        self.aggregation = RelationScale(num_relations, features, loops=True)
        # R + 1 means are summed: unscaled, each round would multiply the columns by about that number.
        with torch.no_grad():
            self.aggregation.scale.div_(num_relations + 1)
        self.spec = ConvSpec(
            in_features=(1 + hops_in) * features,
            out_features=(1 + hops_out) * features,
            source=(1, features),
            aggregate=(1, features),
            static_edge_weight=True,
            reads_target=bool(alpha or hops_out),
            self_loops=True,
            needs_full_neighborhood=True,
        )

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor:
        """Return ``[E, 1]``: one over the in-edges of the same relation, times the factor of the sum."""
        assert source.values is not None
        # Self-loops have no relation in the graph: here they get the number after the last one.
        related = with_loop_relation(block, self.num_relations)
        dtype = source.values.dtype
        mean_E1 = relation_mean_weight(related, self.num_relations + 1, dtype)
        scaled = scale_weights(block, mean_E1, self.factor, dtype)
        assert scaled is not None
        return scaled

    @property
    def edge_weight_key(self) -> tuple[object, ...]:
        """The class, relations and the factor of the sum."""
        return RelationPropagateConv, self.num_relations, self.factor


def only_propagates(layer: Layer) -> bool:
    """Whether a layer is nothing but propagation, with no epilogue."""
    return isinstance(layer.conv, PropagationBase) and layer.epilogue == Epilogue()


def propagates_without_parameters(layer: Layer) -> bool:
    """Whether a layer only propagates, with weights that the graph fixes: of constants it gives constants."""
    return only_propagates(layer) and isinstance(layer.conv, PropagateConv)


def scale_weights(block: Block, weight_E1: Tensor | None, factor: float, dtype: torch.dtype) -> Tensor | None:
    """Return ``[E, 1]``: fixed edge weights times a factor, for rows of a type; None for ones. Computed once."""
    if factor == 1:
        return weight_E1
    dtype = accumulate_dtype(dtype)
    slot = f"weights times {factor} {dtype}"
    # Compared by identity: other weights have another tensor, and need another product.
    kept = block.edges.cache.get(slot)
    if not (isinstance(kept, _ScaledWeight) and kept.given is weight_E1):
        given = block.edges.indptr.new_ones(block.edges.num_edges, 1, dtype=dtype) if weight_E1 is None else weight_E1
        kept = block.edges.cache[slot] = _ScaledWeight(weight_E1, given * factor)
    return kept.product
