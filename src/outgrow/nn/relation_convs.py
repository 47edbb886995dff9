"""Convolutions of a graph's relations: their parts in the rows of nodes, their edges and their aggregation.

Letters as in `outgrow.nn.layer`; ``T`` node types, ``R`` relations, ``e`` edges of one relation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

import torch
from torch import Tensor, nn

from outgrow.core.block import Block
from outgrow.core.graph_types import GraphTypes
from outgrow.nn.layer import Conv, Features, NodeMessages
from outgrow.nn.pyg import PyGConv
from outgrow.nn.slot_layout import NOTHING, Rows, SlotLayout, TypedRows
from outgrow.ops.aggregation.base import Aggregate, Aggregation
from outgrow.ops.kernels.numerics import accumulate_dtype
from outgrow.ops.relation_blocks import RelationEdges, relation_edges
from outgrow.ops.row_slots import Slot, gather_slots, keep_in_graph, scatter_slots


class RelationConvs:
    """Convolutions by relation, and where their parts are in the rows of nodes of each type. Final.

    Args:
        convs: The convolution of each relation.
        types: Node types and relations.

    Attributes:
        fills_empty: Of each relation, whether its aggregates of destinations without in-edges are not zeros.
    """

    def __init__(self, convs: Sequence[Conv], types: GraphTypes) -> None:
        self.convs = convs
        self.types = types
        names = types.names
        self.src_type = [names.index(source) for source, _, _ in types.edge_types]
        self.dst_type = [names.index(target) for _, _, target in types.edge_types]
        specs = [conv.spec for conv in convs]
        sends_input = [conv.spec.source_is_input or isinstance(conv, PyGConv) for conv in convs]
        foreign = [isinstance(conv, PyGConv) for conv in convs]
        # A foreign convolution computes its whole output of the aggregation, also that of nodes without in-edges.
        self.fills_empty = [isinstance(conv, PyGConv) or conv.aggregation.empty != 0 for conv in convs]
        count = types.num_types
        self.source = SlotLayout([spec.source for spec in specs], self.src_type, count, sends_input)
        self.target = SlotLayout([spec.target for spec in specs], self.dst_type, count, foreign)
        scores = [(spec.score, 1) if spec.score else NOTHING for spec in specs]
        self.source_score = SlotLayout(scores, self.src_type, count)
        self.target_score = SlotLayout(scores, self.dst_type, count)
        self.aggregate = SlotLayout([spec.aggregate for spec in specs], self.dst_type, count)
        # Numbers of an edge's weight: one for each channel, but neither for a gate, which sources have beside their
        # values, nor for each sum of products with features of edges, of which an aggregate has several.
        self.weights = [
            min(spec.source[0], spec.aggregate[0]) if _weighs_edges(conv) else 0
            for conv, spec in zip(convs, specs, strict=True)
        ]

    def parameters(self) -> Iterator[Tensor]:
        """Yield a parameter that is trained, if there is any."""
        every = (each for conv in self.convs for each in conv.parameters() if each.requires_grad)
        yield from islice(every, 1)

    def parameters_without_edges(self, present: Collection[int], *, of_weights: bool) -> list[Tensor]:
        """Return what would be trained by edges of relations of which a block has none.

        Args:
            present: Relations that have edges.
            of_weights: Parameters that edges are weighed with, or those of aggregations.
        """
        # As a convolution alone gives zeros there: an optimizer makes a difference between these and no gradient.
        return [
            parameter
            for number, conv in enumerate(self.convs)
            if number not in present
            for module in ([conv] if of_weights else [conv.aggregation])
            if isinstance(module, nn.Module) and not (of_weights and conv.spec.static_edge_weight)
            for parameter in module.parameters()
        ]

    def edges(self, block: Block) -> dict[int, RelationEdges]:
        """Return the edges of each relation that has any in a block, or whose aggregates of none are not zeros."""
        return {
            number: each
            for number, each in enumerate(relation_edges(block.edges, len(self.convs)))
            if len(each.position) or self.fills_empty[number]
        }


class HeteroAggregation(Aggregation):
    """Aggregation of each relation's in-edges by its own convolution, in slots of one row. Final.

    Args:
        relations: The convolutions.
        restricted: Aggregation of each relation instead of that of its convolution; None for these.
    """

    def __init__(self, relations: RelationConvs, restricted: Sequence[Aggregate] | None = None) -> None:
        self.relations = relations
        aggregations = [conv.aggregation for conv in relations.convs]
        whole = [layout for layout in (relations.source, relations.aggregate) if not layout.by_channel]
        apart = not whole and relations.target.shape in (NOTHING, (relations.target.units, relations.source.shape[1]))
        self.sliceable = all(each.sliceable for each in aggregations) and apart
        self.additive = all(each.additive for each in aggregations)
        modules = [each for each in aggregations if isinstance(each, nn.Module)]
        self.has_parameters = any(next(each.parameters(), None) is not None for each in modules)
        self._calls: Sequence[Aggregate] = aggregations if restricted is None else restricted

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate; see `Aggregation`."""
        mine = self.relations
        edges = mine.edges(block)
        for number, each in edges.items():
            if mine.fills_empty[number]:
                edges[number] = _all_destinations(mine, number, each, block)
        sources = mine.source.gather(src_VsCF, {number: each.src_rows for number, each in edges.items()})
        read = {number: each.dst_rows for number, each in edges.items() if mine.target.shapes[number] != NOTHING}
        targets = {} if dst_VdCF is None else mine.target.gather(dst_VdCF, read)
        fixed = {number for number in edges if mine.convs[number].spec.static_edge_weight}
        weights = split_edge_weights(weight_EK, edges, mine.weights, fixed)
        columns = src_VsCF.shape[2] if self.sliceable else None
        parts = {
            number: self._calls[number](
                each.make_part(block), sources[number], targets.get(number), weights.get(number)
            )
            for number, each in edges.items()
        }
        channels, width = mine.aggregate.shape
        shape = (channels, width if columns is None else columns)
        slots = [mine.aggregate.slot(number, each.dst_rows) for number, each in edges.items()]
        units = (shape[0], shape[1]) if mine.aggregate.by_channel else (shape[1], 1)
        table = scatter_slots(
            [mine.aggregate.flatten(part) for part in parts.values()],
            slots,
            (block.edges.num_dst, *units),
            like=next(iter(parts.values()), src_VsCF.new_empty(0, dtype=accumulate_dtype(src_VsCF.dtype))),
        )
        absent = mine.parameters_without_edges(parts, of_weights=False)
        given = (src_VsCF, dst_VdCF, weight_EK, *absent, *mine.parameters())
        # Edges of some relations alone may have neither trained weights nor destinations that are read.
        weighed = weight_EK is None or not weight_EK.requires_grad or bool(weights.keys() - fixed)
        used = bool(parts) and not absent and weighed and (dst_VdCF is None or bool(targets))
        return mine.aggregate.from_units(keep_in_graph(table, given, used=used))

    def restrict_to_columns(self, first: int, last: int) -> Aggregate:
        """Return the aggregation of these columns of all channels."""
        assert self.sliceable
        return HeteroAggregation(
            self.relations, [conv.aggregation.restrict_to_columns(first, last) for conv in self.relations.convs]
        )


def pack_messages(
    given: Mapping[int, NodeMessages],
    rows: TypedRows,
    kinds: Sequence[int],
    values: SlotLayout,
    scores: SlotLayout,
    x_VD: Features,
    kept: Iterable[Tensor],
) -> NodeMessages:
    """Return the messages of the relations in the rows of their types.

    Args:
        given: Messages of each relation whose type has rows.
        rows: The rows of each type.
        kinds: Type of each relation at this end.
        values: Places of the values.
        scores: Places of the scores.
        x_VD: What they were computed from.
        kept: Parameters; with the input, what results depend on.
    """
    parameters = list(kept)
    inputs = [*parameters, *([x_VD] if isinstance(x_VD, Tensor) else [])]
    empty = torch.empty(0, dtype=(*parameters, x_VD)[0].dtype, device=x_VD.device)
    num_rows = len(rows.nodes)
    # What relations share is written once for each type.
    own = {n: each.values for n, each in given.items() if each.values is not None}
    seen = {(kinds[n], n if not values.shared[n] else -1): n for n in own}
    packed = None
    if values.shape != NOTHING:
        channels, columns = values.shape
        table = scatter_slots(
            [values.flatten(own[n]) for n in seen.values()],
            [values.slot(n, rows.rows[kinds[n]]) for n in seen.values()],
            (num_rows, channels, columns) if values.by_channel else (num_rows, columns, 1),
            like=next(iter(own.values()), empty),
        )
        packed = keep_in_graph(values.from_units(table), inputs, used=bool(seen))
    scored = {n: each.scores for n, each in given.items() if each.scores is not None}
    if not scores.units:
        return NodeMessages(packed, None)
    found = scatter_slots(
        [each[:, :, None] for each in scored.values()],
        [scores.slot(n, rows.rows[kinds[n]]) for n in scored],
        (num_rows, scores.units, 1),
        like=next(iter(scored.values()), empty),
    )
    return NodeMessages(packed, keep_in_graph(found[:, :, 0], inputs, used=bool(scored)))


def pack_channels(
    given: Mapping[int, Tensor], rows: TypedRows, shape: tuple[int, int], x_VD: Features, kept: Iterable[Tensor]
) -> Tensor:
    """Return ``[V, C, O]``: first channels ``[n, c, O]`` of the nodes of each type; see `pack_messages`."""
    parameters = list(kept)
    empty = torch.empty(0, dtype=(*parameters, x_VD)[0].dtype, device=x_VD.device)
    slots = [Slot(rows.rows[kind], 0, each.shape[1]) for kind, each in given.items()]
    like = next(iter(given.values()), empty)
    table = scatter_slots(list(given.values()), slots, (len(rows.nodes), *shape), like=like)
    return keep_in_graph(table, [*parameters, *([x_VD] if isinstance(x_VD, Tensor) else [])], used=bool(given))


def gather_scores(scores_VK: Tensor | None, layout: SlotLayout, asked: Mapping[int, Rows]) -> dict[int, Tensor]:
    """Return the scores ``[n, K]`` of each of some relations, in the rows asked for."""
    if scores_VK is None or not asked:
        return {}
    return {number: part[:, :, 0] for number, part in layout.gather(scores_VK[:, :, None], asked).items()}


def split_edge_weights(
    weight_EK: Tensor | None, edges: Mapping[int, RelationEdges], widths: Sequence[int], fixed: Collection[int]
) -> dict[int, Tensor]:
    """Return the weights ``[e, K]`` of each relation that has any; without a gradient where the graph fixes them."""
    if weight_EK is None:
        return {}
    weighed = {number: each for number, each in edges.items() if widths[number]}
    parts = gather_slots(weight_EK, [Slot(each.position, 0, widths[number]) for number, each in weighed.items()])
    # Beside trained weights in one tensor, fixed ones seem to be trained too, which some aggregations cannot do.
    return {n: part.detach() if n in fixed else part for n, part in zip(weighed, parts, strict=True)}


def join_edge_weights(
    found: Mapping[int, Tensor | None],
    edges: Mapping[int, RelationEdges],
    widths: Sequence[int],
    block: Block,
    dtype: torch.dtype,
    *,
    scored: bool,
) -> Tensor | None:
    """Return the weights ``[E, K]`` of all edges from those of each relation; None if all are 1.

    Args:
        found: Weights of each relation, None if they are 1.
        edges: Edges of each relation.
        widths: ``K`` of each relation; 0 if its aggregation takes no weights.
        block: The block of all edges.
        dtype: Type of source rows.
        scored: Whether weights depend on scores, so that they are never None.
    """
    known = {number: each for number, each in found.items() if each is not None}
    if not known and not scored:
        return None
    empty = block.dst_degree.new_empty(0, dtype=accumulate_dtype(dtype))
    like = next(iter(known.values()), empty)
    parts = {number: known.get(number, like.new_ones(len(edges[number].position), widths[number])) for number in found}
    slots = [Slot(edges[number].position, 0, widths[number]) for number in found]
    return scatter_slots(list(parts.values()), slots, (block.edges.num_edges, max(widths)), like=like)


def _all_destinations(mine: RelationConvs, number: int, each: RelationEdges, block: Block) -> RelationEdges:
    slot = f"all destinations of relation {number}"
    if slot not in block.edges.cache:
        rows = TypedRows(mine.types, block.dst_nodes)
        block.edges.cache[slot] = each.with_destinations(rows.index(mine.dst_type[number]))
    found = block.edges.cache[slot]
    assert isinstance(found, RelationEdges)
    return found


def _weighs_edges(conv: Conv) -> bool:
    return type(conv).edge_weight is not Conv.edge_weight
