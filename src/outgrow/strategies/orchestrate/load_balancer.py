"""How many nodes are hot, and which of them the device computes after all: found out epoch by epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

_LITTLE = 0.01  # of an epoch: so long the device may wait for the CPU


@dataclass(frozen=True, kw_only=True)
class HotRatioTuner:
    """What is known after some epochs, on one worker. The hottest nodes are computed by the CPU.

    Attributes:
        num_hot: How many nodes are hot.
        max_hot: So many may be.
        is_growing: Whether their number is to double as long as epochs get faster.
        num_cached: How many of them, the least hot, the device computes as if they were cold, and keeps their features.
        previous_hot: The number before the last doubling, to go back to.
        fastest: Seconds of the fastest epoch so far; None before the first that is judged.
        is_warm: Whether kernels and caches are warm: the first epoch is not judged.
        log: Of each epoch how many nodes were hot, how many of them kept, and its seconds and those of waiting.
    """

    num_hot: int
    max_hot: int
    is_growing: bool = False
    num_cached: int = 0
    previous_hot: int = 0
    fastest: float | None = None
    is_warm: bool = False
    log: tuple[tuple[int, int, float, float], ...] = field(default=())

    @property
    def on_cpu(self) -> int:
        """How many nodes the CPU computes."""
        return self.num_hot - self.num_cached

    def after_epoch(self, seconds: float, wait_seconds: float, free_rows: int) -> HotRatioTuner:
        """What is known after one more epoch.

        Their number doubles as long as epochs get faster; after one that was not faster it goes back, for good. Then
        nodes move from the CPU to the device as long as that waits for the CPU and has room (NeutronOrch §4.1.3): such
        a share of the CPU's as the device has waited of the epoch.

        Args:
            seconds: What the epoch took.
            wait_seconds: How long the device has waited for the CPU in it.
            free_rows: Rows that the device could keep besides.
        """
        told = replace(self, log=(*self.log, (self.num_hot, self.num_cached, seconds, wait_seconds)), is_warm=True)
        if not self.is_warm:
            return told
        if self.is_growing:
            return told._increase_hot(seconds)
        idle = wait_seconds / seconds
        moved = min(free_rows, math.ceil(idle * self.on_cpu)) if idle > _LITTLE else 0
        return replace(told, num_cached=self.num_cached + moved)

    def _increase_hot(self, seconds: float) -> HotRatioTuner:
        if self.fastest is not None and seconds >= self.fastest:
            return replace(self, num_hot=self.previous_hot, is_growing=False)
        doubled = min(2 * self.num_hot, self.max_hot)
        return replace(
            self, fastest=seconds, previous_hot=self.num_hot, num_hot=doubled, is_growing=doubled > self.num_hot
        )
