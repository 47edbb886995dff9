"""Sums over relations of means times a matrix each, without an aggregate per relation.

Letters as in `outgrow.nn.layer`; ``R`` relations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.nn.convolution import CommNetConv, SAGEConv
from outgrow.nn.layer import Conv, Features
from outgrow.nn.projection import project_rows
from outgrow.ops.aggregation.base import Aggregation
from outgrow.ops.aggregation.relation_matmul import relation_matmul_sum
from outgrow.ops.aggregation.relational import relation_mean_weight

MeanConv = SAGEConv | CommNetConv


class RelationMatrixSum(Aggregation):
    """``out[v] = sum over in-edges e of weight[e] * src[source of e] @ matrix of e's relation``. Final.

    Args:
        convs: Convolution of each relation, which takes the mean of its sources' input.
    """

    sliceable = False
    additive = True
    has_parameters = True

    def __init__(self, convs: Sequence[MeanConv]) -> None:
        self.convs = convs

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Return ``[Vd, 1, O]`` of one source channel and one weight per edge; see `Aggregation`."""
        assert weight_EK is not None
        matrix_R1DO = torch.stack([conv.neighbour.weight for conv in self.convs])[:, None]
        return relation_matmul_sum(with_relations(block).edges, src_VsCF[:, 0], weight_EK, matrix_R1DO)[:, None]

    def edge_weight(self, block: Block, dtype: torch.dtype) -> Tensor:
        """Return ``[E, 1]``: one over the destination's in-edges of the same relation."""
        return relation_mean_weight(with_relations(block), len(self.convs), dtype)


def means_of_input(convs: Sequence[Conv]) -> list[MeanConv] | None:
    """Return convolutions if all of them take means of their sources' input, else None."""
    found = [conv for conv in convs if isinstance(conv, MeanConv) and conv.spec.source_is_input]
    return found if len(found) == len(convs) else None


def sum_own_projections(convs: Sequence[MeanConv], x_VD: Features) -> Tensor:
    """Return ``[V, O]``: the sum of what convolutions make of the nodes themselves, by one product."""
    weight_DO = sum_tensors([conv.itself.weight for conv in convs])
    biases: list[Tensor] = [conv.itself.bias for conv in convs if conv.itself.bias is not None]
    return project_rows(x_VD, weight_DO, sum_tensors(biases) if biases else None)


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
