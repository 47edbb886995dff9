"""Where a worker computes: its CPU, or a CUDA device of its own; and what crosses the border between both.

Beside a CUDA device the HOST tier is memory that is pinned: the system leaves it where it is, so that the device reads
and writes it itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.memory_limits import available_bytes
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.system.process_memory import resident_bytes

DEVICES = ("auto", "cpu", "cuda")
CPU = torch.device("cpu")
CUDA_VALIDATED = False
"""Whether the tests marked ``gpu`` have passed on a device. Until then only those compute on CUDA who ask for it."""


def choose_device(requested: str, comm: Comm) -> torch.device:
    """The device that a worker computes on. Workers of a host have devices of their own; all workers choose alike.

    Args:
        requested: ``"cpu"``, ``"cuda"``, or ``"auto"`` for CUDA where every worker can have a device, once
            it is `CUDA_VALIDATED`.
        comm: The line to the other workers.

    Raises:
        InputError: A host has fewer CUDA devices than workers.
    """
    needed = {host: comm.hosts.count(host) for host in comm.hosts}
    short = [host for host, there in zip(comm.hosts, comm.gpu_counts, strict=True) if there < needed[host]]
    if requested == "cpu" or (requested == "auto" and (short or not CUDA_VALIDATED)):
        return CPU
    if short:
        there = comm.gpu_counts[comm.hosts.index(short[0])]
        raise InputError(
            f"there are fewer CUDA devices on {short[0]} than workers",
            needed=f"{needed[short[0]]} CUDA devices, which torch can use",
            got=f"{there}" if torch.version.cuda else f"none: torch {torch.__version__} is not built for CUDA",
            repair="choose --device cpu, or fewer workers",
        )
    importlib.import_module("outgrow.ops.gpu")  # says what is missing before anything is read
    index = comm.hosts[: comm.rank].count(comm.hosts[comm.rank])
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def used_device_bytes(device: torch.device) -> int:
    """What this process holds in the DEVICE tier: tensors on a GPU; on a CPU the memory of the whole process."""
    return resident_bytes() if device.type == "cpu" else torch.cuda.memory_allocated(device)


def free_device_bytes(device: torch.device) -> int:
    """What it may still take there."""
    return available_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]


def total_device_bytes(device: torch.device) -> int:
    """All memory of a GPU; of a CPU, that of its host, and no more than the process may take."""
    if device.type == "cpu":
        return available_bytes() + resident_bytes()
    return torch.cuda.mem_get_info(device)[1]


class DevicePeakMemory:
    """The most that tensors on a device took since this was made; 0 for a CPU, where `PeakMemorySampler` tells."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    @property
    def peak_bytes(self) -> int:
        """Until now."""
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else 0


def to_host(values: Tensor) -> Tensor:
    """The values in memory: themselves if they are; else, once this stream has made them, a copy in pinned memory."""
    if values.device.type == "cpu":
        return values
    out = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    out.copy_(values.detach(), non_blocking=True)
    if values.is_cuda:
        torch.cuda.current_stream(values.device).synchronize()
    return out


class DeviceStreams:
    """The streams of a device on which rows come, are computed with, and go. On a CPU there are none. Final.

    Args:
        device: The device.

    Attributes:
        asynchronous: Whether what is called returns before it is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self.asynchronous = device, device.type == "cuda"
        if self.asynchronous:
            self._load, self._store = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]

    @contextmanager
    def on_load_stream(self) -> Iterator[None]:
        """What is called in this context is done when it ends, and waits for nothing that is computed meanwhile."""
        if not self.asynchronous:
            yield
            return
        with torch.cuda.stream(self._load):
            yield
            self._load.synchronize()

    def record_event(self) -> torch.cuda.Event | None:
        """A moment: after all that this thread has called so far."""
        if not self.asynchronous:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    @contextmanager
    def on_store_stream(self, event: torch.cuda.Event | None) -> Iterator[None]:
        """What is called in this context is done when it ends, and is begun after a moment."""
        if event is None:
            yield
            return
        with torch.cuda.stream(self._store):
            self._store.wait_event(event)
            yield
            self._store.synchronize()

    def synchronize(self) -> None:
        """Wait until all that this thread has called is done."""
        if self.asynchronous:
            torch.cuda.current_stream(self._device).synchronize()
