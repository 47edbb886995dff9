"""Rows of the HOST tier in pinned memory, which a GPU reads and writes itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outgrow.ops.gather import take_rows
from outgrow.runtime.host_rows import HostRows, MemoryRows, check_range, check_type


class PinnedRows(HostRows):
    """Rows of zeros, written and read by a device without a copy beside them. Final.

    What is read and written is done when the stream has come so far. Rows that a device is given are not checked.
    torch's own pinned memory comes in powers of two: here it is the memory of a tensor that is registered.

    Args:
        num_rows: How many rows.
        width: Columns of a row.
        dtype: Type of the values.
        device: What reads and writes them; for a CPU nothing is pinned.

    Raises:
        RuntimeError: The system does not let so much memory be pinned.
    """

    def __init__(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.num_rows, self.width, self.dtype = num_rows, width, dtype
        self._values_VW = torch.zeros(num_rows, width, dtype=dtype)
        self._memory = MemoryRows(self._values_VW)
        self._registered = 0
        if device.type == "cuda" and num_rows * width:
            self._registered = self._values_VW.data_ptr()
            _require(_runtime().cudaHostRegister(self._registered, self._values_VW.nbytes, 0))

    def read(self, rows_N: Tensor, out_MW: Tensor, to_N: Tensor) -> None:
        """See `HostRows.read`."""
        if out_MW.device.type == "cpu":
            self._memory.read(rows_N, out_MW, to_N)
        else:
            check_type(self.dtype, out_MW.dtype)
            take_rows(self._values_VW, rows_N, out_MW, to_N)

    def read_range(self, first: int, last: int, out_NW: Tensor) -> None:
        """See `HostRows.read_range`."""
        check_range(self, first, last, out_NW)
        check_type(self.dtype, out_NW.dtype)
        out_NW.copy_(self._values_VW[first:last], non_blocking=True)

    def write_range(self, first: int, rows_NW: Tensor) -> None:
        """See `HostRows.write_range`."""
        last = first + len(rows_NW)
        check_range(self, first, last, rows_NW)
        check_type(rows_NW.dtype, self.dtype)
        self._values_VW[first:last].copy_(rows_NW.detach(), non_blocking=True)

    def add(self, rows_N: Tensor, values_MW: Tensor, at_N: Tensor) -> None:
        """See `HostRows.add`; values are in memory."""
        self._memory.add(rows_N, values_MW, at_N)

    def close(self) -> None:
        """Let go of the memory."""
        if self._registered:
            _require(_runtime().cudaHostUnregister(self._registered))
            self._registered = 0
        self._memory.close()
        self._values_VW = self._values_VW[:0]


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _require(status: Any) -> None:
    torch.cuda.check_error(int(status))
