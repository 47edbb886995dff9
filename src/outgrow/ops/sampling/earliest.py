"""The ``k`` smallest of a row's numbers, in a heap whose root is the largest of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import serial_kernel
from outgrow.ops.sampling.bitset import Bits, add_bit, drain_bitset, mark_word
from outgrow.ops.sampling.uniform import Ids


@serial_kernel
def heap_push(times: NDArray[np.float64], places: Ids, at: int, time: float, place: int) -> None:
    """Add to a heap of ``at`` edges whose root is the latest."""
    # The latest time at the root: it is what each further edge is compared with.
    while at > 0 and times[(at - 1) // 2] < time:
        times[at], places[at] = times[(at - 1) // 2], places[(at - 1) // 2]
        at = (at - 1) // 2
    times[at], places[at] = time, place


@serial_kernel
def heap_replace(times: NDArray[np.float64], places: Ids, time: float, place: int) -> None:
    """Replace the latest edge, the root of the heap."""
    at, child = 0, 1
    while child < len(times):
        if child + 1 < len(times) and times[child + 1] > times[child]:
            child += 1
        if times[child] <= time:
            break
        times[at], places[at] = times[child], places[child]
        at, child = child, 2 * child + 1
    times[at], places[at] = time, place


@serial_kernel
def write_ascending(places: Ids, most: int, origin: int, bits: Bits, chosen: Ids, at: int) -> int:
    """Write places of a row of ``most`` edges that starts at edge ``origin`` to ``chosen[at:]``, ascending.

    Returns the position after the last.
    """
    words, groups = bits
    # A heap is in no order; passing through the set sorts it.
    for place in places:
        mark_word(groups, add_bit(words, 0, np.uint64(place)))
    return drain_bitset(words, groups, most, origin, chosen, at)
