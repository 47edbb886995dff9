"""Compute device of a worker, the CPU or its own CUDA device, and transfers between host and device.

With a CUDA device the HOST tier is pinned memory: the system never moves it, so the device accesses it
directly.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.memory_limits import available_bytes
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.system.process_memory import resident_bytes

DEVICES = ("auto", "cpu", "cuda")
CPU = torch.device("cpu")
VALIDATED_DEVICES = 1
"""CUDA devices of the largest run in which the tests marked ``gpu`` have passed; ``"auto"`` selects no more."""


def choose_device(requested: str, comm: Comm) -> torch.device:
    """Choose the device of this worker. Each worker of a host has its own; all choose the same kind.

    Args:
        requested: ``"cpu"``, ``"cuda"``, or ``"auto"`` for CUDA if every worker can have a device, there are
            at most `VALIDATED_DEVICES` workers, and Triton is installed.
        comm: Communicator with the other workers.

    Raises:
        InputError: A host has fewer CUDA devices than workers.
    """
    # Decided from data that all workers have, so they agree without communication.
    needed = {host: comm.hosts.count(host) for host in comm.hosts}
    short = [host for host, there in zip(comm.hosts, comm.gpu_counts, strict=True) if there < needed[host]]
    if requested == "cpu" or (requested == "auto" and (short or not _is_ready(comm.size))):
        return CPU
    if short:
        there = comm.gpu_counts[comm.hosts.index(short[0])]
        raise InputError(
            f"there are fewer CUDA devices on {short[0]} than workers",
            needed=f"{needed[short[0]]} CUDA devices, which torch can use",
            got=f"{there}" if torch.version.cuda else f"none: torch {torch.__version__} is not built for CUDA",
            repair="choose --device cpu, or fewer workers",
        )
    # Early: a missing package is reported before any data is read.
    importlib.import_module("outgrow.ops.gpu")
    index = comm.hosts[: comm.rank].count(comm.hosts[comm.rank])
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def use_device(requested: str, comm: Comm) -> None:
    """Let this worker compute on the device that `choose_device` chooses. All workers together.

    Raises:
        InputError: See `choose_device`.
    """
    comm.device = choose_device(requested, comm)
    if comm.device.type != "cpu":
        # NCCL connects in the first call of a group, in which all workers must take part: a worker with nothing to send
        # would leave an exchange of rows out.
        comm.all_reduce(torch.zeros(1, device=comm.device))


def _is_ready(num_devices: int) -> bool:
    return num_devices <= VALIDATED_DEVICES and importlib.util.find_spec("triton") is not None


def describe_gpu(device: torch.device) -> tuple[str, ...]:
    """Return what tells GPUs and their software apart: name, capability, driver, and the CUDA that torch has."""
    found = torch.cuda.get_device_properties(device)
    # That of the driver, for which torch has no public name.
    driver = cast(Any, torch._C)._cuda_getDriverVersion()
    return found.name, f"{found.major}.{found.minor}", str(driver), str(torch.version.cuda)


def let_current_stream_read(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Tell the allocator of a GPU that the current stream of this thread reads tensors that another one has written."""
    if device.type == "cuda":
        stream = torch.cuda.current_stream(device)
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(stream)


def used_device_bytes(device: torch.device) -> int:
    """Return the bytes used in the DEVICE tier: GPU tensors, or on a CPU all memory of the process."""
    return resident_bytes() if device.type == "cpu" else torch.cuda.memory_allocated(device)


def free_device_bytes(device: torch.device) -> int:
    """Return the bytes that this process can still allocate in the DEVICE tier."""
    if device.type == "cpu":
        return available_bytes()
    # What the allocator has kept of freed tensors, it gives to new ones.
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def total_device_bytes(device: torch.device) -> int:
    """Return the total memory of a GPU; for a CPU, all that this process may use of its host's memory."""
    if device.type == "cpu":
        return available_bytes() + resident_bytes()
    return torch.cuda.mem_get_info(device)[1]


class DevicePeakMemory:
    """Peak memory of tensors on a GPU since creation; 0 for a CPU, where `PeakMemorySampler` measures it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    @property
    def peak_bytes(self) -> int:
        """Peak so far, in bytes."""
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else 0


def to_host(values: Tensor) -> Tensor:
    """Copy values to pinned host memory and wait for the copy; CPU tensors are returned as they are."""
    if values.device.type == "cpu":
        return values
    out = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    out.copy_(values.detach(), non_blocking=True)
    if values.is_cuda:
        torch.cuda.current_stream(values.device).synchronize()
    return out


class DeviceStreams:
    """CUDA streams that load and store rows while others are computed. On a CPU all is synchronous. Final.

    Args:
        device: Device of the streams.

    Attributes:
        asynchronous: Whether operations return before they are done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.asynchronous = device.type == "cuda"
        if self.asynchronous:
            self._load, self._store = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]

    @contextmanager
    def on_load_stream(self) -> Iterator[None]:
        """Run operations without waiting for the compute stream; wait for them when the context ends."""
        if not self.asynchronous:
            yield
            return
        with torch.cuda.stream(self._load):
            yield
            self._load.synchronize()

    def record_event(self) -> torch.cuda.Event | None:
        """Record an event after all operations on this thread's current stream; None on a CPU."""
        if not self.asynchronous:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    @contextmanager
    def on_store_stream(self, event: torch.cuda.Event | None) -> Iterator[None]:
        """Run operations after an event; wait for them when the context ends."""
        if event is None:
            yield
            return
        with torch.cuda.stream(self._store):
            self._store.wait_event(event)
            yield
            # The calling thread may reuse the memory as soon as the context ends.
            self._store.synchronize()

    def synchronize(self) -> None:
        """Wait for all operations on this thread's current stream."""
        if self.asynchronous:
            torch.cuda.current_stream(self._device).synchronize()
