"""Layers and convolutions: the interface that authors implement and strategies call.

Letters: ``V`` nodes, ``Vs`` sources, ``Vd`` destinations, ``E`` edges; ``D`` input width, ``O`` output width;
``C`` channels (heads, bases, gates), ``F`` columns (the only axis that is ever sliced), ``K`` scores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from outgrow.core import old_names
from outgrow.core.arguments import check_arguments
from outgrow.core.block import Block
from outgrow.core.deprecation import renamed_members, renamed_options
from outgrow.core.errors import InputError
from outgrow.core.graph_types import GraphTypes, RowWidths
from outgrow.nn.epilogue import Epilogue, activation_module, apply_epilogue, make_norm
from outgrow.ops.aggregation.base import Aggregation
from outgrow.ops.sparse import PartialRows

Features = Tensor | PartialRows
"""``[V, D]`` input of a layer: dense, or sparse rows (raw features of the first layer)."""


@renamed_options(columns="values", score="scores")
class NodeMessages(NamedTuple):
    """Rows that nodes send as sources, or use as destinations.

    Attributes:
        values: ``[V, C, F]``; None if there are none.
        scores: ``[V, K]``, narrow, never sliced; None if there is none.
    """

    values: Tensor | None
    scores: Tensor | None


@renamed_options(**old_names.CONV_SPEC)
@dataclass(frozen=True, kw_only=True)
class ConvSpec:
    """Properties of a convolution that strategies and the planner depend on.

    Attributes:
        in_features: ``D``, of sources.
        out_features: ``O``.
        source: Channels and columns of a source row; (0, 0) if there is none.
        target: Channels and columns of a destination row; (0, 0) if there is none.
        score: Number of scores ``K`` of a source, and of a destination.
        aggregate: Channels and columns of the aggregate.
        static_edge_weight: `Conv.edge_weight` reads the graph only.
        reads_target: `Conv.update` or `Conv.target` reads the destination's input.
        self_loops: Edges include exactly one self-loop per node.
        source_is_input: `Conv.source` returns its input unchanged, as one channel.
        needs_full_neighborhood: `Conv.edge_weight` must see all in-edges of a destination at once.
        source_widths: Numbers that are used of a source row of each node type, the first ones of its channels and
            columns; the others are zeros, which no link carries. Empty if all rows are used whole.
        score_widths: The same for the scores of a source.
        target_in_features: ``D`` of destinations; None if it is that of sources, as outside of `HeteroConv`.
        sums_channels: `Conv.update` only sums the channels of the aggregate; it may be given their sum as one channel.
    """

    in_features: int
    out_features: int
    source: tuple[int, int]
    target: tuple[int, int] = (0, 0)
    score: int = 0
    aggregate: tuple[int, int]
    static_edge_weight: bool
    reads_target: bool
    self_loops: bool = False
    source_is_input: bool = False
    needs_full_neighborhood: bool = False
    source_widths: tuple[int, ...] = ()
    score_widths: tuple[int, ...] = ()
    target_in_features: int | None = None
    sums_channels: bool = False


@renamed_members(**old_names.CONV)
class Conv(nn.Module, ABC):
    """Graph convolution in four phases: `source`, `edge_weight`, aggregation, `update`.

    A subclass is final. It sets ``spec`` and ``aggregation`` in its constructor, and draws random numbers
    only with ``block.key``.

    Attributes:
        spec: Properties that strategies depend on.
        aggregation: How source rows are combined.
        accepts_sparse: Whether the input may be `PartialRows`: it is projected before anything else.
        accepts_half: Whether constant input may be in half precision: it is projected or summed first.
        num_relations: Relations that the edges of the graph must have; 0 if it reads none.
        edge_dim: Features that the edges of the graph must have (`Edges.num_features`); 0 if it reads none.
        reads_types: Whether it has modules per type of nodes or edges, and so needs `bind_types`.
        types: Types that it was bound to; None before, and for a convolution without modules per type.
        types_without_output: Types that no relation enters: their rows are zeros, which nothing may read.
        reads_weights: Whether weights of edges change the results.
        normalizes_weights: Whether weights are divided by their sums, which must then be positive.
        exact: Whether results do not depend on how the work is split; false for draws that are not keyed.
    """

    spec: ConvSpec
    aggregation: Aggregation
    accepts_sparse: bool = True
    accepts_half: bool = False
    num_relations: int = 0
    edge_dim: int = 0
    reads_types: bool = False
    types: GraphTypes | None = None
    types_without_output: tuple[str, ...] = ()
    reads_weights: bool = True
    normalizes_weights: bool = False
    exact: bool = True

    @abstractmethod
    def source(self, x_VD: Features) -> NodeMessages:
        """Return what each node sends to its out-neighbours; dense, once per node."""

    def target(self, x_VD: Features) -> NodeMessages:
        """Return what each destination contributes to its in-edges; by default nothing."""
        return NodeMessages(None, None)

    def source_and_target(self, x_VD: Features) -> tuple[NodeMessages, NodeMessages]:
        """Return `source` and `target` of the same nodes; a subclass may share work between them."""
        return self.source(x_VD), self.target(x_VD)

    def source_of_nodes(self, x_VD: Features, nodes_V: Tensor) -> NodeMessages:
        """Return `source` of nodes with these global ids; for convolutions whose work depends on the type of a node."""
        return self.source(x_VD)

    def target_of_nodes(self, x_VD: Features, nodes_V: Tensor) -> NodeMessages:
        """Return `target` of nodes with these global ids."""
        return self.target(x_VD)

    def source_and_target_of_nodes(self, x_VD: Features, nodes_V: Tensor) -> tuple[NodeMessages, NodeMessages]:
        """Return `source_and_target` of nodes with these global ids."""
        return self.source_and_target(x_VD)

    def update_of_nodes(self, x_VD: Features, aggregate_VCF: Tensor, nodes_V: Tensor) -> Tensor:
        """Return `update` of nodes with these global ids."""
        return self.update(x_VD, aggregate_VCF)

    def bind_types(self, types: GraphTypes) -> None:
        """Take the ids and columns of the types of a graph; a convolution without modules per type needs none.

        Raises:
            InputError: The convolution was made for other types.
        """

    def types_read(self, types: GraphTypes) -> tuple[str, ...]:
        """Return the names of the types of which it reads the input; by default all."""
        return types.names

    def edge_scores(self, block: Block) -> Tensor | None:
        """Return the ``[E, K]`` terms of the edges' own data in the scores; None if there are none.

        `edge_weight` takes them from ``block.edge_scores`` if it has them: a strategy that holds the features of edges
        elsewhere computes these terms there, and moves them instead of the features.
        """
        return None

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor | None:
        """Return the ``[E, K]`` weight of each edge; None if all are 1. Reads scores and the graph only."""
        # Never columns, of which it may take the type: strategies call this with slices, or without values.
        return None

    @property
    def edge_weight_key(self) -> tuple[object, ...]:
        """Key that is equal for convolutions with the same edge weights, given the same graph and scores."""
        # Convolutions of other packages may weigh edges by their own state: only the same object is known to be equal.
        return (type(self) if type(self).__module__.partition(".")[0] == "outgrow" else self,)

    def aggregate_first(self) -> Conv | None:
        """Return this convolution, with the same parameters, in a form whose sources are its input.

        None if there is no such form, because anything but a product precedes the sum.
        """
        return self if self.spec.source_is_input else None

    def with_sliceable_columns(self) -> Conv | None:
        """Return this convolution, with the same parameters, in a form that keeps columns apart, or None."""
        return self if self.aggregation.sliceable else None

    def with_projection_first(self) -> Conv | None:
        """Return this convolution, with the same parameters, in a form that accepts sparse rows, or None."""
        return self if self.accepts_sparse else None

    @abstractmethod
    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]`` from the destinations' input and aggregate, without `epilogue_bias`; dense."""

    @property
    def epilogue_bias(self) -> Tensor | None:
        """``[O]`` to add to the result of `update`, fused with the epilogue; by default None."""
        return None


@renamed_options(finish="epilogue")
@renamed_members(**old_names.LAYER)
@check_arguments()
class Layer(nn.Module):
    """Convolution with its epilogue. Final: strategies call its phases in their own order.

    Args:
        conv: The convolution.
        epilogue: Operations after it; none by default, as in the last layer of a model.

    Attributes:
        output_hook: Called with the ids of nodes and the layer's output for them, ``[Vd, O]``, unless None.

    Raises:
        InputError: A residual between widths that differ, or a convolution with two input widths.
    """

    def __init__(self, conv: Conv, epilogue: Epilogue | None = None) -> None:
        super().__init__()
        if conv.spec.target_in_features is not None:
            raise InputError(
                "a layer has two input widths",
                needed="one width, as all nodes of a graph have",
                got=f"{conv.spec.in_features} of sources, {conv.spec.target_in_features} of destinations",
                repair="use the convolution in a HeteroConv, where types of nodes have widths of their own",
            )
        self.conv = conv
        self.epilogue = epilogue or Epilogue()
        self.norm = make_norm(self.epilogue, conv.spec.in_features, conv.spec.out_features)
        self.activation = activation_module(self.epilogue)
        self.output_hook: Callable[[Tensor, Tensor], None] | None = None

    @property
    def spec(self) -> ConvSpec:
        """Properties of the convolution."""
        return self.conv.spec

    def message_widths(self) -> tuple[RowWidths | None, RowWidths | None]:
        """Return what each type of nodes uses of values and of scores; None where all rows are used whole."""
        widths, types = self.spec, self.conv.types
        if types is None:
            return None, None
        values = RowWidths(types.borders, ((widths.source[0] * widths.source[1], widths.source_widths),))
        scores = RowWidths(types.borders, ((widths.score, widths.score_widths),))
        return values if widths.source_widths else None, scores if widths.score_widths else None

    def row_widths(self) -> RowWidths | None:
        """Return what each type of nodes uses of flat source rows, values before scores; None if all is used."""
        values, scores = self.message_widths()
        known = values or scores
        if known is None:
            return None
        spec = self.spec
        whole = ((spec.source[0] * spec.source[1], values), (spec.score, scores))
        num_types = len(known.borders) - 1
        parts = tuple((width, (width,) * num_types) if used is None else used.parts[0] for width, used in whole)
        return RowWidths(known.borders, parts)

    @property
    def reads_target(self) -> bool:
        """Whether `target` or `update` reads the destinations' input."""
        return self.spec.reads_target or self.epilogue.residual

    @property
    def reads_types(self) -> bool:
        """See `Conv.reads_types`."""
        return self.conv.reads_types

    @property
    def accepts_sparse(self) -> bool:
        """Whether the input may be `PartialRows`."""
        return self.conv.accepts_sparse and not self.epilogue.residual

    @property
    def accepts_half(self) -> bool:
        """Whether a constant input may be in half precision."""
        return self.conv.accepts_half and not self.epilogue.residual

    def source(self, x_VD: Features, nodes_V: Tensor) -> NodeMessages:
        """Return `Conv.source` of nodes with these global ids."""
        return self.conv.source_of_nodes(x_VD, nodes_V)

    def target(self, x_VD: Features, nodes_V: Tensor) -> NodeMessages:
        """Return `Conv.target` of nodes with these global ids."""
        return self.conv.target_of_nodes(x_VD, nodes_V)

    def source_and_target(
        self, x_src: Features, x_dst: Features, src_nodes: Tensor, dst_nodes: Tensor
    ) -> tuple[NodeMessages, NodeMessages]:
        """Return `source` and `target`, which share work if both sides are the same nodes."""
        # By identity: equal values in two tensors would have to be compared first.
        if x_src is x_dst:
            return self.conv.source_and_target_of_nodes(x_src, src_nodes)
        return self.source(x_src, src_nodes), self.target(x_dst, dst_nodes)

    def aggregate(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor:
        """Return ``[Vd, C, F]``: the aggregate of whole rows, column slices, chunks or parts of edges."""
        assert source.values is not None
        # Degrees come with the block, not from its edges, so a chunk of destinations gives the same rows.
        weight_EK = self.conv.edge_weight(block, source, target)
        return self.conv.aggregation(block, source.values, target.values, weight_EK)

    def update(self, x_VD: Features, aggregate_VCF: Tensor, block: Block) -> Tensor:
        """Return ``[Vd, O]``: update, bias and epilogue, with dropout if ``block.key`` is not None."""
        return self.update_nodes(x_VD, aggregate_VCF, block.dst_nodes, block.key)

    def update_nodes(self, x_VD: Features, aggregate_VCF: Tensor, nodes_V: Tensor, key: int | None) -> Tensor:
        """Return ``[Vd, O]``: `update` of nodes without a block.

        Args:
            x_VD: Input of the nodes.
            aggregate_VCF: Their aggregate.
            nodes_V: ``[Vd]`` int64, their global ids.
            key: Key of this layer in this step; None for no dropout.
        """
        if self.activation is not None:
            # Training and evaluation alternate within a run; the key tells which of both this call is.
            self.activation.train(key is not None)
        y_VO = self.conv.update_of_nodes(x_VD, aggregate_VCF, nodes_V)
        out_VO = apply_epilogue(self.epilogue, self.norm, x_VD, y_VO, self.conv.epilogue_bias, nodes_V, key)
        # Here, where all strategies pass, whichever way they compute the aggregate.
        if self.output_hook is not None:
            self.output_hook(nodes_V, out_VO)
        return out_VO

    def aggregate_first(self) -> Layer | None:
        """Return this layer, with the same parameters, of `Conv.aggregate_first`; None if there is none."""
        conv = self.conv.aggregate_first()
        if conv is None or conv is self.conv:
            return None if conv is None else self
        reordered = Layer(conv, self.epilogue)
        # Shared, not copied: both layers must train the same parameters.
        reordered.norm = self.norm
        return reordered

    @property
    def has_static_aggregate(self) -> bool:
        """Whether the aggregate has no parameters, so that it is constant if the input is."""
        aggregation = self.conv.aggregation
        trains = isinstance(aggregation, nn.Module) and next(aggregation.parameters(), None) is not None
        trains = trains or aggregation.has_parameters
        return self.spec.static_edge_weight and self.spec.source_is_input and not trains

    def forward(self, block: Block, x_src: Features, x_dst: Features) -> Tensor:
        """Return ``[Vd, O]``: all phases, on one worker."""
        source, target = self.source_and_target(x_src, x_dst, block.src_nodes, block.dst_nodes)
        return self.update(x_dst, self.aggregate(block, source, target), block)
