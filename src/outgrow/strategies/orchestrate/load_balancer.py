"""Tuning of the number of hot nodes, and of those that the device computes after all, epoch by epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

_LITTLE = 0.01  # share of an epoch that the device may wait for the CPU


@dataclass(frozen=True, kw_only=True)
class HotRatioTuner:
    """The state of tuning after some epochs, on one worker. The CPU computes the hottest nodes.

    Attributes:
        num_hot: Number of hot nodes.
        max_hot: Largest number of hot nodes.
        is_growing: Whether the number doubles as long as epochs get faster.
        num_cached: Number of hot nodes, the least hot, that the device computes like cold ones, with cached
            features.
        previous_hot: The number before the last doubling, to return to.
        fastest: Seconds of the fastest epoch so far; None before the first that is judged.
        is_warm: Whether kernels and caches are warm; the first epoch is not judged.
        log: For each epoch: hot nodes, cached ones among them, seconds, and seconds of waiting.
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
        """Number of nodes that the CPU computes."""
        return self.num_hot - self.num_cached

    def after_epoch(self, seconds: float, wait_seconds: float, free_rows: int) -> HotRatioTuner:
        """Return the state after one more epoch.

        The number of hot nodes doubles as long as epochs get faster; after an epoch that was not faster it
        returns to the previous number and stays there. From then on, nodes move from the CPU to the device as
        long as the device waits for the CPU and has room (NeutronOrch §4.1.3): the share of the CPU's nodes
        equals the share of the epoch that the device has waited.

        Args:
            seconds: Seconds of the epoch.
            wait_seconds: Seconds in which the device waited for the CPU.
            free_rows: Further rows that the device could cache.
        """
        logged = replace(self, log=(*self.log, (self.num_hot, self.num_cached, seconds, wait_seconds)), is_warm=True)
        if not self.is_warm:
            return logged
        # One number at a time: while growth is tested, waiting says nothing about the balance.
        if self.is_growing:
            return logged._increase_hot(seconds)
        # The device idles for this share because the CPU has about this share too much.
        idle = wait_seconds / seconds
        moved = min(free_rows, math.ceil(idle * self.on_cpu)) if idle > _LITTLE else 0
        return replace(logged, num_cached=self.num_cached + moved)

    def _increase_hot(self, seconds: float) -> HotRatioTuner:
        if self.fastest is not None and seconds >= self.fastest:
            return replace(self, num_hot=self.previous_hot, is_growing=False)
        doubled = min(2 * self.num_hot, self.max_hot)
        return replace(
            self, fastest=seconds, previous_hot=self.num_hot, num_hot=doubled, is_growing=doubled > self.num_hot
        )
