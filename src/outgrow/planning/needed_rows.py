"""Which rows the layers of an evaluation by `full` compute, as `outgrow.inference.needed_rows` decides."""

from __future__ import annotations

from typing import NamedTuple

from outgrow.engine.last_layer import FEW_ROWS
from outgrow.inference.modes import AUTO
from outgrow.inference.needed_rows import find_first_narrow_layer
from outgrow.planning.workload import Workload

_EDGE_BYTES = 20
"""Bytes of an in-edge of rows that are computed alone: its source, its id, its weight and that of the layer."""


class NeededShares(NamedTuple):
    """Shares of what a layer has for all nodes.

    Attributes:
        sources: Of the nodes, those whose source rows are computed.
        rows: Of the nodes, those whose output is computed.
        edges: Of the edges, those that are summed over.
    """

    sources: float = 1.0
    rows: float = 1.0
    edges: float = 1.0


def evaluated_shares(work: Workload, workers: int) -> list[NeededShares]:
    """Return what `full` computes of each layer for validation nodes, by so many workers, each the same share."""
    layers = work.model.layers
    shares = [NeededShares()] * len(layers)
    if work.links is not None or work.evaluation[0] != AUTO or len(layers) == 1:
        return shares
    # Of one layer more, whose output are the features that are needed.
    found = work.sampling.scored_neighborhood(len(layers) + 1, with_test=False)
    inputs, *rows = (float(count) / max(1, work.graph.nodes) for count in found.rows)
    if rows[-1] > FEW_ROWS:
        return shares
    _, *edges = (float(count) / max(1, work.graph.edges) for count in found.edges)
    first = len(layers) - 1
    if workers == 1:
        first = find_first_narrow_layer(rows, [layer.edge_dim for layer in layers])
    below = inputs if first == 0 and inputs <= FEW_ROWS and not work.model.source_is_features else 1.0
    for index in range(first, len(layers)):
        shares[index] = NeededShares(below, rows[index], edges[index])
        below = rows[index]
    return shares


def evaluated_edge_bytes(work: Workload, workers: int, edges: float) -> float:
    """Return the bytes of the in-edges of rows that evaluations compute alone, of a worker with so many edges."""
    of_edge = _EDGE_BYTES + work.graph.edge_row_bytes
    return sum(of_edge * edges * each.edges for each in evaluated_shares(work, workers) if each.rows < 1)
