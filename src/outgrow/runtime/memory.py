"""How much memory this process holds, and how much it may."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from outgrow.core.errors import InputError

if TYPE_CHECKING:
    import torch

_STATUS, _MEMBERSHIP, _GROUPS = Path("/proc/self/status"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
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


def available_bytes() -> int:
    """Memory that this process may still take: what the system has, and no more than its control groups allow.

    Pages of files count as free in a group as they do in the system: the kernel evicts them when it needs to.
    """
    import psutil

    return max(0, min([int(psutil.virtual_memory().available), *_left_in_groups()]))


def mapped_file(folder: Path, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of zeros in a new file, which goes with it: it takes no memory that the kernel cannot have back.

    Args:
        folder: Where the file is; it has no name there.
        shape: Of the tensor.
        dtype: Of its numbers.

    Raises:
        InputError: The disk has no room.
    """
    import torch  # whoever asks how much memory there is need not load it

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


class _Group(NamedTuple):
    """A kind of control group: where such groups are, and the names of what they tell."""

    root: Path
    limit: str
    used: str
    files: tuple[str, ...]


def _left_in_groups() -> Iterator[int]:
    """What is left of the limit of each control group around this process."""
    for line in _lines(_MEMBERSHIP):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            kind = _Group(_GROUPS, "memory.max", "memory.current", ("active_file", "inactive_file"))
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")
            kind = _Group(_GROUPS / "memory", *names)
        else:
            continue
        inner = kind.root / path.lstrip("/")  # a container may see its own group as the root, under a path from outside
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(kind.root):
                yield from _left(folder, kind)


def _left(folder: Path, kind: _Group) -> Iterator[int]:
    limit, used = (next(iter(_lines(folder / name)), "") for name in (kind.limit, kind.used))
    if limit.isdigit() and used.isdigit():
        told = dict(line.split() for line in _lines(folder / "memory.stat"))
        yield int(limit) - int(used) + sum(int(told.get(name, 0)) for name in kind.files)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
