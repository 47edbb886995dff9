"""`HeteroConv`: a convolution of its own for each edge type, on nodes of several types.

Letters as in `outgrow.nn.layer`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.block import Block
from outgrow.core.graph_types import EdgeType, GraphTypes
from outgrow.core.validation import validate_choice
from outgrow.nn.hetero_checks import (
    module_name,
    require_bound_types,
    require_convs,
    require_projection,
    require_same_edge_types,
    require_widths,
    types_of_names,
    widths_by_type,
)
from outgrow.nn.layer import Conv, ConvSpec, Features, NodeMessages
from outgrow.nn.pyg import PyGConv
from outgrow.nn.relation_convs import (
    HeteroAggregation,
    RelationConvs,
    gather_scores,
    join_edge_weights,
    pack_channels,
    pack_messages,
)
from outgrow.nn.relation_sums import (
    RelationChannelSum,
    RelationMeanSum,
    add_own,
    choose_order,
    make_mean_sum,
    project_sources,
    sum_tensors,
)
from outgrow.nn.slot_layout import NOTHING, SlotLayout, TypedRows
from outgrow.ops.row_slots import Slot, keep_in_graph, scatter_slots

SUM, MEAN, MAX = "sum", "mean", "max"


def _max_of(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(parts)).amax(0) if len(parts) > 1 else parts[0]


COMBINE: Mapping[str, Callable[[Sequence[Tensor]], Tensor]] = {
    SUM: sum_tensors,
    MEAN: lambda parts: sum_tensors(parts) / len(parts),
    MAX: _max_of,
}


@check_arguments()
class HeteroConv(Conv):
    """``x'_v = combine over relations r that enter the type of v of conv_r(x, in-edges of relation r)_v``.

    As PyG's ``HeteroConv``, under every strategy. Edge types of the convolutions and of the graph are matched by name.
    What a node sends is what the convolutions of its type's out-relations need, so rows are as wide as their type
    needs; convolutions that take their input as it is share it.

    Args:
        convs: Convolution of each edge type, ``(source type, relation, destination type)``; all of the same widths.
        combine: ``sum``, ``mean`` or ``max`` of the results of the relations that enter a type.

    Raises:
        InputError: There is no convolution, one does not fit (see the table in docs/typed-graphs.md), widths differ,
            or another ``combine``.
    """

    reads_types = True

    def __init__(self, convs: Mapping[EdgeType, Conv], combine: str = SUM) -> None:
        super().__init__()
        validate_choice("combine", combine, COMBINE)
        require_convs(convs)
        self.combine = combine
        self.edge_types = tuple(convs)
        widths = widths_by_type(convs)
        if widths is not None:
            # Types have columns of their own in one matrix, of which a row is mostly zeros: it is projected first.
            convs = {edge_type: require_projection(edge_type, conv) for edge_type, conv in convs.items()}
        else:
            convs = choose_order(convs)
        self.input_widths = widths
        self.keeps_columns_apart = False
        self.convs = nn.ModuleDict({module_name(edge_type): conv for edge_type, conv in convs.items()})
        self._describe(types_of_names(self.edge_types))

    def _describe(self, types: GraphTypes) -> None:
        """Set what depends on the convolutions and on the order of types and relations."""
        convs = [self.conv_of(edge_type) for edge_type in types.edge_types]
        self.relations = RelationConvs(convs, types)
        self.aggregation: HeteroAggregation | RelationMeanSum = HeteroAggregation(self.relations)
        # Sums of means need no aggregate of each relation, unless columns shall stay apart.
        mean_sum = None if self.combine == MAX else make_mean_sum(convs, self.relations.source)
        if mean_sum is not None and (mean_sum.sliceable or not self.keeps_columns_apart):
            self.aggregation = mean_sum
        self.accepts_sparse = all(conv.accepts_sparse for conv in convs)
        self.accepts_half = all(conv.accepts_half for conv in convs)
        self.reads_weights = any(conv.reads_weights for conv in convs)
        self.normalizes_weights = any(conv.normalizes_weights for conv in convs)
        self.exact = all(conv.exact for conv in convs)
        self.edge_dim = max(conv.edge_dim for conv in convs)
        mine, specs = self.relations, [conv.spec for conv in convs]
        foreign = any(isinstance(conv, PyGConv) for conv in convs)
        self.spec = ConvSpec(
            in_features=specs[0].in_features if self.input_widths is None else sum(self.input_widths.values()),
            out_features=specs[0].out_features,
            source=mine.source.shape,
            target=mine.target.shape,
            score=max(mine.source_score.units, mine.target_score.units),
            aggregate=(1, specs[0].out_features) if self.aggregation is mean_sum else mine.aggregate.shape,
            static_edge_weight=all(spec.static_edge_weight for spec in specs),
            reads_target=any(spec.reads_target for spec in specs),
            # A constant aggregate must have no parameters, as that of a foreign convolution does.
            source_is_input=mine.source.is_input and not foreign,
            # Degrees of a relation are counted in the block.
            needs_full_neighborhood=True,
            source_widths=_widths_that_differ(mine.source, mine.src_type),
            score_widths=_widths_that_differ(mine.source_score, mine.src_type),
        )

    def conv_of(self, edge_type: EdgeType) -> Conv:
        """Return the convolution of an edge type."""
        conv = self.convs[module_name(edge_type)]
        assert isinstance(conv, Conv)
        return conv

    def bind_types(self, types: GraphTypes) -> None:
        """Match the convolutions with the edge types of a graph, by name.

        Raises:
            InputError: An edge type of the graph has no convolution, or the graph lacks one of a convolution.
        """
        require_same_edge_types(self.edge_types, types)
        if self.input_widths is not None:
            require_widths("a HeteroConv", self.input_widths, types)
        self.types = types
        entered = {target for _, _, target in types.edge_types}
        self.types_without_output = tuple(name for name in types.names if name not in entered)
        for edge_type in types.edge_types:
            self.conv_of(edge_type).bind_types(types)
        self._describe(types)

    def types_read(self, types: GraphTypes) -> tuple[str, ...]:
        """Return the names of the types that send, and of those whose update reads their input."""
        read = {source for source, _, _ in types.edge_types}
        read |= {each[2] for each in types.edge_types if self.conv_of(each).spec.reads_target}
        return tuple(name for name in types.names if name in read)

    def with_sliceable_columns(self) -> Conv | None:
        """Return the form with an aggregate of each relation, if that keeps columns apart, or None."""
        if self.aggregation.sliceable:
            return self
        other = copy.copy(self)
        other._modules = dict(self._modules)
        other.keeps_columns_apart = True
        other._describe(self.relations.types)
        return other if other.aggregation.sliceable else None

    def with_projection_first(self) -> Conv | None:
        """Return the form whose convolutions all accept sparse rows, or None."""
        return self._with_forms([self.conv_of(each).with_projection_first() for each in self.edge_types])

    def aggregate_first(self) -> Conv | None:
        """Return the form whose sources are its input, or None."""
        if any(isinstance(self.conv_of(each), PyGConv) for each in self.edge_types):
            return None
        form = self._with_forms([self.conv_of(each).aggregate_first() for each in self.edge_types])
        # Aggregates of each relation apart: those of raw features have no parameters.
        return None if form is None else form.with_sliceable_columns() or form

    def _with_forms(self, forms: Sequence[Conv | None]) -> Conv | None:
        if any(form is None for form in forms):
            return None
        if all(form is self.conv_of(each) for form, each in zip(forms, self.edge_types, strict=True)):
            return self
        # A shallow copy with another list of modules, which share the parameters.
        other = copy.copy(self)
        other._modules = dict(self._modules)
        other.convs = nn.ModuleDict(
            {module_name(each): form for each, form in zip(self.edge_types, forms, strict=True) if form is not None}
        )
        other._describe(self.relations.types)
        return other

    def _inputs(self, x_VD: Features, rows: TypedRows) -> dict[int, Features]:
        """Return the input of the nodes of each type: its columns, or all of them if types share these."""
        return (
            rows.split(x_VD)
            if self.input_widths is None
            else rows.split_columns(x_VD, require_bound_types("a HeteroConv", self.types))
        )

    def source(self, x_VD: Features) -> NodeMessages:
        """Not defined: see `source_of_nodes`."""
        raise TypeError("what a node sends depends on its type: call source_of_nodes")

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Not defined: see `update_of_nodes`."""
        raise TypeError("the update of a node depends on its type: call update_of_nodes")

    def source_of_nodes(self, x_VD: Features, nodes_V: Tensor) -> NodeMessages:
        """Return ``[V, 1, D]`` the input, or what the convolutions of each type's out-relations send; and scores."""
        if self.relations.source.is_input:
            assert isinstance(x_VD, Tensor)
            return NodeMessages(x_VD[:, None], None)
        return self._pack_source(x_VD, *self._split_by_type(x_VD, nodes_V))

    def target_of_nodes(self, x_VD: Features, nodes_V: Tensor) -> NodeMessages:
        """Return what the convolutions of each type's in-relations use of destinations."""
        if not self._reads_targets:
            return NodeMessages(None, None)
        return self._pack_target(x_VD, *self._split_by_type(x_VD, nodes_V))

    def source_and_target_of_nodes(self, x_VD: Features, nodes_V: Tensor) -> tuple[NodeMessages, NodeMessages]:
        """Return `source_of_nodes` and `target_of_nodes`, of rows that are split by type once."""
        if self.relations.source.is_input or not self._reads_targets:
            return self.source_of_nodes(x_VD, nodes_V), self.target_of_nodes(x_VD, nodes_V)
        parts = self._split_by_type(x_VD, nodes_V)
        return self._pack_source(x_VD, *parts), self._pack_target(x_VD, *parts)

    @property
    def _reads_targets(self) -> bool:
        mine = self.relations
        return mine.target.shape != NOTHING or bool(mine.target_score.units)

    def _split_by_type(self, x_VD: Features, nodes_V: Tensor) -> tuple[TypedRows, dict[int, Features]]:
        rows = TypedRows(require_bound_types("a HeteroConv", self.types), nodes_V)
        return rows, self._inputs(x_VD, rows)

    def _pack_source(self, x_VD: Features, rows: TypedRows, given: Mapping[int, Features]) -> NodeMessages:
        mine = self.relations
        if isinstance(self.aggregation, RelationChannelSum):
            sums = project_sources(self.aggregation, mine.src_type, given)
            return NodeMessages(pack_channels(sums, rows, mine.source.shape, x_VD, mine.parameters()), None)
        sent = {
            number: conv.source_of_nodes(given[kind], rows.nodes_of(kind))
            for number, (conv, kind) in enumerate(zip(mine.convs, mine.src_type, strict=True))
            if kind in given
        }
        return pack_messages(sent, rows, mine.src_type, mine.source, mine.source_score, x_VD, mine.parameters())

    def _pack_target(self, x_VD: Features, rows: TypedRows, given: Mapping[int, Features]) -> NodeMessages:
        mine = self.relations
        used = {
            number: conv.target_of_nodes(given[kind], rows.nodes_of(kind))
            for number, (conv, kind) in enumerate(zip(mine.convs, mine.dst_type, strict=True))
            if kind in given
        }
        return pack_messages(used, rows, mine.dst_type, mine.target, mine.target_score, x_VD, mine.parameters())

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor | None:
        """Return ``[E, K]``: the weight that its relation's convolution gives each edge; None if all are 1."""
        assert source.values is not None
        if isinstance(self.aggregation, RelationMeanSum):
            return self.aggregation.edge_weight(block, source.values.dtype)
        mine = self.relations
        edges = {number: each for number, each in mine.edges(block).items() if mine.weights[number]}
        scored = {number: each for number, each in edges.items() if mine.convs[number].spec.score}
        src_scores = gather_scores(source.scores, mine.source_score, {n: each.src_rows for n, each in scored.items()})
        dst_scores = gather_scores(target.scores, mine.target_score, {n: each.dst_rows for n, each in scored.items()})
        # No values: weights take only their type.
        none = source.values.new_empty(0, 1, 0)
        found = {
            number: mine.convs[number].edge_weight(
                each.make_block(block),
                NodeMessages(none, src_scores.get(number)),
                NodeMessages(None, dst_scores.get(number)),
            )
            for number, each in edges.items()
        }
        weight_EK = join_edge_weights(
            found, edges, mine.weights, block, source.values.dtype, scored=bool(self.spec.score)
        )
        if weight_EK is None or self.spec.static_edge_weight:
            return weight_EK
        absent = mine.parameters_without_edges(edges, of_weights=True)
        kept = (source.scores, target.scores, *absent, *mine.parameters())
        return keep_in_graph(weight_EK, kept, used=bool(scored) and not absent)

    @property
    def edge_weight_key(self) -> tuple[object, ...]:
        """The class, the types, and the keys of the relations' convolutions."""
        mine = self.relations
        return HeteroConv, mine.types, *(conv.edge_weight_key for conv in mine.convs)

    def update_of_nodes(self, x_VD: Features, aggregate_VCF: Tensor, nodes_V: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the combined updates of each type's in-relations; zeros for a type without any."""
        mine = self.relations
        if isinstance(self.aggregation, RelationMeanSum):
            return self._add_own(self.aggregation, x_VD, aggregate_VCF, nodes_V)
        rows, given = self._split_by_type(x_VD, nodes_V)
        combined = self._combine_updates(given, aggregate_VCF, rows)
        width = self.spec.out_features
        out = scatter_slots(
            list(combined.values()),
            [Slot(rows.rows[kind], 0, width) for kind in combined],
            (len(nodes_V), width),
            like=next(iter(combined.values()), aggregate_VCF),
        )
        given_x = x_VD if isinstance(x_VD, Tensor) and self.spec.reads_target else None
        return keep_in_graph(out, (aggregate_VCF, given_x, *mine.parameters()), used=bool(combined))

    def _combine_updates(
        self, given: Mapping[int, Features], aggregate_VCF: Tensor, rows: TypedRows
    ) -> dict[int, Tensor]:
        """Return ``[n, O]`` of each type that a relation enters: its relations' updates, combined."""
        mine = self.relations
        asked = {number: rows.rows[kind] for number, kind in enumerate(mine.dst_type) if kind in given}
        parts = mine.aggregate.gather(aggregate_VCF, asked)
        by_type = dict[int, list[Tensor]]()
        for number, part in parts.items():
            conv, kind = mine.convs[number], mine.dst_type[number]
            out = conv.update_of_nodes(given[kind], part, rows.nodes_of(kind))
            by_type.setdefault(kind, []).append(out if conv.epilogue_bias is None else out + conv.epilogue_bias)
        return {kind: COMBINE[self.combine](found) for kind, found in by_type.items()}

    def _add_own(self, mean_sum: RelationMeanSum, x_VD: Features, aggregate_VCF: Tensor, nodes_V: Tensor) -> Tensor:
        """Return the same of an aggregate that is a sum over relations already."""
        mine = self.relations
        types = require_bound_types("a HeteroConv", self.types)
        rows = TypedRows(types, nodes_V)
        columns = [
            (0, x_VD.shape[1]) if self.input_widths is None else types.type_columns(name) for name in types.names
        ]
        inputs = {kind: Slot(each, *columns[kind]) for kind, each in rows.rows.items()}
        sum_VO = aggregate_VCF.squeeze(1)
        if self.combine == MEAN:
            counts = [max(1, mine.dst_type.count(kind)) for kind in range(types.num_types)]
            sum_VO = sum_VO / rows.spread(sum_VO.new_tensor(counts))
        out = add_own(sum_VO, mean_sum, mine.dst_type, inputs, x_VD, mean=self.combine == MEAN)
        given_x = x_VD if isinstance(x_VD, Tensor) and self.spec.reads_target else None
        return keep_in_graph(out, (aggregate_VCF, given_x, *mine.parameters()), used=out is not sum_VO)


def _widths_that_differ(layout: SlotLayout, senders: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers that each type uses of a row; none if they are equal for all types that send."""
    return layout.used if len({layout.used[kind] for kind in senders}) > 1 else ()
