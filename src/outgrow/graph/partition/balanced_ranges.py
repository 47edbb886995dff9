"""Contiguous ranges of about equal cost."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def balanced_range_ends(cost_before: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Return ``[count + 1]``: the ends of ``count`` non-empty ranges of items, with costs as equal as possible.

    A range costs at most its even share plus the cost of one item.

    Args:
        cost_before: ``[N + 1]``, ascending; the total cost of the items before each item, then of all items.
        count: 1 to ``N``.
    """
    num_items = len(cost_before) - 1
    assert 1 <= count <= num_items
    first = int(cost_before[0])
    total = int(cost_before[-1] - cost_before[0])
    # Python integers: the product of a cost and a range number may exceed 64 bits.
    target = np.array([first + total * i // count for i in range(count + 1)], dtype=np.int64)
    above = np.searchsorted(cost_before, target)
    below = np.maximum(above - 1, 0)
    nearer = target - cost_before[below] < cost_before[above] - target
    ends = np.where(nearer, below, above)
    steps = np.arange(count + 1)
    ends[0] = 0
    ends[-1] = num_items
    # Ends that rise by at least 1: one heavy item would otherwise leave empty ranges behind it.
    ends = np.maximum.accumulate(ends - steps) + steps
    # From the other side: enough items must remain for the ranges that follow.
    return np.minimum(ends, num_items - count + steps)


def range_of_each(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``[N]``: the range of each item, given the ends of the ranges."""
    return np.repeat(np.arange(len(ends) - 1), np.diff(ends))
