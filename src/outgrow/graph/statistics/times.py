"""What times a graph has."""

from __future__ import annotations

from torch import Tensor

from outgrow.graph.topology import NO_TIME

_BLOCK = 1 << 20


def summarize_times(times: Tensor | None) -> dict[str, int] | None:
    """Return the ``earliest`` and ``latest`` of times, and how many are ``missing``; None if there are none at all.

    Args:
        times: ``[n]`` int64, `NO_TIME` for a missing one; read in blocks.
    """
    if times is None:
        return None
    missing, ends = 0, list[tuple[int, int]]()
    for first in range(0, len(times), _BLOCK):
        block = times[first : first + _BLOCK]
        known = block[block != NO_TIME]
        missing += len(block) - len(known)
        if len(known):
            ends.append((int(known.min()), int(known.max())))
    found = {"earliest": min(low for low, _ in ends), "latest": max(high for _, high in ends)} if ends else {}
    return {**found, "missing": missing}
