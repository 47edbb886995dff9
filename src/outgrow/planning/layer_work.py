"""What layers compute in a step, and how long that takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from outgrow.planning.pace import Pace
from outgrow.planning.sizes import LayerSizes, Sizes
from outgrow.planning.workload import Workload

_TOUCHED = 10
"""How often a number of a layer's output is read or written in a step besides: norm, activation, dropout, gradients."""
_CALLS = 60
"""Small steps of a layer in a step of training."""
_SCORE_PASSES = 8
"""How often a score of an edge is read or written in a step."""


class LayerWork(NamedTuple):
    """What one worker computes of a layer.

    Attributes:
        sources: Rows that sources give.
        destinations: Rows that are computed.
        edges: Edges between them.
    """

    sources: float
    destinations: float
    edges: float


class LayerSeconds(NamedTuple):
    """How long that takes, forward and backward."""

    products: float
    sums: float
    other: float

    @property
    def all(self) -> float:
        """Of everything."""
        return self.products + self.sums + self.other


def step_seconds(work: Workload, pace: Pace, layers: Sequence[LayerWork], *, kept: bool) -> list[LayerSeconds]:
    """Of each layer of a step, forward and backward.

    Rows are multiplied by each matrix once, and twice in the backward pass; of the first layer only the gradient of the
    matrix is wanted. A sum is done once in each direction, but not for the gradient of raw features.

    Args:
        work: What is trained.
        pace: How fast.
        layers: What is computed, from the bottom up.
        kept: Whether a constant aggregate is.
    """
    return [
        _seconds(layer, work.graph, pace, done, first=index == 0, kept=kept)
        for index, (layer, done) in enumerate(zip(work.model.layers, layers, strict=True))
    ]


def _seconds(layer: LayerSizes, graph: Sizes, pace: Pace, work: LayerWork, *, first: bool, kept: bool) -> LayerSeconds:
    widths = layer.widths
    turns = 2 if first else 3
    at_source = 0 if widths.raw_source else widths.in_features * layer.source
    narrow = min(widths.in_features, widths.out_features)
    if first and graph.sparse:
        products = turns * pace.sums((work.sources + work.destinations) * graph.row_entries, widths.out_features)
    else:
        products = turns * (
            pace.products(work.sources, at_source, narrow)
            + pace.products(work.destinations, max(0, layer.weights - at_source), narrow)
        )
    directions = 0 if kept and layer.constant else 1 if first and widths.raw_source else 2
    other = pace.passes(_TOUCHED * work.destinations * widths.out_features) + pace.calls(_CALLS)
    other += pace.passes(_SCORE_PASSES * work.edges * widths.score)
    return LayerSeconds(products, directions * pace.sums(work.edges, layer.source), other)
