"""What a strategy is estimated to take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outgrow.core.types import Tier
from outgrow.planning.traffic import Traffic
from outgrow.strategies.base import Strategy


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of an epoch, on the worker that takes longest.

    Attributes:
        name: What it is, in words.
        seconds: How long it takes alone.
        hidden: How much of that passes while something else is done.
    """

    name: str
    seconds: float
    hidden: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What training takes.

    Attributes:
        strategy: How it is trained.
        workers: On how many workers.
        traffic: Bytes that cross links.
        peak: Most bytes of one worker by tier.
        parts: Of an epoch, without evaluation.
        once: Seconds before the first epoch.
    """

    strategy: Strategy
    workers: int
    traffic: Traffic
    peak: Mapping[Tier, int]
    parts: tuple[Part, ...]
    once: float

    @property
    def seconds(self) -> float:
        """Of an epoch."""
        return sum(part.seconds - part.hidden for part in self.parts)
