"""Sums over relations of means with a projection each, without an aggregate per relation.

Letters as in `outgrow.nn.layer`; ``R`` relations.
"""

from __future__ import annotations

from abc import ABC
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.core.graph_types import EdgeType
from outgrow.nn.convolution import CommNetConv, SAGEConv
from outgrow.nn.layer import Conv, Features
from outgrow.nn.projection import project_channels
from outgrow.nn.slot_layout import SlotLayout, project_slots
from outgrow.ops.aggregation.base import Aggregation
from outgrow.ops.aggregation.relation_matmul import relation_matmul_sum, sum_channels
from outgrow.ops.aggregation.relational import relation_mean_weight
from outgrow.ops.row_slots import Slot

MeanConv = SAGEConv | CommNetConv


class RelationMeanSum(Aggregation, ABC):
    """Sum over relations of the means of sources, in one row of each destination.

    Args:
        convs: Convolution of each relation, which takes a mean.
    """

    additive = True

    def __init__(self, convs: Sequence[MeanConv]) -> None:
        self.convs = convs

    def edge_weight(self, block: Block, dtype: torch.dtype) -> Tensor:
        """Return ``[E, 1]``: one over the destination's in-edges of the same relation."""
        return relation_mean_weight(with_relations(block), len(self.convs), dtype)


class RelationMatrixSum(RelationMeanSum):
    """``out[v] = sum over in-edges e of weight[e] * src[source of e] @ matrix of e's relation``. Final."""

    sliceable = False
    has_parameters = True
    sums_pairs = True

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Return ``[Vd, 1, O]`` of one source channel and one weight per edge; see `Aggregation`."""
        assert weight_EK is not None
        matrix_R1DO = torch.stack([conv.neighbour.weight for conv in self.convs])[:, None]
        return relation_matmul_sum(with_relations(block).edges, src_VsCF.squeeze(1), weight_EK, matrix_R1DO)[:, None]


class RelationChannelSum(RelationMeanSum):
    """``out[v] = sum over in-edges e of weight[e] * src[source of e, channel of e's relation]``. Final.

    Args:
        convs: Convolution of each relation, which takes the mean of projected sources.
        channels: Channel of each relation in the rows of its sources.
    """

    sliceable = True

    def __init__(self, convs: Sequence[MeanConv], channels: Sequence[int]) -> None:
        super().__init__(convs)
        self.channels = channels

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Return ``[Vd, 1, O]`` of several channels and one weight per edge; see `Aggregation`."""
        assert weight_EK is not None
        return sum_channels(with_relations(block), self.channels, src_VsCF, weight_EK)


def make_mean_sum(convs: Sequence[Conv], source: SlotLayout) -> RelationMeanSum | None:
    """Return the sum of the means of convolutions, which all come before or all after the projection; else None.

    Args:
        convs: Convolution of each relation.
        source: Places of what they send in the rows of sources.
    """
    means = [conv for conv in convs if isinstance(conv, MeanConv)]
    if len(means) < len(convs):
        return None
    if all(conv.spec.source_is_input for conv in means):
        return RelationMatrixSum(means)
    if any(conv.spec.source_is_input for conv in means):
        return None
    # Convolutions of one layer have one output width, so that each has a channel.
    return RelationChannelSum(means, [source.slot(number, slice(0)).first for number in range(len(means))])


def project_sources(
    mean_sum: RelationChannelSum, src_type: Sequence[int], given: Mapping[int, Features]
) -> dict[int, Tensor]:
    """Return ``[n, C, O]`` of the nodes of each type: a channel for each of its out-relations, by one product.

    Args:
        mean_sum: The convolutions.
        src_type: Source type of each relation.
        given: Input of the nodes of each type; types that are not in it are left out, and those without out-relations.
    """
    found = dict[int, Tensor]()
    for kind, x_nD in given.items():
        sent = [conv for conv, other in zip(mean_sum.convs, src_type, strict=True) if other == kind]
        if sent:
            found[kind] = project_channels(x_nD, *(conv.neighbour for conv in sent))
    return found


def add_own(
    sum_VO: Tensor,
    mean_sum: RelationMeanSum,
    dst_type: Sequence[int],
    inputs: Mapping[int, Slot],
    x_VD: Features,
    *,
    mean: bool,
) -> Tensor:
    """Return ``[V, O]``: rows plus the sum, or mean, of what the in-relations of a type make of the node itself.

    One product for each type that a relation enters; the rows of others stay as they are.

    Args:
        sum_VO: What is added to.
        mean_sum: The convolutions.
        dst_type: Destination type of each relation.
        inputs: Rows of each type, and columns of its input.
        x_VD: Input of all nodes.
        mean: Whether to divide by the number of relations.
    """
    slots, weights, biases = list[Slot](), list[Tensor](), list[Tensor]()
    biased = any(conv.itself.bias is not None for conv in mean_sum.convs)
    for kind, slot in inputs.items():
        own = [conv.itself for conv, other in zip(mean_sum.convs, dst_type, strict=True) if other == kind]
        if own:
            scale = 1 / len(own) if mean else 1
            slots.append(slot)
            weights.append(sum_tensors([each.weight for each in own]) * scale)
            given = [each.bias for each in own if each.bias is not None]
            biases += [sum_tensors(given) * scale if given else weights[0].new_zeros(weights[0].shape[1])] * biased
    return project_slots(x_VD, slots, weights, biases, sum_VO) if slots else sum_VO


def choose_order(convs: Mapping[EdgeType, Conv]) -> Mapping[EdgeType, Conv]:
    """Return convolutions of relations in the order, projection or mean first, that makes source rows narrower.

    A node sends its input once for all relations, but the projections of each. Convolutions stay as they are if one of
    them takes no mean, or if its order was asked for.
    """
    free = [conv for conv in convs.values() if isinstance(conv, MeanConv) and not conv.order_is_given]
    if len(free) < len(convs):
        return convs
    projected = Counter[str]()
    for (source, _, _), conv in convs.items():
        projected[source] += conv.spec.out_features
    if max(projected.values()) < free[0].spec.in_features:
        return {edge_type: conv.with_projection_first() or conv for edge_type, conv in convs.items()}
    return {edge_type: conv.aggregate_first() or conv for edge_type, conv in convs.items()}


def sum_tensors(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of at least one tensor, in the given order."""
    total, *others = parts
    for part in others:
        total = total + part
    return total


def with_relations(block: Block) -> Block:
    """Return a block whose edges have relations: 0 where the graph has none, which counts as one."""
    edges = block.edges
    if edges.relation is not None:
        return block
    slot = "edges of one relation"
    if slot not in edges.cache:
        relation = torch.zeros(edges.num_edges, dtype=torch.int8, device=edges.indptr.device)
        edges.cache[slot] = replace(edges, relation=relation, cache={})
    related = cast(Edges, edges.cache[slot])
    degree_E = torch.repeat_interleave(block.dst_degree, edges.indptr.diff(), output_size=edges.num_edges)
    return replace(block, edges=related, relation_degree=degree_E)
