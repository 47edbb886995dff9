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
from outgrow.ops.backend import array, tensor
from outgrow.ops.memory_pool import empty
from outgrow.ops.rows.coalesce import add_rows
from outgrow.ops.rows.gather import take_rows, through_memory
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.storage.segment_file import Parcels
from outgrow.runtime.system.device import to_host
from outgrow.strategies.offload.wave import Held
from outgrow.strategies.offload.wave_plan import Range

Array = NDArray[Any]
_ON_CPU = torch.empty(0)


@dataclass(frozen=True, eq=False)
class Lists:
    """Own rows that waves take, or give. Parcels are numbered wave after wave, and within these as chunks lie.

    Attributes:
        counts: ``[waves, chunks]`` int64, rows of each parcel.
        rows: For each chunk, int32: its rows in the parcels of all waves, numbered from its first one.
        number: The number of the chunk that begins with a row; none of empty ones.
    """

    counts: Array
    rows: Sequence[Tensor]
    number: dict[int, int]

    @staticmethod
    def of(rows: Sequence[Tensor], pieces: Sequence[Range]) -> Lists:
        """From the rows of each wave, ascending, and the first and last row (plus 1) of each chunk."""
        firsts = np.array(sorted(first for first, last in pieces if first < last), dtype=np.int64)
        every = np.concatenate([np.empty(0, dtype=np.int64), *map(array, rows)])
        chunk = np.searchsorted(firsts, every, side="right") - 1
        wave = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
        counts = np.bincount(wave * len(firsts) + chunk, minlength=len(rows) * len(firsts))
        relative = (every - firsts[chunk]).astype(np.int32)[chunk.argsort(kind="stable")]
        counts = counts.reshape(len(rows), len(firsts))
        parts = tensor(relative).split_with_sizes(counts.sum(0).tolist())
        return Lists(counts, parts, {first: i for i, first in enumerate(firsts.tolist())})

    def of_wave(self, wave: int) -> Array:
        """The parcels of a wave."""
        chunks = self.counts.shape[1]
        return np.arange(wave * chunks, (wave + 1) * chunks)

    def of_chunk(self, first: int, last: int) -> Iterator[tuple[Array, Tensor]]:
        """Parcels of a chunk and their rows, numbered from its first one: about as many at a time as it has."""
        if first == last:
            return
        chunk, begin = self.number[first], 0
        counts = self.counts[:, chunk]
        rows, ends = self.rows[chunk], np.concatenate(([0], counts.cumsum()))
        while begin < len(counts):
            end = max(begin + 1, int(np.searchsorted(ends, ends[begin] + last - first, side="right")) - 1)
            if ends[begin] < ends[end]:
                numbers = np.arange(begin, end) * self.counts.shape[1] + chunk
                yield numbers, rows[ends[begin] : ends[end]]
            begin = end


class Pieces:
    """Own rows, chunk by chunk. Final.

    Args:
        parcels: One for each chunk.
        pieces: First and last own row (plus 1) of each.
        kind: What rows are.
        comm: The line to the other workers.
    """

    def __init__(self, parcels: Parcels, pieces: Sequence[Range], kind: Kind, comm: Comm) -> None:
        self._parcels, self._kind, self._ledger, self._device = parcels, kind, comm.ledger, comm.device
        self._number = {first: number for number, (first, last) in enumerate(pieces) if first < last}

    def write(self, first: int, rows_NW: Tensor) -> None:
        """The rows of the chunk that begins with own row ``first``."""
        if len(rows_NW):
            self._parcels.write((self._number[first],), to_host(rows_NW))
            self._ledger.move(Link.DEVICE_TO_HOST, self._kind, rows_NW.nbytes)

    def piece(self, first: int, last: int) -> Tensor:
        """``[n, W]``: those of the chunk that begins with own row ``first`` and ends before ``last``."""
        out = empty((last - first, self._parcels.width), _ON_CPU, self._parcels.dtype)
        if len(out):
            self._parcels.read((self._number[first],), out)
            self._ledger.move(Link.HOST_TO_DEVICE, self._kind, out.nbytes)
        return out.to(self._device)

    def close(self) -> None:
        """Close the file."""
        self._parcels.close()


class Inbox:
    """Rows of sources: written by chunks, and read by the waves at which they arrive. Final.

    Args:
        parcels: Where they lie.
        lists: Own rows that arrive at each wave.
        in_order: Where all own ones lie besides; None if chunks do not read these.
        comm: The line to the other workers.
    """

    def __init__(self, parcels: Parcels, lists: Lists, in_order: Pieces | None, comm: Comm) -> None:
        self._parcels, self._lists, self._in_order, self._ledger = parcels, lists, in_order, comm.ledger
        self.width, self.dtype = parcels.width, parcels.dtype

    def write(self, first: int, rows_NW: Tensor) -> None:
        """The rows of the chunk that begins with own row ``first``, to all waves at which they arrive."""
        rows_NW = to_host(rows_NW)
        for parcels, rows in self._lists.of_chunk(first, first + len(rows_NW)):
            out = empty((len(rows), self.width), _ON_CPU, self.dtype)
            take_rows(rows_NW, rows, out, None)
            self._parcels.write(parcels, out)
        if self._in_order is None:
            self._ledger.move(Link.DEVICE_TO_HOST, Kind.ACTIVATIONS, rows_NW.nbytes)
        else:
            self._in_order.write(first, rows_NW)

    def read(self, held: Held, at_N: Tensor, out_BW: Tensor, wave: int) -> None:
        """The rows that arrive at a wave, to their places."""
        through_memory(partial(self._parcels.read, self._lists.of_wave(wave)), out_BW, at_N)
        moved = len(at_N) * self.width * self.dtype.itemsize
        self._ledger.move(Link.HOST_TO_DEVICE, Kind.ACTIVATIONS, moved)

    def piece(self, first: int, last: int) -> Tensor:
        """``[n, W]``: all rows of a chunk."""
        assert self._in_order is not None
        return self._in_order.piece(first, last)

    def close(self) -> None:
        """Close the files."""
        self._parcels.close()
        if self._in_order is not None:
            self._in_order.close()


class Outbox:
    """Gradients of sources: written by the waves at which they leave, and added up for the chunk whose rows they are.

    Args:
        parcels: Where they lie.
        lists: Own rows that leave at each wave.
        comm: The line to the other workers.
    """

    def __init__(self, parcels: Parcels, lists: Lists, comm: Comm) -> None:
        self._parcels, self._lists, self._ledger, self._device = parcels, lists, comm.ledger, comm.device

    def write(self, wave: int, values_NW: Tensor) -> None:
        """The gradients that leave at a wave."""
        self._parcels.write(self._lists.of_wave(wave), to_host(values_NW))
        self._ledger.move(Link.DEVICE_TO_HOST, Kind.GRADIENTS, values_NW.nbytes)

    def piece(self, first: int, last: int) -> Tensor:
        """``[n, W]``: the sums of the chunk that begins with own row ``first``, added up wave by wave."""
        out = empty((last - first, self._parcels.width), _ON_CPU, self._parcels.dtype).zero_()
        for parcels, rows in self._lists.of_chunk(first, last):
            part = empty((len(rows), self._parcels.width), _ON_CPU, self._parcels.dtype)
            self._parcels.read(parcels, part)
            add_rows(out, rows, part, torch.arange(len(rows)))
        self._ledger.move(Link.HOST_TO_DEVICE, Kind.GRADIENTS, out.nbytes)
        return out.to(self._device)

    def close(self) -> None:
        """Close the file."""
        self._parcels.close()
