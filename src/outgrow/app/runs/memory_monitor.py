"""Memory use of a worker's tiers during training, with a warning before the DEVICE tier is full."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any

from outgrow.app.console import format_memory
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.system.device import DevicePeakMemory, total_device_bytes, used_device_bytes
from outgrow.runtime.system.process_memory import MemoryLimit, PeakMemorySampler
from outgrow.strategies.base import Strategy

_OF_LIMIT, _OF_MACHINE = 0.97, 0.9
"""Fractions of an explicit limit, and of the machine's memory, at which to warn.

The former is higher, since a strategy with a limit fills it on purpose.
"""


class MemoryMonitor:
    """Context that samples the memory of this worker and warns near its limit. Final.

    Args:
        comm: Communicator of the workers; those of one host share its memory.
        strategy: Training strategy, whose option ``memory`` is the limit if it is set.
        warn: Called once with a message when the limit is nearly reached.

    Attributes:
        limit: Limit of the DEVICE tier of this worker, in bytes.
        device_memory: Sampler of the DEVICE tier.
    """

    def __init__(self, comm: Comm, strategy: Strategy, warn: Callable[[str], None]) -> None:
        requested = strategy.memory_limit
        # Workers on CPUs share the memory of their host; each GPU has memory of its own.
        sharers = comm.local_world_size if comm.device.type == "cpu" else 1
        self.limit = total_device_bytes(comm.device) // sharers if requested is None else requested
        budget = MemoryLimit(
            self.limit,
            _OF_MACHINE if requested is None else _OF_LIMIT,
            lambda held: warn(
                _format_warning(
                    comm.rank, held, self.limit, limited=requested is not None, batches=strategy.uses_minibatches
                )
            ),
        )
        self.device_memory = PeakMemorySampler(partial(used_device_bytes, comm.device), budget)
        self._on_cpu = comm.device.type == "cpu"
        self._host_memory = PeakMemorySampler()
        self._device_allocator = DevicePeakMemory(comm.device)
        self._stack = ExitStack()

    def peak_bytes(self) -> tuple[int, int]:
        """Return peak bytes of the DEVICE tier, and of host memory besides."""
        # On the CPU, process memory is the DEVICE tier and must not count twice. On a GPU the allocator
        # knows the peak exactly, while samples miss short ones.
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
    """Return the phases, traffic and memory of one worker, for ``workers.json``."""
    ledger = comm.ledger
    timeline = comm.timeline
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


def _format_warning(rank: int, used: int, limit: int, *, limited: bool, batches: bool) -> str:
    of = "the memory that it may take" if limited else "its share of this machine's memory"
    if limited:
        repair = "a larger --memory"
    elif batches:
        repair = "a smaller --batch-size, --set prefetch=1, or fewer --workers"
    else:
        repair = "--memory to train within a limit, or fewer --workers"
    return f"warning: worker {rank} holds {format_memory(used)}, and {of} is {format_memory(limit)}; give {repair}"
