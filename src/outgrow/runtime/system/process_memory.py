"""RSS, allocator trimming, peak sampling."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from outgrow.core.files import os_errors_as_input_errors

if TYPE_CHECKING:
    import torch


_STATUS = Path("/proc/self/status")
_M_MMAP_THRESHOLD, _THRESHOLD_BYTES = -3, 131072
LARGE_BYTES = 8 << 20
"""Freed tensors of this size are given back in every run: else a heap keeps them in pieces that fit nothing."""


def resident_bytes() -> int:
    """Anonymous and shared resident memory of this process, interpreter included.

    Mapped file pages do not count: the kernel evicts them when it needs to. Where the system does not tell them apart
    (not Linux), all resident memory counts.
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
    """A tensor of zeros in a new file, which goes with it: it takes no memory that the kernel cannot have back.

    Args:
        folder: Where the file is; it has no name there.
        shape: Of the tensor.
        dtype: Of its numbers.

    Raises:
        InputError: The disk has no room.
    """
    import torch

    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    refused = os_errors_as_input_errors(
        f"scratch: {folder} has too little room",
        needed=f"{count * dtype.itemsize:,} bytes more",
        repair="choose a folder on a disk with enough room by the option `scratch`",
    )
    with refused, tempfile.TemporaryFile(dir=folder) as file:
        if sys.platform == "linux":  # a full disk is an error here, and not a signal later
            os.posix_fallocate(file.fileno(), 0, count * dtype.itemsize)
        else:
            file.truncate(count * dtype.itemsize)
        pages = mmap.mmap(file.fileno(), 0)
    return torch.frombuffer(pages, dtype=dtype, count=count).view(shape)


def return_freed_memory(least: int = _THRESHOLD_BYTES) -> None:
    """Have tensors of at least so many bytes go back to the system when they are freed, however often (glibc)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, least)


def trim_memory() -> None:
    """Give back to the system, once, what was freed (glibc)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


_INTERVAL_SECONDS = 0.02
_MOST_MOMENTS = 512


class MemoryLimit(NamedTuple):
    """What memory should stay within.

    Attributes:
        limit_bytes: Bytes.
        warn_fraction: Of the limit, from which on it is nearly hit.
        warn: Called once when it is, with the bytes that are held then, by the thread that watches.
    """

    limit_bytes: int
    warn_fraction: float
    warn: Callable[[int], None]


class PeakMemorySampler:
    """The most that was held while this context is open, sampled every 20 ms, and how it went.

    Args:
        read_bytes: Gives the bytes that are held now; by default `resident_bytes`.
        limit: What to stay within; None to watch only.

    Attributes:
        peak_bytes: The most so far.
        history: Seconds since the beginning, and the most bytes since the moment before; some hundreds at most, and
            equally far apart.
    """

    def __init__(self, read_bytes: Callable[[], int] = resident_bytes, limit: MemoryLimit | None = None) -> None:
        self._read_bytes, self._limit = read_bytes, limit
        self.peak_bytes = read_bytes()
        self.history: list[tuple[float, int]] = [(0.0, self.peak_bytes)]
        self._began, self._samples, self._samples_per_entry, self._most = time.monotonic(), 0, 1, 0
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
        """Two moments become one."""
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
        now = self._read_bytes()
        self.peak_bytes = max(self.peak_bytes, now)
        self.history.append((time.monotonic() - self._began, max(self._most, now)))
