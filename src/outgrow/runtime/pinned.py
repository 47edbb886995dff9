"""Rows of the HOST tier in pinned memory, which a GPU reads and writes itself."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch

from outgrow.runtime.host_rows import MemoryRows


def pinned_rows(num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> MemoryRows:
    """Rows of zeros, written and read by a device without a copy beside them, until they are closed.

    torch's own pinned memory comes in powers of two: here it is the memory of a tensor that is registered.

    Args:
        num_rows: How many rows.
        width: Columns of a row.
        dtype: Type of the values.
        device: What reads and writes them; only for CUDA they are pinned.

    Raises:
        RuntimeError: The system does not let so much memory be pinned.
    """
    values_VW, pinned = torch.zeros(num_rows, width, dtype=dtype), ExitStack()
    if device.type == "cuda" and values_VW.numel():
        address = values_VW.data_ptr()
        _require(_runtime().cudaHostRegister(address, values_VW.nbytes, 0))
        pinned.callback(lambda: _require(_runtime().cudaHostUnregister(address)))
    return MemoryRows(values_VW, device, pinned.close)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _require(status: Any) -> None:
    torch.cuda.check_error(int(status))
