"""`RGCNMatrixConv`: R-GCN with a matrix for each relation, full or block-diagonal. Letters as in `outgrow.nn.layer`."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import Tensor

from outgrow.core.arguments import check_arguments
from outgrow.core.block import Block
from outgrow.core.errors import InputError
from outgrow.core.graph_types import GraphTypes
from outgrow.core.validation import require_counts
from outgrow.nn.layer import Conv, ConvSpec, Features, NodeMessages
from outgrow.nn.projection import Projection
from outgrow.nn.typed_linear import TypedLinear
from outgrow.ops.aggregation.relation_matmul import RelationMatmul
from outgrow.ops.aggregation.relational import relation_mean_weight


@check_arguments()
class RGCNMatrixConv(Conv):
    """``x'_v = x_v W_t + b_t + sum over relations r of the mean over in-edges (u, v) of relation r of x_u W_r``.

    Schlichtkrull et al., Modeling relational data with graph convolutional networks, ESWC 2018, without shared bases
    (`RGCNConv` has these). ``t`` is the type of ``v``, if types are given; else all nodes share ``W`` and ``b``.
    Means come first, of the pairs of destination and relation that have edges, and the matrix of a relation multiplies
    them; only the input rows of the sources move. With ``project_first`` a node sends its product with every matrix
    instead, as sparse features and strategy ``tensor`` need.

    Args:
        in_features: ``D``.
        out_features: ``O``.
        num_relations: ``R``.
        num_blocks: Blocks on the diagonal of each matrix, which divides ``D`` and ``O``; None for full matrices.
        node_types: Names of the node types, each with a weight and a bias of its own for the node itself; none if
            all nodes share them.
        project_first: Project before the sum; None for the order with narrower source rows.

    Raises:
        InputError: A number is less than 1, ``num_blocks`` does not divide the widths, or a type is named twice.
    """

    accepts_half = True
    normalizes_weights = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_relations: int,
        *,
        num_blocks: int | None = None,
        node_types: Sequence[str] = (),
        project_first: bool | None = None,
    ) -> None:
        super().__init__()
        blocks = 1 if num_blocks is None else num_blocks
        require_counts(in_features=in_features, out_features=out_features)
        require_counts(num_relations=num_relations, num_blocks=blocks)
        if in_features % blocks or out_features % blocks:
            raise InputError(
                "blocks of a relation's matrix must have equal sizes",
                needed="num_blocks that divides in_features and out_features",
                got=f"{blocks} blocks for {in_features} and {out_features} features",
                repair="change num_blocks or the widths",
            )
        self.num_relations = num_relations
        self.itself = (
            TypedLinear(in_features, out_features, node_types, bias=True)
            if node_types
            else Projection(in_features, out_features, bias=True)
        )
        self.reads_types = bool(node_types)
        first = num_relations * out_features < in_features if project_first is None else project_first
        self.aggregation = RelationMatmul(num_relations, in_features, out_features, blocks=blocks, project_first=first)
        self.accepts_sparse = first
        self.spec = self._make_spec(in_features, out_features)

    def _make_spec(self, in_features: int, out_features: int) -> ConvSpec:
        return ConvSpec(
            in_features=in_features,
            out_features=out_features,
            # The order decides what moves: one input row per node, or a projected row per relation.
            source=(self.num_relations, out_features) if self.accepts_sparse else (1, in_features),
            aggregate=(1, out_features),
            static_edge_weight=True,
            source_is_input=not self.accepts_sparse,
            reads_target=True,
            needs_full_neighborhood=True,
        )

    def bind_types(self, types: GraphTypes) -> None:
        """Match the types of the nodes' own weights with those of a graph, by name.

        Raises:
            InputError: The convolution was made for other types.
        """
        if isinstance(self.itself, TypedLinear):
            self.itself.bind_types(types)

    def with_projection_first(self) -> Conv:
        """Return the form that projects before the sum."""
        return self if self.accepts_sparse else self._reorder(project_first=True)

    def with_sliceable_columns(self) -> Conv:
        """Return the form that projects before the sum: a matrix after it would mix the columns."""
        return self.with_projection_first()

    def aggregate_first(self) -> Conv:
        """Return the form that sums before it multiplies."""
        return self._reorder(project_first=False) if self.accepts_sparse else self

    def _reorder(self, *, project_first: bool) -> Conv:
        assert isinstance(self.aggregation, RelationMatmul)
        # Shallow copies share the parameters.
        reordered, aggregation = copy.copy(self), copy.copy(self.aggregation)
        aggregation.project_first = project_first
        reordered._modules = {**self._modules, "aggregation": aggregation}
        reordered.accepts_sparse = project_first
        reordered.spec = reordered._make_spec(self.spec.in_features, self.spec.out_features)
        return reordered

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, R, O]`` rows projected by every relation, or ``[V, 1, D]`` the input."""
        if self.accepts_sparse:
            assert isinstance(self.aggregation, RelationMatmul)
            return NodeMessages(self.aggregation.project(x_VD), None)
        assert isinstance(x_VD, Tensor)
        return NodeMessages(x_VD[:, None], None)

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor:
        """Return ``[E, 1]``: one over the destination's in-edges of the same relation."""
        assert source.values is not None
        return relation_mean_weight(block, self.num_relations, source.values.dtype)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the node's own projection plus the aggregate, if types are not read."""
        if self.reads_types:
            raise TypeError("the update of a node depends on its type: call update_of_nodes")
        own: Tensor = self.itself(x_VD)
        return own + aggregate_VCF.squeeze(1)

    def update_of_nodes(self, x_VD: Features, aggregate_VCF: Tensor, nodes_V: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the projection of the node's type plus the aggregate."""
        if not self.reads_types:
            return self.update(x_VD, aggregate_VCF)
        own: Tensor = self.itself(x_VD, nodes_V)
        return own + aggregate_VCF.squeeze(1)
