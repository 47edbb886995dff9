"""The out-edges of the sources of each wave, which are sorted once and kept beside the waves.

The gradient of source rows sums over out-edges. Sorting the in-edges of a wave by source in every backward pass costs
more than reading their order. For each wave the file has the number of out-edges of each row that the wave lists, and
of each out-edge its destination and its position among the in-edges.

Letters: ``B`` slots of the buffer, ``E`` edges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.core.ledger import Kind, Ledger, Link
from outgrow.ops.csc import TransposedEdges, transpose
from outgrow.ops.memory_pool import pooled_empty
from outgrow.runtime.storage.row_storage import RowStorage
from outgrow.strategies.offload.wave import Wave, aligned_bytes, pack_tensors

_COUNT = torch.int32
_ON_CPU = torch.empty(0)


def transpose_file_bytes(num_listed: int, num_edges: int) -> int:
    """Return the bytes of the out-edges of a wave in the file.

    Args:
        num_listed: Rows that the wave loads or gets from other workers, or that are still there.
        num_edges: In-edges of the wave.
    """
    return aligned_bytes(num_listed * _COUNT.itemsize) + 2 * aligned_bytes(num_edges * _edge_dtype(num_edges).itemsize)


class WaveTransposes:
    """The out-edges of the waves of a worker from some wave on. Final.

    Args:
        storage: ``[B, 1]`` uint8, room for them, in the HOST tier.
        first: The first wave whose out-edges are kept: those before stay in memory.
        ledger: By which reads are counted.
    """

    def __init__(self, storage: RowStorage, first: int, ledger: Ledger) -> None:
        self._storage = storage
        self._first = first
        self._ledger = ledger
        # Where each wave's bytes begin, and the last one's end.
        self._starts = [0]

    def append(self, wave: Wave) -> None:
        """Write the out-edges of the next wave, in the slots that its rows have."""
        back = transpose(wave.edges)
        counts = (back.indptr[1:] - back.indptr[:-1])[_listed_slots(wave)].to(_COUNT)
        _, out = pack_tensors((counts, back.indices, back.edge))
        self._storage.write_range(self._starts[-1], out[:, None])
        self._starts.append(self._starts[-1] + len(out))

    def keeps(self, number: int) -> bool:
        """Whether the out-edges of a wave are in the file."""
        return 0 <= number - self._first < len(self._starts) - 1

    def read(self, number: int, wave: Wave) -> TransposedEdges:
        """Return the out-edges of a wave, on the device of its edges.

        Args:
            number: Of the wave.
            wave: The wave, as it was read.
        """
        at = number - self._first
        begin, end = self._starts[at : at + 2]
        given = pooled_empty((end - begin,), _ON_CPU, torch.uint8)
        self._storage.read_range(begin, end, given[:, None])
        self._ledger.add_bytes(Link.HOST_TO_DEVICE, Kind.TOPOLOGY, end - begin)
        slots, device = _listed_slots(wave), wave.edges.indptr.device
        counts = given[: len(slots) * _COUNT.itemsize].view(_COUNT)
        indptr = torch.zeros(wave.edges.num_src + 1, dtype=torch.int64)
        indptr[slots + 1] = counts.long()
        dtype, num_edges = _edge_dtype(wave.edges.num_edges), wave.edges.num_edges
        start, size = aligned_bytes(counts.nbytes), aligned_bytes(num_edges * dtype.itemsize)
        dst, edge = (given[first : first + num_edges * dtype.itemsize].view(dtype) for first in (start, start + size))
        return TransposedEdges(indptr.cumsum_(0).to(device), dst.to(device), edge.to(device))

    def close(self) -> None:
        """Close the file."""
        self._storage.close()


def _listed_slots(wave: Wave) -> Tensor:
    """Return ``[N]`` int64: the slots of all rows that edges of a wave may read."""
    return torch.cat([wave.loads.slot, wave.remote.slot]).long()


def _edge_dtype(num_edges: int) -> torch.dtype:
    """Return the type of destinations and positions: see `outgrow.ops.csc.transpose_csc`."""
    return torch.int32 if num_edges < 2**31 else torch.int64
