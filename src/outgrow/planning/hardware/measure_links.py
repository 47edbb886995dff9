"""Measurement of links: from disk, between host and device, and between workers."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from outgrow.core.ledger import Kind, Link
from outgrow.planning.hardware.measure_layers import best_seconds
from outgrow.planning.hardware.profile import LinkRate
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.storage.row_file import IoPool, RowFile
from outgrow.runtime.storage.row_storage import RowStorage, allocate_pinned_rows
from outgrow.runtime.system.device import DeviceStreams

_ROWS, _WIDTH, _STEP = 1 << 16, 128, 3
_SENT = 1 << 13
_FEW = 64
_TURNS, _COMPUTATIONS = 48, 16
_TRIED, _LONG_SECONDS = 5, 4.0
"""Least number of timings of long messages, and the seconds that these may take."""


def measure_link_rates(comm: Comm, folder: Path) -> dict[Link, LinkRate]:
    """Measure the links of this worker while all others do the same. All workers together.

    Args:
        comm: Communicator of the workers, with the device of this one.
        folder: Folder on the disk that is measured.
    """
    # Every worker takes part in an exchange that any of them needs, also one without such peers: otherwise the
    # collective inside would never end.
    found = {
        link: _measure_exchange(comm, peers)
        for link, peers in _peers_by_link(comm).items()
        if any(comm.all_gather_object(peers))
    }
    with _open_rows(comm, folder) as rows:
        found |= _measure_host_device(comm, rows)
    found[Link.DISK_TO_HOST] = _measure_disk(folder / f"disk-{comm.rank}")
    return found


def _peers_by_link(comm: Comm) -> dict[Link, list[int]]:
    """Return the other workers on this host, and those on other hosts."""
    here = comm.hosts[comm.rank]
    others = [peer for peer in range(comm.size) if peer != comm.rank]
    return {
        Link.PEER: [peer for peer in others if comm.hosts[peer] == here],
        Link.NETWORK: [peer for peer in others if comm.hosts[peer] != here],
    }


def _measure_exchange(comm: Comm, peers: Sequence[int]) -> LinkRate:
    """Measure an exchange of equally many rows with some workers, between computations as in training."""
    finish = DeviceStreams(comm.device).synchronize
    weight = torch.rand(_WIDTH, _WIDTH, device=comm.device)

    def time_exchange(count: int, turns: int) -> float:
        sizes = tuple(count if peer in peers else 0 for peer in range(comm.size))
        rows = torch.zeros(sum(sizes), _WIDTH, device=comm.device)

        # A worker that only waits for messages wakes up sooner than one that computes in between.
        def run_matmuls() -> None:
            for _ in range(_COMPUTATIONS):
                torch.relu(weight @ weight)
            finish()

        def exchange_rows() -> None:
            comm.all_to_all(rows, SplitSizes(sizes, sizes), Kind.METRICS).wait()
            finish()

        return _time_in_step(comm, run_matmuls, exchange_rows, turns)

    message = time_exchange(1, _TURNS)
    long = time_exchange(_SENT, _TRIED)
    # All workers must repeat the exchange equally often, so the slowest of them decides.
    turns = min(_TURNS, int(_LONG_SECONDS / max(comm.all_gather_object(long))))
    if turns > _TRIED:
        long = time_exchange(_SENT, turns)
    num_bytes = 4 * _SENT * _WIDTH * max(1, len(peers))
    return LinkRate(bytes_per_second=num_bytes / max(long - message, 1e-9), message_seconds=message)


def _time_in_step(comm: Comm, before: Callable[[], object], work: Callable[[], object], turns: int) -> float:
    """Return the median seconds of collective work after local work, equally often on all workers."""
    took = []
    comm.barrier()
    for _ in range(turns):
        before()
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return statistics.median(took[1:])


@contextmanager
def _open_rows(comm: Comm, folder: Path) -> Iterator[RowStorage]:
    """Open rows of the HOST tier: in scratch files for a CPU, in pinned memory for a GPU."""
    if comm.device.type != "cpu":
        rows: RowStorage = allocate_pinned_rows(_ROWS, _WIDTH, torch.float32, comm.device)
        yield rows
        rows.close()
        return
    path = folder / f"rows-{comm.rank}"
    disk = IoPool()
    rows = RowFile.create(disk, path, _ROWS, _WIDTH, torch.float32)
    try:
        yield rows
    finally:
        rows.close()
        disk.close()
        path.unlink(missing_ok=True)


def _measure_host_device(comm: Comm, rows: RowStorage) -> dict[Link, LinkRate]:
    """Measure loading every third row to the device, and storing all rows from it."""
    device = comm.device
    finish = DeviceStreams(device).synchronize
    values = torch.rand(_ROWS, _WIDTH, device=device)
    stored = best_seconds(lambda: rows.write_range(0, values), finish)

    def time_load(count: int) -> float:
        wanted = torch.arange(0, _STEP * count, _STEP, device=device)
        out, places = torch.empty(count, _WIDTH, device=device), torch.arange(count, device=device)
        return best_seconds(lambda: rows.read_rows(wanted, out, places), finish)

    most = _ROWS // _STEP
    few = time_load(_FEW)
    # Subtracting the short load leaves the bandwidth without the latency.
    loaded = 4 * most * _WIDTH / max(time_load(most) - few, 1e-9)
    return {
        Link.HOST_TO_DEVICE: LinkRate(bytes_per_second=loaded, message_seconds=few),
        Link.DEVICE_TO_HOST: LinkRate(bytes_per_second=values.nbytes / stored, message_seconds=few),
    }


def _measure_disk(path: Path) -> LinkRate:
    """Measure reading a file sequentially, without the page cache if the system can drop it."""
    block = os.urandom(1 << 20)
    try:
        with path.open("wb", buffering=0) as file:
            for _ in range(32):
                file.write(block)
            os.fsync(file.fileno())
        seconds = min(_time_read(path) for _ in range(3))
    finally:
        path.unlink(missing_ok=True)
    return LinkRate(bytes_per_second=32 * len(block) / seconds)


def _time_read(path: Path) -> float:
    with path.open("rb", buffering=0) as file:
        # Pages that were written just now would be read from memory; dropping them works only after `fsync`.
        if sys.platform == "linux":
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        while file.read(1 << 20):
            pass
        return max(time.perf_counter() - began, 1e-9)
