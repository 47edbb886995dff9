"""Row tables in the HOST tier, ordered by wave, so that a disk never seeks row by row.

The rows that a chunk and a wave have in common form one segment. A chunk writes the segments that waves read,
wave by wave; a wave writes the segments that chunks later sum.

Letters: ``n`` own rows of a chunk, ``W`` elements of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.ledger import Kind, Link
from outgrow.ops.backend import as_numpy, as_tensor
from outgrow.ops.memory_pool import pooled_empty
from outgrow.ops.rows.coalesce import scatter_add_rows
from outgrow.ops.rows.gather import gather_rows, via_host
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.storage.segment_file import SegmentFile
from outgrow.runtime.system.device import to_host
from outgrow.strategies.offload.wave import RowList
from outgrow.strategies.offload.wave_plan import RowRange

Array = NDArray[Any]
_ON_CPU = torch.empty(0)


@dataclass(frozen=True, eq=False)
class WaveChunkIndex:
    """Own rows that each wave reads or writes. Segments are numbered by wave, then by chunk.

    Attributes:
        counts: ``[waves, chunks]`` int64, rows of each segment.
        rows: For each chunk, int32: its rows in the segments of all waves, relative to its first row.
        chunk_number: Number of the non-empty chunk that begins at each row.
    """

    counts: Array
    rows: Sequence[Tensor]
    chunk_number: dict[int, int]

    @staticmethod
    def from_waves(rows: Sequence[Tensor], chunk_ranges: Sequence[RowRange]) -> WaveChunkIndex:
        """Build the index from the ascending rows of each wave and the row range of each chunk."""
        # Drop empty chunks: they share their first row with the next chunk.
        firsts = np.array(sorted(first for first, last in chunk_ranges if first < last), dtype=np.int64)
        all_rows = np.concatenate([np.empty(0, dtype=np.int64), *map(as_numpy, rows)])
        chunk = np.searchsorted(firsts, all_rows, side="right") - 1
        wave = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
        counts = np.bincount(wave * len(firsts) + chunk, minlength=len(rows) * len(firsts))
        # A stable sort by chunk keeps the rows of a chunk in wave order, which is segment order.
        relative = (all_rows - firsts[chunk]).astype(np.int32)[chunk.argsort(kind="stable")]
        counts = counts.reshape(len(rows), len(firsts))
        parts = as_tensor(relative).split_with_sizes(counts.sum(0).tolist())
        return WaveChunkIndex(counts, parts, {first: i for i, first in enumerate(firsts.tolist())})

    def segments_of_wave(self, wave: int) -> Array:
        """Return the segment numbers of a wave."""
        chunks = self.counts.shape[1]
        # Consecutive in the file: a wave reads or writes them in one sequential run.
        return np.arange(wave * chunks, (wave + 1) * chunks)

    def segments_of_chunk(self, first: int, last: int) -> Iterator[tuple[Array, Tensor]]:
        """Yield segments of a chunk with their relative rows, in groups of about as many rows as the chunk."""
        if first == last:
            return
        chunk = self.chunk_number[first]
        begin = 0
        counts = self.counts[:, chunk]
        rows = self.rows[chunk]
        ends = np.concatenate(([0], counts.cumsum()))
        # A row may be in many waves; grouping keeps the staging buffer near the size of the chunk.
        while begin < len(counts):
            end = max(begin + 1, int(np.searchsorted(ends, ends[begin] + last - first, side="right")) - 1)
            if ends[begin] < ends[end]:
                numbers = np.arange(begin, end) * self.counts.shape[1] + chunk
                yield numbers, rows[ends[begin] : ends[end]]
            begin = end


class ChunkRows:
    """Own rows in the order of their chunks. Final.

    Args:
        segments: One segment for each chunk.
        chunk_ranges: First and last own row (plus 1) of each chunk.
        kind: Ledger category of the rows.
        comm: Communicator.
    """

    def __init__(self, segments: SegmentFile, chunk_ranges: Sequence[RowRange], kind: Kind, comm: Comm) -> None:
        self._segments = segments
        self._kind = kind
        self._ledger = comm.ledger
        self._device = comm.device
        self._chunk_number = {first: number for number, (first, last) in enumerate(chunk_ranges) if first < last}

    def write_rows(self, first: int, rows_NW: Tensor) -> None:
        """Write the rows of the chunk that begins with own row ``first``."""
        if len(rows_NW):
            stored = self._segments.encoding.encode_rows(to_host(rows_NW))
            self._segments.write_segments((self._chunk_number[first],), stored)
            self._ledger.add_bytes(Link.DEVICE_TO_HOST, self._kind, stored.nbytes)

    def read_range(self, first: int, last: int) -> Tensor:
        """Return ``[n, W]`` rows of the chunk from own row ``first`` to ``last - 1``."""
        out = pooled_empty((last - first, self._segments.width), _ON_CPU, self._segments.encoding.dtype)
        if len(out):
            self._segments.read_segments((self._chunk_number[first],), out)
            self._ledger.add_bytes(Link.HOST_TO_DEVICE, self._kind, len(out) * self._segments.row_bytes)
        return out.to(self._device)

    def close(self) -> None:
        """Close the file."""
        self._segments.close()


class WaveOrderedRows:
    """Source rows, or a copy of features: written by chunks, read by the waves that load them. Final.

    Args:
        segments: Storage in wave order.
        index: Own rows that each wave loads.
        chunk_order_copy: A second copy in chunk order; None if chunks do not read the rows.
        comm: Communicator.
        kind: Ledger category of the rows.
    """

    def __init__(
        self,
        segments: SegmentFile,
        index: WaveChunkIndex,
        chunk_order_copy: ChunkRows | None,
        comm: Comm,
        kind: Kind = Kind.ACTIVATIONS,
    ) -> None:
        self._segments = segments
        self._kind = kind
        self._index = index
        self._chunk_order_copy = chunk_order_copy
        self._ledger = comm.ledger
        self.width = segments.width
        self.dtype = segments.encoding.dtype

    def write_rows(self, first: int, rows_NW: Tensor) -> None:
        """Write the rows of the chunk from own row ``first`` on, once for each wave that loads them."""
        stored = self._segments.encoding.encode_rows(to_host(rows_NW))
        # Duplicate rows on write, so that each wave reads its rows sequentially.
        for segments, rows in self._index.segments_of_chunk(first, first + len(stored)):
            out = pooled_empty((len(rows), stored.shape[1]), _ON_CPU, stored.dtype)
            gather_rows(stored, rows, out, None)
            self._segments.write_segments(segments, out)
        # Count the rows once: copies in the file do not cross the device link again.
        if self._chunk_order_copy is None:
            self._ledger.add_bytes(Link.DEVICE_TO_HOST, self._kind, stored.nbytes)
        else:
            self._chunk_order_copy.write_rows(first, rows_NW)

    def read_wave(self, row_list: RowList, at_N: Tensor, out_BW: Tensor, wave: int) -> None:
        """Read the rows that a wave loads into their slots."""
        via_host(partial(self._segments.read_segments, self._index.segments_of_wave(wave)), out_BW, at_N)
        self._ledger.add_bytes(Link.HOST_TO_DEVICE, self._kind, len(at_N) * self._segments.row_bytes)

    def read_range(self, first: int, last: int) -> Tensor:
        """Return ``[n, W]``: all rows of a chunk."""
        assert self._chunk_order_copy is not None
        return self._chunk_order_copy.read_range(first, last)

    def close(self) -> None:
        """Close the files."""
        self._segments.close()
        if self._chunk_order_copy is not None:
            self._chunk_order_copy.close()


class WaveOrderedGradients:
    """Gradients of source rows: written by the waves that evict them, summed when a chunk reads its rows.

    Args:
        segments: Storage in wave order.
        index: Own rows that each wave evicts.
        comm: Communicator.
    """

    def __init__(self, segments: SegmentFile, index: WaveChunkIndex, comm: Comm) -> None:
        self._segments = segments
        self._index = index
        self._ledger = comm.ledger
        self._device = comm.device

    def write_wave(self, wave: int, values_NW: Tensor) -> None:
        """Write the gradients that a wave evicts."""
        # Append the partial sums instead of adding in place, which would read each row back first.
        stored = self._segments.encoding.encode_rows(to_host(values_NW))
        self._segments.write_segments(self._index.segments_of_wave(wave), stored)
        self._ledger.add_bytes(Link.DEVICE_TO_HOST, Kind.GRADIENTS, stored.nbytes)

    def read_range(self, first: int, last: int) -> Tensor:
        """Return ``[n, W]`` sums for the chunk that begins with own row ``first``, added wave by wave."""
        dtype = self._segments.encoding.dtype
        out = pooled_empty((last - first, self._segments.width), _ON_CPU, dtype).zero_()
        for segments, rows in self._index.segments_of_chunk(first, last):
            part = pooled_empty((len(rows), self._segments.width), _ON_CPU, dtype)
            self._segments.read_segments(segments, part)
            # Segments come in wave order, so the sum of a row does not depend on the grouping.
            scatter_add_rows(out, rows, part, torch.arange(len(rows)))
        self._ledger.add_bytes(Link.HOST_TO_DEVICE, Kind.GRADIENTS, len(out) * self._segments.row_bytes)
        return out.to(self._device)

    def close(self) -> None:
        """Close the file."""
        self._segments.close()
