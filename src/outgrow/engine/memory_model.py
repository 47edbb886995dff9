"""Estimated memory of training with the rows of whole layers in memory."""

from __future__ import annotations

from collections.abc import Sequence

from outgrow.engine.layer_plan import LayerPlan
from outgrow.nn.pyg import PyGAggregation

FIXED_BYTES = 80 << 20
"""Kernels loaded on their first call, staging buffers of reading threads, and their stacks."""
INDEX_BYTES = 8
_PER_SCORE = 3
"""Numbers of attention for each edge and head: weights before and after dropout, and a temporary one."""


def full_graph_bytes(
    base: int, layer_plans: Sequence[LayerPlan], num_own: int, num_sources: int, num_edges: int, number_bytes: int
) -> int:
    """Return an upper bound of a worker's resident bytes when it trains everything at once.

    Args:
        base: Bytes that it holds already.
        layer_plans: The layers.
        num_own: Number of own nodes.
        num_sources: Number of own nodes and sources of their in-edges together.
        num_edges: Number of in-edges of own nodes.
        number_bytes: Bytes of a number of a row.
    """
    total = layer_plans[0].layer.spec.in_features * num_sources + layer_plans[0].encoder_width * num_own
    for each in layer_plans:
        widths = each.layer.spec
        # Twice: values and their gradients.
        sources = 2 * num_sources * each.source_width
        total += sources + 2 * num_own * (each.aggregate_width + 2 * widths.out_features + target_width(each))
        # Attention, weights or a foreign layer's rows, again with gradients.
        total += 2 * num_edges * numbers_per_edge(each)
    # Three indices for each edge: its source, and source and number in the transpose.
    return base + FIXED_BYTES + total * number_bytes + num_edges * 3 * INDEX_BYTES


def target_width(layer_plan: LayerPlan) -> int:
    """Return the numbers that a layer computes for each destination before it aggregates."""
    channels, columns = layer_plan.layer.spec.target
    return channels * columns


def numbers_per_edge(layer_plan: LayerPlan) -> int:
    """Return the numbers that a layer holds for each edge at a time."""
    widths = layer_plan.layer.spec
    if isinstance(layer_plan.layer.conv.aggregation, PyGAggregation):
        return widths.in_features + widths.out_features + 2
    return max(1, _PER_SCORE * widths.score, widths.aggregate[0])
