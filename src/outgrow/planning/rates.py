"""How much a machine does in a second."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LinkRate:
    """How fast bytes cross a link, one worker's at a time unless said otherwise.

    Attributes:
        bytes_per_second: Of a long message.
        message_seconds: How long a message of no bytes takes.
    """

    bytes_per_second: float
    message_seconds: float = 0.0

    def seconds(self, num_bytes: float, messages: float = 1) -> float:
        """How long so many bytes take, in so many messages."""
        return num_bytes / self.bytes_per_second + messages * self.message_seconds


class ByWidth:
    """A rate that depends on how many columns rows have. Final.

    Args:
        per_second: The rate at some widths, which are positive.
    """

    def __init__(self, per_second: Mapping[int, float]) -> None:
        self.per_second = dict(sorted(per_second.items()))

    def at(self, width: float) -> float:
        """The rate at a width: on the line between the nearest two, both axes logarithmic; beyond them, theirs."""
        widths, rates = list(self.per_second), list(self.per_second.values())
        right = bisect_left(widths, width)
        if right == 0 or right == len(widths):
            return rates[min(right, len(widths) - 1)]
        low, high = widths[right - 1], widths[right]
        share = math.log(width / low) / math.log(high / low)
        return math.exp((1 - share) * math.log(rates[right - 1]) + share * math.log(rates[right]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByWidth) and self.per_second == other.per_second

    def __hash__(self) -> int:
        return hash(tuple(self.per_second.items()))

    def __repr__(self) -> str:
        return f"ByWidth({self.per_second})"
