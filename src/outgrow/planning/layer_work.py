"""What layers compute in a step, and how long that takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from outgrow.planning.pace import Pace
from outgrow.planning.sizes import LayerSizes, Sizes
from outgrow.planning.workload import Workload

_COLUMNS_OF_SCORE = 8
"""The gradient of a score is a product of so many columns where the rate of scores is measured."""
_MESSAGE_PASSES = 8
"""How often a number of the message of an edge is made, read or summed in a step, where messages are held."""


class LayerWork(NamedTuple):
    """What one worker computes of a layer.

    Attributes:
        sources: Rows that sources give.
        destinations: Rows that are computed.
        edges: Edges between them.
        attended: Share of these whose attention it computes.
    """

    sources: float
    destinations: float
    edges: float
    attended: float = 1.0


class LayerSeconds(NamedTuple):
    """How long that takes, forward and backward."""

    products: float
    sums: float
    scores: float
    other: float


def step_seconds(
    work: Workload, pace: Pace, layers: Sequence[LayerWork], *, kept: bool, slices: int = 1
) -> list[LayerSeconds]:
    """Of each layer of a step, forward and backward.

    Rows are multiplied by each matrix once, and twice in the backward pass; of the first layer only the gradient of the
    matrix is wanted. A sum is done once in each direction, but not for the gradient of raw features.

    Args:
        work: What is trained.
        pace: How fast.
        layers: What is computed, from the bottom up.
        kept: Whether a constant aggregate is.
        slices: Into how many slices the columns of sums are dealt out.
    """
    found = [
        _seconds(layer, work.graph, pace, done, first=index == 0, kept=kept, slices=slices)
        for index, (layer, done) in enumerate(zip(work.model.layers, layers, strict=True))
    ]
    encoder = 2 * _multiplied(work.graph, pace, layers[0].sources, work.model.encoder, work.model.layers[0], raw=True)
    return [found[0]._replace(products=found[0].products + encoder), *found[1:]]


def _seconds(
    layer: LayerSizes, graph: Sizes, pace: Pace, work: LayerWork, *, first: bool, kept: bool, slices: int
) -> LayerSeconds:
    widths = layer.widths
    turns = 2 if first else 3
    products = turns * sum(
        _multiplied(graph, pace, rows, weights, layer, raw=first)
        for rows, weights in zip((work.sources, work.destinations), layer.weights, strict=True)
    )
    directions = 0 if kept and layer.constant else 1 if first and widths.raw_source else 2
    other = pace.finished(work.destinations * widths.out_features) + pace.layers(1)
    columns = widths.source[0] * widths.source[1] / slices
    sums = directions * pace.sums(work.edges, columns, work.sources * slices)
    scores = 0 if layer.fixed else max(widths.score * work.attended, columns / _COLUMNS_OF_SCORE)
    other += pace.finished(_MESSAGE_PASSES * work.edges * layer.edge_numbers)
    return LayerSeconds(products, sums, pace.scored(work.edges * scores), other)


def _multiplied(graph: Sizes, pace: Pace, rows: float, weights: int, layer: LayerSizes, *, raw: bool) -> float:
    """Rows by matrices; sparse ones as sums of the matrix's rows."""
    if not weights:
        return 0.0
    if raw and graph.sparse:
        return pace.sums(rows * graph.row_entries, weights / graph.features, graph.features)
    return pace.products(rows, weights, min(layer.widths.in_features, layer.widths.out_features))
