"""Reading of mapped files ahead of their use, in coalesced runs.

What is read of a mapping page by page waits for one page after another. The system can be told beforehand which pages
will be needed, and reads them together. On systems other than Linux nothing is read ahead.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.core.memory_limits import available_bytes

Array = NDArray[Any]
_GAP_BYTES = 16 << 10
"""Runs with a gap of at most this size are read as one, gap included."""
_CACHED_SHARE = 0.5
"""Share of the memory up to which mapped arrays stay in it once they were read."""
_MADV_WILLNEED = 3


class RowReadahead:
    """Reads the rows of some arrays ahead, such as the in-edges of nodes. Final; for several threads at once.

    Args:
        indptr: ``[V + 1]``; row ``v`` is entries ``indptr[v]`` to ``indptr[v + 1] - 1`` of each array; None if it is
            entry ``v``.
        arrays: Mapped arrays; entries are along the first dimension.
    """

    def __init__(self, indptr: Array | None, arrays: Sequence[Array]) -> None:
        self._indptr = indptr
        self._arrays = arrays
        self._advise = ctypes.CDLL(None, use_errno=True).madvise
        self._advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def read_rows(self, rows: Array) -> int:
        """Have the system begin to read rows, ``[n]`` in any order; return the number of runs."""
        rows = np.sort(rows)
        first, last = (rows, rows + 1) if self._indptr is None else (self._indptr[rows], self._indptr[rows + 1])
        count = 0
        for array in self._arrays:
            size = array.nbytes // len(array)
            runs = coalesce_ranges(first * size, last * size, _GAP_BYTES)
            count += len(runs)
            for begin, end in (runs + array.ctypes.data).tolist():
                page = begin - begin % mmap.PAGESIZE
                # Advice only: an error, such as that of a system without it, changes no result.
                self._advise(page, end - page, _MADV_WILLNEED)
        return count


def coalesce_ranges(first: Array, last: Array, gap: int) -> Array:
    """Return ``[r, 2]`` ranges that cover ascending ones, ``first[i]`` to ``last[i] - 1``; empty ones are left out.

    Ranges that are at most ``gap`` apart are one.
    """
    held = last > first
    first, last = first[held], last[held]
    if not len(first):
        return np.empty((0, 2), dtype=np.int64)
    cuts = np.flatnonzero(first[1:] - last[:-1] > gap)
    return np.stack([first[np.r_[0, cuts + 1]], last[np.r_[cuts, len(last) - 1]]], 1).astype(np.int64)


def make_row_readahead(indptr: Array | None, arrays: Sequence[Array], limit: int | None = None) -> RowReadahead | None:
    """Return what reads rows ahead, if arrays are mapped from files and large beside the memory; else None.

    Args:
        indptr: See `RowReadahead`.
        arrays: Arrays as in `RowReadahead`, mapped or not.
        limit: Limit on the memory of the process, in bytes; None for what there is.
    """
    memory = available_bytes() if limit is None else min(limit, available_bytes())
    if sum(array.nbytes for array in arrays) <= _CACHED_SHARE * memory:
        return None
    mapped = [array for array in arrays if is_mapped(array)]
    return RowReadahead(indptr, mapped) if mapped else None


def is_mapped(array: Array) -> bool:
    """Whether an array lies in a mapped file."""
    if sys.platform != "linux" or not array.nbytes:
        return False
    address = array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        # Addresses, rights, offset, device and inode; a path, if it is a file.
        span, _, _, _, _, *path = line.split(maxsplit=5)
        begin, end = (int(part, 16) for part in span.split("-"))
        if begin <= address < end:
            return bool(path) and path[0].startswith("/")
    return False
