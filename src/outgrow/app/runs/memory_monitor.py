"""Memory of a worker's tiers while it trains, and a warning before the DEVICE tier is full."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any

from outgrow.app.console import format_memory
from outgrow.core.memory_limits import parse_bytes
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.system.device import DevicePeakMemory, total_device_bytes, used_device_bytes
from outgrow.runtime.system.process_memory import MemoryLimit, PeakMemorySampler
from outgrow.strategies.base import Strategy

_OF_LIMIT, _OF_MACHINE = 0.97, 0.9
"""Shares from which on a warning is given: strategies fill a limit that they keep to."""


class MemoryMonitor:
    """Watches while this context is open. Final.

    Args:
        comm: The line to the other workers, who share the memory of a host.
        strategy: Its option ``memory`` is the limit, if it has one.
        warn: Told once, in a sentence, when it is nearly reached.

    Attributes:
        limit: Bytes that the DEVICE tier of the worker may hold.
        device_memory: How much it holds.
    """

    def __init__(self, comm: Comm, strategy: Strategy, warn: Callable[[str], None]) -> None:
        asked = strategy.options().get("memory")
        share = comm.local_world_size if comm.device.type == "cpu" else 1
        self.limit = total_device_bytes(comm.device) // share if asked is None else parse_bytes(str(asked))
        budget = MemoryLimit(
            self.limit,
            _OF_MACHINE if asked is None else _OF_LIMIT,
            lambda held: warn(_format_warning(comm.rank, held, self.limit, limited=asked is not None)),
        )
        self.device_memory = PeakMemorySampler(partial(used_device_bytes, comm.device), budget)
        self._on_cpu, self._host_memory = comm.device.type == "cpu", PeakMemorySampler()
        self._device_allocator, self._stack = DevicePeakMemory(comm.device), ExitStack()

    def peak_bytes(self) -> tuple[int, int]:
        """The most bytes in the DEVICE tier, and in memory beside it."""
        return (
            (self.device_memory.peak_bytes, 0)
            if self._on_cpu
            else (self._device_allocator.peak_bytes, self._host_memory.peak_bytes)
        )

    def __enter__(self) -> MemoryMonitor:
        for each in [self.device_memory] if self._on_cpu else [self.device_memory, self._host_memory]:
            self._stack.enter_context(each)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def make_worker_record(comm: Comm, memory: MemoryMonitor) -> dict[str, Any]:
    """What one worker did and held, for ``workers.json``."""
    ledger, timeline = comm.ledger, comm.timeline
    return {
        "host": comm.hosts[comm.rank],
        "phases": dict(timeline.phases),
        "sent": {link: sum(kinds.values()) for link, kinds in ledger.as_dict().items()},
        "counters": dict(ledger.counters),
        "peak_bytes": dict(zip(("device", "host"), memory.peak_bytes(), strict=True)),
        "limit_bytes": memory.limit,
        "memory": [[round(seconds, 3), held] for seconds, held in memory.device_memory.history],
        "spans_left_out": timeline.num_dropped_spans,
    }


def _format_warning(rank: int, used: int, limit: int, *, limited: bool) -> str:
    of = "the memory that it may take" if limited else "its share of this machine's memory"
    repair = "a larger --memory" if limited else "--memory for a limit that is kept to, or fewer --workers"
    return f"warning: worker {rank} holds {format_memory(used)}, and {of} is {format_memory(limit)}; give {repair}"
