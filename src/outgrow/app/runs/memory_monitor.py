"""Memory of a worker's tiers while it trains, and a warning before the DEVICE tier is full."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any

from outgrow.app.console import of_memory
from outgrow.core.memory_limits import parse_bytes
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.system.device import PeakOnDevice, held_bytes, memory_bytes
from outgrow.runtime.system.process_memory import Budget, PeakMemory
from outgrow.strategies.base import Strategy

_OF_LIMIT, _OF_MACHINE = 0.97, 0.9
"""Shares from which on a warning is given: strategies fill a limit that they keep to."""


class Tiers:
    """Watches while this context is open. Final.

    Args:
        comm: The line to the other workers, who share the memory of a host.
        strategy: Its option ``memory`` is the limit, if it has one.
        warn: Told once, in a sentence, when it is nearly reached.

    Attributes:
        limit: Bytes that the DEVICE tier of the worker may hold.
        device: How much it holds.
    """

    def __init__(self, comm: Comm, strategy: Strategy, warn: Callable[[str], None]) -> None:
        asked = strategy.options().get("memory")
        share = comm.neighbours if comm.device.type == "cpu" else 1
        self.limit = memory_bytes(comm.device) // share if asked is None else parse_bytes(str(asked))
        budget = Budget(
            self.limit,
            _OF_MACHINE if asked is None else _OF_LIMIT,
            lambda held: warn(_warning(comm.rank, held, self.limit, limited=asked is not None)),
        )
        self.device = PeakMemory(partial(held_bytes, comm.device), budget)
        self._on_cpu, self._beside = comm.device.type == "cpu", PeakMemory()
        self._allocated, self._stack = PeakOnDevice(comm.device), ExitStack()

    def peaks(self) -> tuple[int, int]:
        """The most bytes in the DEVICE tier, and in memory beside it."""
        return (self.device.peak_bytes, 0) if self._on_cpu else (self._allocated.bytes_, self._beside.peak_bytes)

    def __enter__(self) -> Tiers:
        for each in [self.device] if self._on_cpu else [self.device, self._beside]:
            self._stack.enter_context(each)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def worker_record(comm: Comm, memory: Tiers) -> dict[str, Any]:
    """What one worker did and held, for ``workers.json``."""
    ledger, timeline = comm.ledger, comm.timeline
    return {
        "host": comm.hosts[comm.rank],
        "phases": dict(timeline.phases),
        "sent": {link: sum(kinds.values()) for link, kinds in ledger.as_dict().items()},
        "counters": dict(ledger.counters),
        "peak_bytes": dict(zip(("device", "host"), memory.peaks(), strict=True)),
        "limit_bytes": memory.limit,
        "memory": [[round(seconds, 3), held] for seconds, held in memory.device.moments],
        "spans_left_out": timeline.left_out,
    }


def _warning(rank: int, held: int, limit: int, *, limited: bool) -> str:
    of = "the memory that it may take" if limited else "its share of this machine's memory"
    repair = "a larger --memory" if limited else "--memory for a limit that is kept to, or fewer --workers"
    return f"warning: worker {rank} holds {of_memory(held)}, and {of} is {of_memory(limit)}; give {repair}"
