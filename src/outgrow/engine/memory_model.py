"""Bytes of whole-layer training."""

from __future__ import annotations

from collections.abc import Sequence

from outgrow.engine.layer_plan import LayerPlan
from outgrow.nn.pyg import PyGAggregation

FIXED_BYTES = 80 << 20
"""Kernels that are loaded when they are first called, staging of the threads that read, and their stacks."""
INDEX_BYTES = 8
_PER_SCORE = 3
"""Numbers that attention holds for each edge and head: weights before and after dropout, and one more in between."""


def full_graph_bytes(
    base: int, layer_plans: Sequence[LayerPlan], num_own: int, num_sources: int, num_edges: int, number_bytes: int
) -> int:
    """The most that a worker will have resident when it trains everything at once.

    Args:
        base: What it has now.
        layer_plans: The layers.
        num_own: Own nodes.
        num_sources: Nodes that edges into these come from, and they themselves.
        num_edges: In-edges of own nodes.
        number_bytes: Of a number of a row.
    """
    total = layer_plans[0].layer.spec.in_features * num_sources + layer_plans[0].encoder_width * num_own
    for each in layer_plans:
        widths = each.layer.spec
        sources = 2 * num_sources * each.source_width
        total += sources + 2 * num_own * (each.aggregate_width + 2 * widths.out_features + target_width(each))
        total += 2 * num_edges * numbers_per_edge(each)
    return base + FIXED_BYTES + total * number_bytes + num_edges * 3 * INDEX_BYTES


def target_width(layer_plan: LayerPlan) -> int:
    """Numbers that a layer computes of each destination before it aggregates."""
    channels, columns = layer_plan.layer.spec.target
    return channels * columns


def numbers_per_edge(layer_plan: LayerPlan) -> int:
    """Numbers that a layer holds for each edge at a time."""
    widths = layer_plan.layer.spec
    if isinstance(layer_plan.layer.conv.aggregation, PyGAggregation):
        return widths.in_features + widths.out_features + 2
    return max(1, _PER_SCORE * widths.score, widths.aggregate[0])
