"""Rows in the HOST tier, stored in segments that are contiguous on disk, so that reading one needs no seeks.

Letters: ``W`` columns, ``S`` stored columns, ``P`` segments, ``N`` rows in some segments, ``M`` rows of the other
tensor.
"""

from __future__ import annotations

import errno
import io
import os
import sys
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
from outgrow.ops.rows.row_encoding import RowEncoding
from outgrow.ops.rows.segment_io import read_segments, write_segments
from outgrow.runtime.storage.row_file import IoPool, explain_os_error

Array = NDArray[Any]
_LEAST_SHARE = 1 << 18  # bytes; handing less than this to a thread takes longer than reading it


class SegmentFile:
    """Rows of one width in segments of a new sparse file, which takes disk space as it is written. Final.

    Thread-safe as long as no thread reads what another writes. It is not a `RowStorage`: rows are addressed by
    segment, segments may be padded to pages to bypass the page cache, and one thread writes.

    Args:
        io_pool: Threads that read, and byte counters.
        path: Path of the file, which must not exist.
        counts_P: ``[P]`` int64, number of rows of each segment.
        width: ``W``.
        encoding: How rows are stored.
        direct: Whether to bypass the page cache (O_DIRECT) if possible: faster for data larger than memory,
            slower for data that fits.

    Attributes:
        width: ``W``.
        encoding: As given.
        row_bytes: Bytes of a stored row.
    """

    def __init__(
        self, io_pool: IoPool, path: Path, counts_P: Array, width: int, encoding: RowEncoding, *, direct: bool
    ) -> None:
        self.width, self.encoding = width, encoding
        self._io_pool, self.row_bytes = io_pool, encoding.row_bytes(width)
        self._counts_P = np.asarray(counts_P, dtype=np.int64)
        self._file, self._page = _create_file(path, direct=direct)
        # With O_DIRECT offsets must be multiples of a page, so segments are padded to whole pages.
        sizes = -(-self._counts_P * self.row_bytes // self._page) * self._page
        self._segment_offsets = np.concatenate(([0], sizes.cumsum()))
        self._file.truncate(int(self._segment_offsets[-1]))

    def read_segments(self, segments: Array | Sequence[int], out_MW: Tensor, to_N: Tensor | None = None) -> None:
        """Read segments in shares on the threads: ``out[to[i]] =`` row ``i`` of their concatenation.

        Args:
            segments: Numbers of the segments, ascending.
            out_MW: ``[M, W]`` of the type that is computed with, output; any strides. Or ``[M, S]`` of the stored
                type, which gets rows as they are stored.
            to_N: ``[N]`` integer, distinct; None for the first rows in order.
        """
        count = len(out_MW) if to_N is None else len(to_N)
        places = self._locate_segments(segments, count, out_MW.dtype, self.encoding.dtype)
        to = None if to_N is None else as_numpy(to_N)
        # Reads of whole pages, and rows to decode, go through staging memory, which needs explicit targets; made
        # once for all shares.
        if to is None and (self._page > 1 or not self.encoding.is_full):
            to = np.arange(count)
        most = max(1, _LEAST_SHARE // self.row_bytes, -(-count // (4 * self._io_pool.in_flight)))
        self._io_pool.run_tasks(
            partial(self._read_part, places, (low, min(low + most, count)), (out_MW, to))
            for low in range(0, count, most)
        )

    def write_segments(self, segments: Array | Sequence[int], rows_NS: Tensor) -> None:
        """Write segments on one thread: file systems serialise writers that extend a file.

        Args:
            segments: Numbers of the segments, ascending.
            rows_NS: ``[N, S]``: their rows as they are stored (`RowEncoding.encode_rows`), concatenated.
        """
        begins, ends = self._locate_segments(segments, len(rows_NS), rows_NS.dtype)
        places = begins, ends * self.row_bytes
        given = rows_NS.detach().contiguous().view(-1).view(torch.uint8).numpy()
        with self._explain_errors():
            written = write_segments(self._file.fileno(), places, self._page, self._staging_buffer(), given)
        self._io_pool.count_io(0, 0, written)

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        self._file.close()

    def _locate_segments(
        self, segments: Array | Sequence[int], rows: int, dtype: torch.dtype, *also: torch.dtype
    ) -> tuple[Array, Array]:
        """Return the offset of each segment in the file, and the number of rows before each, and in total."""
        if dtype not in (self.encoding.stored_dtype, *also):
            raise TypeError(f"rows of {dtype} for segments of {self.encoding.stored_dtype}")
        chosen = np.asarray(segments, dtype=np.int64)
        ends = np.concatenate(([0], self._counts_P[chosen].cumsum()))
        if ends[-1] != rows:
            raise ValueError(f"{rows} rows for segments of {ends[-1]}")
        return self._segment_offsets[chosen], ends

    def _read_part(self, places: tuple[Array, Array], share: tuple[int, int], out: tuple[Tensor, Array | None]) -> None:
        with self._explain_errors():
            staged = self._staging_buffer()
            moved = read_segments(self._file.fileno(), places, share, self._page, staged, out, self.encoding)
        self._io_pool.count_io(*moved)

    def _staging_buffer(self) -> Array:
        least = -(-self.row_bytes // PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES
        return self._io_pool.page_buffer(max(least, self._io_pool.run_bytes // PAGE_BYTES * PAGE_BYTES))

    def _explain_errors(self) -> AbstractContextManager[None]:
        return explain_os_error(self._file, int(self._segment_offsets[-1]))


def _create_file(path: Path, *, direct: bool) -> tuple[io.FileIO, int]:
    """Create a file; return it and the alignment of its reads and writes."""
    if direct and sys.platform == "linux":
        try:
            return _open_new_file(path, os.O_DIRECT), PAGE_BYTES
        except OSError as error:
            # File systems in memory, among others, do not support O_DIRECT; they may have created the file
            # already.
            if error.errno != errno.EINVAL:
                raise
            path.unlink(missing_ok=True)
    return _open_new_file(path, 0), 1


def _open_new_file(path: Path, more_flags: int) -> io.FileIO:
    return io.FileIO(path, "x+", opener=lambda name, flags: os.open(name, flags | more_flags, 0o600))
