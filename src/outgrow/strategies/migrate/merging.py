"""How many time steps models travel in: fewer as long as epochs get faster (HopGNN §5.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from types import NoneType


@dataclass(frozen=True, kw_only=True)
class TimeStepMerger:
    """What is known after some epochs. The same on all workers, since all hear the same seconds.

    Attributes:
        size: Number of workers, and of time steps at first.
        dropped: How many time steps the next epoch does without.
        settled: Whether that stays so.
        fastest: Seconds of the fastest epoch so far; None before the first.
        log: Time steps and seconds of each epoch until it was settled.
    """

    size: int
    dropped: int = 0
    settled: bool = False
    fastest: float | None = None
    log: tuple[tuple[int, float], ...] = field(default=())

    @property
    def time_steps(self) -> int:
        """In how many time steps the next epoch trains a batch."""
        return self.size - self.dropped

    @property
    def may_drop(self) -> bool:
        """Whether this or a later epoch may do without a time step."""
        return self.dropped > 0 or not self.settled

    def after_epoch(self, seconds: float) -> TimeStepMerger:
        """What is known after one more epoch, which took so many seconds.

        As long as epochs get faster the next one has a time step less, down to one. After an epoch that was not faster
        than the one before, the number goes back to that one's, for good.
        """
        if self.settled:
            return self
        told = replace(self, log=(*self.log, (self.time_steps, seconds)))
        if self.fastest is not None and seconds >= self.fastest:
            return replace(told, dropped=self.dropped - 1, settled=True)
        last = self.time_steps == 1
        return replace(told, fastest=seconds, dropped=self.dropped + (not last), settled=last)

    def as_hint(self) -> dict[str, object]:
        """As plain values."""
        return asdict(self)

    @staticmethod
    def from_hint(hint: object, size: int) -> TimeStepMerger:
        """What is known from a run that was interrupted; nothing, if its hint is of other workers or is none."""
        fresh = TimeStepMerger(size=size)
        if not isinstance(hint, Mapping):
            return fresh
        try:
            known = TimeStepMerger(**{**hint, "log": tuple((int(steps), float(took)) for steps, took in hint["log"])})
        except (TypeError, ValueError, KeyError, OverflowError):
            return fresh
        return known if known._is_possible(size) else fresh

    def _is_possible(self, size: int) -> bool:
        """Whether a run on so many workers may have come to this."""
        plain = type(self.size) is int and type(self.dropped) is int and type(self.settled) is bool
        if not plain or self.size != size or type(self.fastest) not in (int, float, NoneType):
            return False
        unjudged = self.fastest is None
        return 0 <= self.dropped < size and (self.settled or unjudged == (self.dropped == 0))
