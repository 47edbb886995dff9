"""Bytes of whole-layer training."""

from __future__ import annotations

from collections.abc import Sequence

from outgrow.engine.layer_plan import Traits
from outgrow.nn.pyg import Opaque

FIXED_BYTES = 80 << 20
"""Kernels that are loaded when they are first called, staging of the threads that read, and their stacks."""
INDEX_BYTES = 8
_PER_SCORE = 3
"""Numbers that attention holds for each edge and head: weights before and after dropout, and one more in between."""


def whole_bytes(
    base: int, traits: Sequence[Traits], num_own: int, num_sources: int, num_edges: int, number_bytes: int
) -> int:
    """The most that a worker will have resident when it trains everything at once.

    Args:
        base: What it has now.
        traits: The layers.
        num_own: Own nodes.
        num_sources: Nodes that edges into these come from, and they themselves.
        num_edges: In-edges of own nodes.
        number_bytes: Of a number of a row.
    """
    total = traits[0].layer.widths.in_features * num_sources + traits[0].encoded * num_own
    for each in traits:
        widths = each.layer.widths
        sources = 2 * num_sources * each.source_width
        total += sources + 2 * num_own * (each.aggregate_width + 2 * widths.out_features + target_width(each))
        total += 2 * num_edges * numbers_per_edge(each)
    return base + FIXED_BYTES + total * number_bytes + num_edges * 3 * INDEX_BYTES


def target_width(traits: Traits) -> int:
    """Numbers that a layer computes of each destination before it aggregates."""
    channels, columns = traits.layer.widths.target
    return channels * columns


def numbers_per_edge(traits: Traits) -> int:
    """Numbers that a layer holds for each edge at a time."""
    widths = traits.layer.widths
    if isinstance(traits.layer.conv.aggregation, Opaque):
        return widths.in_features + widths.out_features + 2
    return max(1, _PER_SCORE * widths.score, widths.aggregate[0])
