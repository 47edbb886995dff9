"""Memory of this process: resident size, file-backed tensors, allocator settings and peak sampling."""

from __future__ import annotations

import ctypes
import math
import mmap
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from outgrow.core.files import os_errors_as_input_errors, reserve_space

if TYPE_CHECKING:
    import torch


_STATUS = Path("/proc/self/status")
# The second is glibc's initial threshold. Setting it explicitly stops glibc from raising it on its own.
_M_MMAP_THRESHOLD, _THRESHOLD_BYTES = -3, 131072
LARGE_BYTES = 8 << 20
"""Freed tensors of this size always go back to the system: a fragmented heap could not reuse them."""


def resident_bytes() -> int:
    """Return the bytes of anonymous and shared resident memory of this process, interpreter included.

    Mapped file pages do not count: the kernel evicts them under pressure. On systems other than Linux, which
    do not distinguish them, all resident memory counts.
    """
    if not _STATUS.exists():
        import psutil

        return int(psutil.Process().memory_info().rss)
    kilobytes = 0
    for line in _STATUS.read_text().splitlines():
        if line.startswith(("RssAnon:", "RssShmem:")):
            kilobytes += int(line.split()[1])
    return kilobytes * 1024


def allocate_mapped_tensor(folder: Path, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Allocate a tensor of zeros backed by an unnamed file, whose pages the kernel can evict.

    Args:
        folder: Folder of the file, which has no name there and is deleted with the tensor.
        shape: Shape of the tensor.
        dtype: Dtype of the tensor.

    Raises:
        InputError: The disk is full.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    with explain_scratch_errors(folder, num_bytes), tempfile.TemporaryFile(dir=folder) as file:
        reserve_space(file.fileno(), num_bytes)
        return _map_tensor(file.fileno(), shape, dtype)


def explain_scratch_errors(folder: Path, num_bytes: int) -> AbstractContextManager[None]:
    """Context that turns an `OSError` while a scratch file is made into an `InputError`.

    Args:
        folder: Folder of the file.
        num_bytes: Its size.
    """
    return os_errors_as_input_errors(
        f"scratch: {folder} has too little room",
        needed=f"{num_bytes:,} bytes more",
        repair="choose a folder on a disk with enough room, by TMPDIR or by scratch_dir of offload and tensor",
    )


def map_tensor_file(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Map a file of values as a tensor. The mapping outlives the name of the file; writes reach the file.

    Args:
        path: File of at least as many bytes as the tensor has.
        shape: Shape of the tensor.
        dtype: Dtype of the tensor.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("r+b") as file:
        return _map_tensor(file.fileno(), shape, dtype)


def _map_tensor(file: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    import torch

    count = math.prod(shape)
    if count == 0:  # an empty file cannot be mapped
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mmap.mmap(file, 0), dtype=dtype, count=count).view(shape)


def return_freed_memory(least: int = _THRESHOLD_BYTES) -> None:
    """Make glibc return tensors of at least ``least`` bytes to the system whenever they are freed."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, least)


def trim_memory() -> None:
    """Return freed memory to the system now (glibc only)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


_INTERVAL_SECONDS = 0.02
_MOST_MOMENTS = 512


class MemoryLimit(NamedTuple):
    """Memory limit with a warning.

    Attributes:
        limit_bytes: Limit in bytes.
        warn_fraction: Fraction of the limit at which to warn.
        warn: Called once when the fraction is reached, with the bytes in use, on the sampling thread.
    """

    limit_bytes: int
    warn_fraction: float
    warn: Callable[[int], None]


class PeakMemorySampler:
    """Context that samples memory every 20 ms and records its peak and history.

    Args:
        read_bytes: Returns the bytes in use; by default `resident_bytes`.
        limit: Limit to warn about; None for no warning.

    Attributes:
        peak_bytes: Peak so far.
        history: Pairs of seconds since the start and peak bytes since the previous entry; equally spaced,
            some hundreds at most.
    """

    def __init__(self, read_bytes: Callable[[], int] = resident_bytes, limit: MemoryLimit | None = None) -> None:
        self._read_bytes = read_bytes
        self._limit = limit
        self.peak_bytes = read_bytes()
        self.history: list[tuple[float, int]] = [(0.0, self.peak_bytes)]
        self._began = time.monotonic()
        self._samples = 0
        self._samples_per_entry = 1
        self._most = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_done, name="outgrow-peak-memory", daemon=True)

    def _sample_until_done(self) -> None:
        while not self._done.wait(_INTERVAL_SECONDS):
            self._take_sample()

    def _take_sample(self) -> None:
        now = self._read_bytes()
        self.peak_bytes, self._most = max(self.peak_bytes, now), max(self._most, now)
        self._samples += 1
        if self._samples % self._samples_per_entry == 0:
            self.history.append((time.monotonic() - self._began, self._most))
            self._most = 0
            if len(self.history) > _MOST_MOMENTS:
                self._halve_history()
        if self._limit is not None and now >= self._limit.warn_fraction * self._limit.limit_bytes:
            self._limit.warn(now)
            self._limit = None

    def _halve_history(self) -> None:
        """Merge pairs of entries; each keeps the later time and the larger peak."""
        # The first entry is the state at time 0 and stays.
        first, *others = self.history
        pairs = zip(others[::2], others[1::2], strict=False)
        self.history = [first, *((later, max(one, two)) for (_, one), (later, two) in pairs)]
        self._samples_per_entry *= 2

    def __enter__(self) -> PeakMemorySampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        # Memory may have grown since the last sample.
        now = self._read_bytes()
        self.peak_bytes = max(self.peak_bytes, now)
        self.history.append((time.monotonic() - self._began, max(self._most, now)))
