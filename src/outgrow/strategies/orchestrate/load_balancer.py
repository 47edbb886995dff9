"""Balancing of the CPU and the device: how many nodes are hot, and how many of them the device computes after all.

It decides after each super-batch, from what was measured in it (NeutronOrch §4.1.3, "during execution").
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

_LITTLE = 0.01  # share of a super-batch that the device may wait for the CPU
_COMPARED = 3  # super-batches with the same number of hot nodes, of which the median is compared


class HotNodeCounts(NamedTuple):
    """How many nodes of a super-batch are hot, and who computes them.

    Attributes:
        num_hot: Number of hot nodes.
        num_cached: Number of hot nodes, the least hot, that the device computes like cold ones, with cached features.
    """

    num_hot: int
    num_cached: int

    @property
    def on_cpu(self) -> int:
        """Number of nodes that the CPU computes: the hottest."""
        return self.num_hot - self.num_cached


@dataclass(frozen=True, kw_only=True)
class HotRatioTuner:
    """The state of tuning after some super-batches, on one worker.

    Attributes:
        counts: The numbers of hot nodes.
        max_hot: Largest number of hot nodes.
        is_growing: Whether the number doubles as long as batches get faster.
        previous_hot: The number before the last doubling, to return to.
        fastest: Seconds of a batch with that number; None before the first doubling.
        timings: Seconds of a batch in each super-batch with the present number, while it grows.
    """

    counts: HotNodeCounts
    max_hot: int
    is_growing: bool = False
    previous_hot: int = 0
    fastest: float | None = None
    timings: tuple[float, ...] = ()

    @property
    def most_hot(self) -> int:
        """The largest number of hot nodes there may be."""
        return self.max_hot if self.is_growing else self.counts.num_hot

    def after_super_batch(
        self, seconds: float, wait_seconds: float, *, num_batches: int = 1, free_rows: int = 0
    ) -> HotRatioTuner:
        """Return the state after one more super-batch with the present numbers.

        The number of hot nodes doubles as long as batches get faster, by the median of three super-batches; if they
        do not, it returns to the previous number and stays there. From then on, nodes move from the CPU to the
        device as long as the device waits for the CPU and has room: the share of the CPU's nodes equals the share
        of the super-batch that the device has waited.

        Args:
            seconds: Seconds of the super-batch.
            wait_seconds: Seconds of them in which the device waited for the CPU.
            num_batches: Number of its batches.
            free_rows: Further rows that the device could cache.
        """
        # One number at a time: while growth is tested, waiting says nothing about the balance.
        if self.is_growing:
            timings = (*self.timings, seconds / num_batches)
            return self._increase_hot(median(timings)) if len(timings) == _COMPARED else replace(self, timings=timings)
        num_hot, num_cached = self.counts
        # The device idles for this share because the CPU has about this share too much.
        idle = wait_seconds / seconds if seconds else 0.0
        moved = min(free_rows, math.ceil(idle * self.counts.on_cpu)) if idle > _LITTLE else 0
        return replace(self, counts=HotNodeCounts(num_hot, num_cached + moved))

    def _increase_hot(self, seconds: float) -> HotRatioTuner:
        if self.fastest is not None and seconds >= self.fastest:
            return replace(self, counts=HotNodeCounts(self.previous_hot, 0), is_growing=False, timings=())
        num_hot = self.counts.num_hot
        doubled = min(2 * num_hot, self.max_hot)
        return replace(
            self,
            fastest=seconds,
            previous_hot=num_hot,
            counts=HotNodeCounts(doubled, 0),
            is_growing=doubled > num_hot,
            timings=(),
        )


class Stopwatch:
    """Seconds of an epoch, without those in which the caller has a batch's result. Final."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._began: float | None = time.perf_counter()

    def pause(self) -> None:
        """Stop until `resume`."""
        self._seconds, self._began = self._total(), None

    def resume(self) -> None:
        """Go on."""
        self._began = time.perf_counter()

    def read_and_reset(self) -> float:
        """Return the seconds since the start or the last call."""
        seconds = self._total()
        self._seconds, self._began = 0.0, time.perf_counter()
        return seconds

    def _total(self) -> float:
        return self._seconds + (0.0 if self._began is None else time.perf_counter() - self._began)


@dataclass(kw_only=True)
class _EpochRecord:
    """What held in an epoch.

    Attributes:
        epoch: Number of the epoch.
        counts: The numbers of each super-batch whose batches are being sampled, or were.
        seconds: Seconds of the epoch.
        waited: Seconds of them in which the device waited for the CPU.
    """

    epoch: int
    counts: list[HotNodeCounts] = field(default_factory=list)
    seconds: float = 0.0
    waited: float = 0.0

    def facts(self) -> dict[str, object]:
        """Return a form for the summary: with each super-batch from which on other numbers hold."""
        before = [None, *self.counts]
        changes = [[place, *each] for place, each in enumerate(self.counts) if each != before[place]]
        return {
            "epoch": self.epoch,
            "hot_nodes": self.counts[-1].num_hot,
            "kept_on_device": self.counts[-1].num_cached,
            "seconds": self.seconds,
            "waited": self.waited,
            "super_batches": changes,
        }


class LoadBalancer:
    """Assigns hot nodes to the CPU and to the cache of the device, super-batch by super-batch. Final.

    The numbers of a super-batch are fixed when the first of its batches begins to be sampled, which is some
    super-batches ahead. What is measured counts only if the last numbers decided held in it.

    Args:
        tuner: The state of tuning at the start.
        hot_nodes: ``[h]`` int64, nodes that may be hot, hottest first: any number of hot nodes is a prefix.
        num_nodes: ``V``.
        free_rows: Returns the number of further rows that the device could cache, given that of cached ones; None
            if it has no cache.
    """

    def __init__(
        self, tuner: HotRatioTuner, hot_nodes: Tensor, num_nodes: int, free_rows: Callable[[int], int] | None = None
    ) -> None:
        self.tuner = tuner
        self._hot_nodes = hot_nodes
        self.num_nodes = num_nodes
        self._free_rows = free_rows
        self._log = list[_EpochRecord]()
        self._is_warm = False
        self._num_in_cache = 0
        self._mask: tuple[int, Tensor] | None = None
        # Batches are sampled ahead by other threads.
        self._lock = threading.Lock()

    @property
    def has_cache(self) -> bool:
        """Whether nodes may move to a cache on the device."""
        return self._free_rows is not None

    def start_epoch(self, epoch: int) -> None:
        """Start an epoch; super-batches are numbered anew."""
        with self._lock:
            self._log.append(_EpochRecord(epoch=epoch))

    def fix_hot_nodes(self, number: int) -> Tensor:
        """Return which nodes the CPU computes for a super-batch, ``[V]`` bool; in any thread.

        Args:
            number: Number of the super-batch in the epoch; each is asked for after the one before.
        """
        with self._lock:
            fixed = self._log[-1].counts
            if number == len(fixed):
                fixed.append(self.tuner.counts)
            return self._hottest_as_mask(fixed[number].on_cpu)

    def _hottest_as_mask(self, size: int) -> Tensor:
        if self._mask is None or self._mask[0] != size:
            # Another tensor: batches that are being sampled use the one before.
            is_hot = torch.zeros(self.num_nodes, dtype=torch.bool)
            is_hot[self._hot_nodes[:size]] = True
            self._mask = size, is_hot
        return self._mask[1]

    def rebalance(self, number: int, seconds: float, wait_seconds: float, num_batches: int) -> None:
        """Decide from a super-batch whose hot nodes the CPU has finished.

        Args:
            number: Number of the super-batch.
            seconds: Seconds from when the CPU could begin with its hot nodes until all of them were there.
            wait_seconds: Seconds of them in which the device waited.
            num_batches: Number of batches that the device has trained meanwhile.
        """
        with self._lock:
            fixed, counts = self._log[-1].counts, self.tuner.counts
            # Kernels and caches get warm in the first one, which is not judged.
            is_warm, self._is_warm = self._is_warm, True
            if not is_warm or any(each != counts for each in fixed[max(0, number - 1) : number + 1]):
                return
            free_rows = 0 if self._free_rows is None else self._free_rows(counts.num_cached)
            self.tuner = self.tuner.after_super_batch(
                seconds, wait_seconds, num_batches=num_batches, free_rows=free_rows
            )

    def nodes_to_cache(self) -> Tensor:
        """Return the nodes that have moved to the device since the last call, ``[m]`` int64."""
        num_hot, num_cached = self.tuner.counts
        nodes = self._hot_nodes[num_hot - num_cached : num_hot - self._num_in_cache]
        self._num_in_cache = num_cached
        return nodes

    def end_epoch(self, seconds: float, wait_seconds: float) -> list[dict[str, object]]:
        """Note what the epoch took, and return facts of all epochs for the summary."""
        record = self._log[-1]
        record.seconds, record.waited = seconds, wait_seconds
        return [each.facts() for each in self._log if each.counts]
