"""What a strategy is estimated to take."""

from __future__ import annotations

from dataclasses import dataclass

from outgrow.planning.traffic import Traffic
from outgrow.strategies.base import Strategy


@dataclass(frozen=True, kw_only=True)
class EpochPart:
    """A part of an epoch of training, on one worker.

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
        traffic: Bytes that cross links.
        parts: Of an epoch, without evaluation.
        peak_bytes: The most that the DEVICE tier of a worker holds.
        chunks: In how many chunks `offload` trains that chooses by itself, 0 for all at once; None of others.
    """

    strategy: Strategy
    traffic: Traffic
    parts: tuple[EpochPart, ...]
    peak_bytes: int
    chunks: int | None = None

    @property
    def epoch_seconds(self) -> float:
        """Of an epoch."""
        return sum(part.seconds - part.hidden for part in self.parts)
