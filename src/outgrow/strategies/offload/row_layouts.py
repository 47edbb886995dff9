"""Rows in the HOST tier in the order in which waves take them, so that a disk never seeks row by row.

What a chunk and a wave have in common is one parcel: a chunk writes those that waves read, one wave after another, and
a wave writes those of which chunks make sums.

Letters: ``n`` own rows of a chunk, ``W`` numbers in a row.
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
from outgrow.runtime.storage.segment_file import SegmentStorage
from outgrow.runtime.system.device import to_host
from outgrow.strategies.offload.wave import RowList
from outgrow.strategies.offload.wave_plan import RowRange

Array = NDArray[Any]
_ON_CPU = torch.empty(0)


@dataclass(frozen=True, eq=False)
class WaveChunkIndex:
    """Own rows that waves take, or give. Parcels are numbered wave after wave, and within these as chunks lie.

    Attributes:
        counts: ``[waves, chunks]`` int64, rows of each parcel.
        rows: For each chunk, int32: its rows in the parcels of all waves, numbered from its first one.
        chunk_number: The number of the chunk that begins with a row; none of empty ones.
    """

    counts: Array
    rows: Sequence[Tensor]
    chunk_number: dict[int, int]

    @staticmethod
    def from_waves(rows: Sequence[Tensor], chunk_ranges: Sequence[RowRange]) -> WaveChunkIndex:
        """From the rows of each wave, ascending, and the first and last row (plus 1) of each chunk."""
        firsts = np.array(sorted(first for first, last in chunk_ranges if first < last), dtype=np.int64)
        every = np.concatenate([np.empty(0, dtype=np.int64), *map(as_numpy, rows)])
        chunk = np.searchsorted(firsts, every, side="right") - 1
        wave = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
        counts = np.bincount(wave * len(firsts) + chunk, minlength=len(rows) * len(firsts))
        relative = (every - firsts[chunk]).astype(np.int32)[chunk.argsort(kind="stable")]
        counts = counts.reshape(len(rows), len(firsts))
        parts = as_tensor(relative).split_with_sizes(counts.sum(0).tolist())
        return WaveChunkIndex(counts, parts, {first: i for i, first in enumerate(firsts.tolist())})

    def segments_of_wave(self, wave: int) -> Array:
        """The parcels of a wave."""
        chunks = self.counts.shape[1]
        return np.arange(wave * chunks, (wave + 1) * chunks)

    def segments_of_chunk(self, first: int, last: int) -> Iterator[tuple[Array, Tensor]]:
        """Parcels of a chunk and their rows, numbered from its first one: about as many at a time as it has."""
        if first == last:
            return
        chunk = self.chunk_number[first]
        begin = 0
        counts = self.counts[:, chunk]
        rows = self.rows[chunk]
        ends = np.concatenate(([0], counts.cumsum()))
        while begin < len(counts):
            end = max(begin + 1, int(np.searchsorted(ends, ends[begin] + last - first, side="right")) - 1)
            if ends[begin] < ends[end]:
                numbers = np.arange(begin, end) * self.counts.shape[1] + chunk
                yield numbers, rows[ends[begin] : ends[end]]
            begin = end


class ChunkRows:
    """Own rows, chunk by chunk. Final.

    Args:
        segments: One for each chunk.
        chunk_ranges: First and last own row (plus 1) of each.
        kind: What rows are.
        comm: The line to the other workers.
    """

    def __init__(self, segments: SegmentStorage, chunk_ranges: Sequence[RowRange], kind: Kind, comm: Comm) -> None:
        self._segments = segments
        self._kind = kind
        self._ledger = comm.ledger
        self._device = comm.device
        self._chunk_number = {first: number for number, (first, last) in enumerate(chunk_ranges) if first < last}

    def write_rows(self, first: int, rows_NW: Tensor) -> None:
        """The rows of the chunk that begins with own row ``first``."""
        if len(rows_NW):
            self._segments.write_segments((self._chunk_number[first],), to_host(rows_NW))
            self._ledger.add_bytes(Link.DEVICE_TO_HOST, self._kind, rows_NW.nbytes)

    def read_range(self, first: int, last: int) -> Tensor:
        """``[n, W]``: those of the chunk that begins with own row ``first`` and ends before ``last``."""
        out = pooled_empty((last - first, self._segments.width), _ON_CPU, self._segments.dtype)
        if len(out):
            self._segments.read_segments((self._chunk_number[first],), out)
            self._ledger.add_bytes(Link.HOST_TO_DEVICE, self._kind, out.nbytes)
        return out.to(self._device)

    def close(self) -> None:
        """Close the file."""
        self._segments.close()


class WaveOrderedRows:
    """Rows of sources: written by chunks, and read by the waves at which they arrive. Final.

    Args:
        segments: Where they lie.
        index: Own rows that arrive at each wave.
        chunk_order_copy: Where all own ones lie besides; None if chunks do not read these.
        comm: The line to the other workers.
    """

    def __init__(
        self, segments: SegmentStorage, index: WaveChunkIndex, chunk_order_copy: ChunkRows | None, comm: Comm
    ) -> None:
        self._segments = segments
        self._index = index
        self._chunk_order_copy = chunk_order_copy
        self._ledger = comm.ledger
        self.width = segments.width
        self.dtype = segments.dtype

    def write_rows(self, first: int, rows_NW: Tensor) -> None:
        """The rows of the chunk that begins with own row ``first``, to all waves at which they arrive."""
        rows_NW = to_host(rows_NW)
        for parcels, rows in self._index.segments_of_chunk(first, first + len(rows_NW)):
            out = pooled_empty((len(rows), self.width), _ON_CPU, self.dtype)
            gather_rows(rows_NW, rows, out, None)
            self._segments.write_segments(parcels, out)
        if self._chunk_order_copy is None:
            self._ledger.add_bytes(Link.DEVICE_TO_HOST, Kind.ACTIVATIONS, rows_NW.nbytes)
        else:
            self._chunk_order_copy.write_rows(first, rows_NW)

    def read_wave(self, row_list: RowList, at_N: Tensor, out_BW: Tensor, wave: int) -> None:
        """The rows that arrive at a wave, to their places."""
        via_host(partial(self._segments.read_segments, self._index.segments_of_wave(wave)), out_BW, at_N)
        moved = len(at_N) * self.width * self.dtype.itemsize
        self._ledger.add_bytes(Link.HOST_TO_DEVICE, Kind.ACTIVATIONS, moved)

    def read_range(self, first: int, last: int) -> Tensor:
        """``[n, W]``: all rows of a chunk."""
        assert self._chunk_order_copy is not None
        return self._chunk_order_copy.read_range(first, last)

    def close(self) -> None:
        """Close the files."""
        self._segments.close()
        if self._chunk_order_copy is not None:
            self._chunk_order_copy.close()


class WaveOrderedGradients:
    """Gradients of sources: written by the waves at which they leave, and added up for the chunk whose rows they are.

    Args:
        segments: Where they lie.
        index: Own rows that leave at each wave.
        comm: The line to the other workers.
    """

    def __init__(self, segments: SegmentStorage, index: WaveChunkIndex, comm: Comm) -> None:
        self._segments = segments
        self._index = index
        self._ledger = comm.ledger
        self._device = comm.device

    def write_wave(self, wave: int, values_NW: Tensor) -> None:
        """The gradients that leave at a wave."""
        self._segments.write_segments(self._index.segments_of_wave(wave), to_host(values_NW))
        self._ledger.add_bytes(Link.DEVICE_TO_HOST, Kind.GRADIENTS, values_NW.nbytes)

    def read_range(self, first: int, last: int) -> Tensor:
        """``[n, W]``: the sums of the chunk that begins with own row ``first``, added up wave by wave."""
        out = pooled_empty((last - first, self._segments.width), _ON_CPU, self._segments.dtype).zero_()
        for parcels, rows in self._index.segments_of_chunk(first, last):
            part = pooled_empty((len(rows), self._segments.width), _ON_CPU, self._segments.dtype)
            self._segments.read_segments(parcels, part)
            scatter_add_rows(out, rows, part, torch.arange(len(rows)))
        self._ledger.add_bytes(Link.HOST_TO_DEVICE, Kind.GRADIENTS, out.nbytes)
        return out.to(self._device)

    def close(self) -> None:
        """Close the file."""
        self._segments.close()
