"""Parcels in memory, for tests of what reads and writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import as_tensor
from outgrow.ops.rows.gather import gather_rows
from outgrow.runtime.storage.segment_file import SegmentStorage

Array = NDArray[Any]


class MemoryParcels(SegmentStorage):
    """Parcels in memory. See `SegmentStorage`."""

    def __init__(self, counts_P: Array, width: int, dtype: torch.dtype) -> None:
        super().__init__(counts_P, width, dtype)
        self._begins = np.concatenate(([0], self._counts_P.cumsum()))
        self._values = torch.zeros(int(self._begins[-1]), width, dtype=dtype)

    def read_segments(self, segments: Array | Sequence[int], out_MW: Tensor, to_N: Tensor | None = None) -> None:
        """See `SegmentStorage.read_segments`."""
        self._check_type(out_MW.dtype)
        at = self._rows(segments, len(out_MW) if to_N is None else len(to_N))
        gather_rows(self._values, at, out_MW, to_N)

    def write_segments(self, segments: Array | Sequence[int], rows_NW: Tensor) -> None:
        """See `SegmentStorage.write_segments`."""
        self._check_type(rows_NW.dtype)
        self._values[self._rows(segments, len(rows_NW))] = rows_NW.detach()

    def close(self) -> None:
        """See `SegmentStorage.close`."""
        self._values = self._values[:0]

    def _rows(self, parcels: Array | Sequence[int], count: int) -> Tensor:
        chosen = np.asarray(parcels, dtype=np.int64)
        ends = self._row_ends(chosen, count)
        return as_tensor(np.repeat(self._begins[chosen] - ends[:-1], self._counts_P[chosen]) + np.arange(count))
