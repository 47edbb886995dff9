"""How much memory this process holds, and memory that goes back to the system."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from outgrow.core.errors import InputError

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


def mapped_file(folder: Path, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
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
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if sys.platform == "linux":  # a full disk is an error here, and not a signal later
                os.posix_fallocate(file.fileno(), 0, count * dtype.itemsize)
            else:
                file.truncate(count * dtype.itemsize)
            pages = mmap.mmap(file.fileno(), 0)
    except OSError as error:
        raise InputError(
            f"scratch: {folder} has too little room",
            needed=f"{count * dtype.itemsize:,} bytes more",
            got=str(error),
            repair="choose a folder on a disk with enough room by the option `scratch`",
        ) from error
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
