"""How many nodes are hot, and which of them the device computes after all: found out epoch by epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

_LITTLE = 0.01  # of an epoch: so long the device may wait for the CPU


@dataclass(frozen=True, kw_only=True)
class Balance:
    """What is known after some epochs, on one worker. The hottest nodes are computed by the CPU.

    Attributes:
        hot: How many nodes are hot.
        most: So many may be.
        growing: Whether their number is to double as long as epochs get faster.
        kept: How many of them, the least hot, the device computes as if they were cold, and keeps their features.
        before: The number before the last doubling, to go back to.
        fastest: Seconds of the fastest epoch so far; None before the first that is judged.
        warm: Whether kernels and caches are warm: the first epoch is not judged.
        log: Of each epoch how many nodes were hot, how many of them kept, and its seconds and those of waiting.
    """

    hot: int
    most: int
    growing: bool = False
    kept: int = 0
    before: int = 0
    fastest: float | None = None
    warm: bool = False
    log: tuple[tuple[int, int, float, float], ...] = field(default=())

    @property
    def on_cpu(self) -> int:
        """How many nodes the CPU computes."""
        return self.hot - self.kept

    def after(self, seconds: float, waited: float, room: int) -> Balance:
        """What is known after one more epoch.

        Their number doubles as long as epochs get faster; after one that was not faster it goes back, for good. Then
        nodes move from the CPU to the device as long as that waits for the CPU and has room (NeutronOrch §4.1.3): such
        a share of the CPU's as the device has waited of the epoch.

        Args:
            seconds: What the epoch took.
            waited: How long the device has waited for the CPU in it.
            room: Rows that the device could keep besides.
        """
        told = replace(self, log=(*self.log, (self.hot, self.kept, seconds, waited)), warm=True)
        if not self.warm:
            return told
        if self.growing:
            return told._grown(seconds)
        idle = waited / seconds
        moved = min(room, math.ceil(idle * self.on_cpu)) if idle > _LITTLE else 0
        return replace(told, kept=self.kept + moved)

    def _grown(self, seconds: float) -> Balance:
        if self.fastest is not None and seconds >= self.fastest:
            return replace(self, hot=self.before, growing=False)
        doubled = min(2 * self.hot, self.most)
        return replace(self, fastest=seconds, before=self.hot, hot=doubled, growing=doubled > self.hot)
