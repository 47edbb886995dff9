"""Mutants of layers: each gives something else when the work on a graph is cut, and the layer contract must notice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from layer_table import CONVS, IN, OUT, layer_of
from torch import Tensor

import layer_plans
from layer_plans import Plan
from outgrow.core.block import Block
from outgrow.nn import Epilogue, GCNConv, Layer, NodeMessages, SAGEConv
from outgrow.ops.csc import in_degree
from outgrow.ops.edge_weight import mean_weight, symmetric_weight
from outgrow.ops.rng import dropout

KEY = 0xFEDCBA9876543210
"""Of all draws of the layer contract."""


class StreamDropout(torch.nn.Module):
    """Dropout from torch's stream of random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x, 0.3)


class BlockMeanSAGE(SAGEConv):
    """Divides by the number of in-edges in the block."""

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor:
        return mean_weight(replace(block, dst_degree=in_degree(block.edges.indptr, None)), torch.float64)


class BlockDegreeGCN(GCNConv):
    """Normalises a source by its number of out-edges in the block, as if that were its degree."""

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor:
        degree = torch.bincount(block.edges.indices, minlength=block.edges.num_src).double()
        return symmetric_weight(replace(block, src_degree=degree), torch.float64)


class PositionKeyedSAGE(SAGEConv):
    """Its draws are keyed, but by the position of a row instead of by its node."""

    def update(self, x_VD: Tensor, aggregate_VCF: Tensor) -> Tensor:  # type: ignore[override]
        return dropout(super().update(x_VD, aggregate_VCF), torch.arange(len(x_VD)), KEY, 0.5)


def make_stream_dropout() -> Layer:
    """A layer that ends in `StreamDropout`."""
    layer = layer_of(CONVS["gcn"](), "bare")
    layer.epilogue = Epilogue(activation=StreamDropout())
    return layer


class Mutant(NamedTuple):
    """A layer that is broken, or that is run in a way which it does not promise.

    Attributes:
        make: Makes the layer.
        plans: Ways to cut the work, in each of which it must be found.
        breaks: What is wrong.
        promised: Whether the layer promises these ways.
    """

    make: Callable[[], Layer]
    plans: tuple[Plan, ...]
    breaks: str
    promised: bool = True


CUT = (layer_plans.chunks, layer_plans.gathered)
PARTS = (layer_plans.edge_parts,)
MUTANTS: Mapping[str, Mutant] = {
    "dropout_from_a_stream": Mutant(
        make_stream_dropout, CUT, "Dropout draws from torch's stream of random numbers, not by a key."
    ),
    "dropout_keyed_by_position": Mutant(
        lambda: layer_of(PositionKeyedSAGE(IN, OUT), "bare"), CUT, "Draws are keyed by the position of a row."
    ),
    "mean_over_in_edges_of_the_block": Mutant(
        lambda: layer_of(BlockMeanSAGE(IN, OUT), "bare"), PARTS, "A sum is divided by the in-degree in the block."
    ),
    "out_degrees_of_the_block": Mutant(
        lambda: layer_of(BlockDegreeGCN(IN, OUT), "bare"),
        (*PARTS, *CUT),
        "A source is normalised by its number of out-edges in the block.",
    ),
    **{
        name: Mutant(partial(lambda conv: layer_of(CONVS[conv](), "bare"), conv), PARTS, breaks, promised=False)
        for name, conv, breaks in (
            ("softmax_taken_for_a_sum", "gat-averaged", "Edges of a destination are weighed part by part."),
            ("maximum_taken_for_a_sum", "sage-max", "Maxima over parts of the edges of a destination are added up."),
            ("relations_counted_in_parts", "rgcn-aggregate-first", "Edges of a relation are counted part by part."),
            ("diagonals_counted_in_parts", "rgcn-diagonal", "Edges of a diagonal relation are counted part by part."),
        )
    },
}
"""The last ones say why `edge_parts` is not promised to every layer."""
