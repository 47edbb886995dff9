"""Rows in the HOST tier, stored in segments that are contiguous on disk, so that reading one needs no seeks.

Letters: ``W`` columns, ``P`` segments, ``N`` rows in some segments, ``M`` rows of the other tensor.
"""

from __future__ import annotations

import errno
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import as_numpy
from outgrow.ops.rows.file_io import PAGE_BYTES
from outgrow.ops.rows.segment_io import read_segments, write_segments
from outgrow.runtime.storage.row_file import IoPool, explain_os_error

Array = NDArray[Any]
_LEAST_SHARE = 1 << 18  # bytes; handing less than this to a thread takes longer than reading it


class SegmentStorage(ABC):
    """Rows of one width in segments. Thread-safe as long as no thread reads what another writes.

    Args:
        counts_P: ``[P]`` int64, number of rows of each segment.
        width: ``W``.
        dtype: Dtype of the values.

    Attributes:
        width: ``W``.
        dtype: Dtype of the values.
    """

    def __init__(self, counts_P: Array, width: int, dtype: torch.dtype) -> None:
        self.width, self.dtype = width, dtype
        self._counts_P = np.asarray(counts_P, dtype=np.int64)

    @abstractmethod
    def read_segments(self, segments: Array | Sequence[int], out_MW: Tensor, to_N: Tensor | None = None) -> None:
        """Read segments: ``out[to[i]] =`` row ``i`` of their concatenation.

        Args:
            segments: Numbers of the segments, ascending.
            out_MW: ``[M, W]`` of the same dtype, output; any strides.
            to_N: ``[N]`` integer, distinct; None for the first rows in order.
        """

    @abstractmethod
    def write_segments(self, segments: Array | Sequence[int], rows_NW: Tensor) -> None:
        """Write segments.

        Args:
            segments: Numbers of the segments, ascending.
            rows_NW: ``[N, W]`` of the same dtype: their rows, concatenated.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the rows."""

    def _row_ends(self, segments: Array, rows: int) -> Array:
        """Return the number of rows before each segment, and in total."""
        ends = np.concatenate(([0], self._counts_P[segments].cumsum()))
        if ends[-1] != rows:
            raise ValueError(f"{rows} rows for parcels of {ends[-1]}")
        return ends

    def _check_type(self, dtype: torch.dtype) -> None:
        if dtype != self.dtype:
            raise TypeError(f"rows of {dtype} for parcels of {self.dtype}")


class SegmentFile(SegmentStorage):
    """Segments in a new sparse file, which takes disk space as it is written.

    Args:
        io_pool: Threads that read, and byte counters.
        path: Path of the file, which must not exist.
        counts_P: See `SegmentStorage`.
        width: See `SegmentStorage`.
        dtype: See `SegmentStorage`.
        direct: Whether to bypass the page cache (O_DIRECT) if possible: faster for data larger than memory,
            slower for data that fits.
    """

    def __init__(
        self, io_pool: IoPool, path: Path, counts_P: Array, width: int, dtype: torch.dtype, *, direct: bool
    ) -> None:
        super().__init__(counts_P, width, dtype)
        self._io_pool, self._path, self._row_bytes = io_pool, path, width * dtype.itemsize
        self._file, self._page = _create_file(path, direct=direct)
        # With O_DIRECT offsets must be multiples of a page, so segments are padded to whole pages.
        sizes = -(-self._counts_P * self._row_bytes // self._page) * self._page
        self._segment_offsets = np.concatenate(([0], sizes.cumsum()))
        os.truncate(self._file, int(self._segment_offsets[-1]))

    def read_segments(self, segments: Array | Sequence[int], out_MW: Tensor, to_N: Tensor | None = None) -> None:
        """Read segments in shares on the threads."""
        self._check_type(out_MW.dtype)
        chosen = np.asarray(segments, dtype=np.int64)
        count = len(out_MW) if to_N is None else len(to_N)
        to = None if to_N is None else as_numpy(to_N)
        # Reads of whole pages go through staging memory, which needs explicit targets; made once for all
        # shares.
        if to is None and self._page > 1:
            to = np.arange(count)
        places = self._segment_offsets[chosen], self._row_ends(chosen, count)
        most = max(1, _LEAST_SHARE // self._row_bytes, -(-count // (4 * self._io_pool.in_flight)))
        self._io_pool.run_tasks(
            partial(self._read_part, places, (low, min(low + most, count)), (out_MW, to))
            for low in range(0, count, most)
        )

    def write_segments(self, segments: Array | Sequence[int], rows_NW: Tensor) -> None:
        """Write segments on one thread: file systems serialise writers that extend a file."""
        self._check_type(rows_NW.dtype)
        chosen, rows = np.asarray(segments, dtype=np.int64), rows_NW.detach().contiguous()
        places = self._segment_offsets[chosen], self._row_ends(chosen, len(rows)) * self._row_bytes
        given = rows.view(-1).view(torch.uint8).numpy()
        with self._explain_errors():
            written = write_segments(self._file, places, self._page, self._staging_buffer(), given)
        self._io_pool.count_io(0, 0, written)

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read_part(self, places: tuple[Array, Array], share: tuple[int, int], out: tuple[Tensor, Array | None]) -> None:
        with self._explain_errors():
            moved = read_segments(self._file, places, share, self._page, self._staging_buffer(), out)
        self._io_pool.count_io(*moved)

    def _staging_buffer(self) -> Array:
        least = -(-self._row_bytes // PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES
        return self._io_pool.page_buffer(max(least, self._io_pool.run_bytes // PAGE_BYTES * PAGE_BYTES))

    def _explain_errors(self) -> AbstractContextManager[None]:
        return explain_os_error(self._path, self._file, int(self._segment_offsets[-1]))


def _create_file(path: Path, *, direct: bool) -> tuple[int, int]:
    """Create a file; return its descriptor and the alignment of its reads and writes."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    if sys.platform == "win32":
        flags |= os.O_BINARY
    if direct and sys.platform == "linux":
        try:
            return os.open(path, flags | os.O_DIRECT, 0o600), PAGE_BYTES
        except OSError as error:
            # File systems in memory, among others, do not support O_DIRECT; they may have created the file
            # already.
            if error.errno != errno.EINVAL:
                raise
            path.unlink(missing_ok=True)
    return os.open(path, flags, 0o600), 1
