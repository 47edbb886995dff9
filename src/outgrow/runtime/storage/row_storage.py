"""`RowStorage`: rows in memory or pinned memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from outgrow.ops.backend import array
from outgrow.ops.rows.coalesce import add_rows
from outgrow.ops.rows.gather import take_rows


class HostRows(ABC):
    """Rows of one width in the HOST tier, for several threads at once as long as they write different rows.

    Letters: ``V`` rows there are, ``W`` columns, ``N`` rows moved, ``M`` rows of the tensor on the other side. Values
    are widened where the other side's type is wider; a narrower one raises a TypeError.

    Attributes:
        num_rows: How many rows there are.
        width: Columns of a row.
        dtype: Type of the values.
        device: Where tensors on the other side are; values that are added are in memory.
    """

    num_rows: int
    width: int
    dtype: torch.dtype
    device = torch.device("cpu")

    @abstractmethod
    def read(self, rows_N: Tensor, out_MW: Tensor, to_N: Tensor) -> None:
        """``out[to[i]] = host[rows[i]]``.

        Args:
            rows_N: ``[N]`` int32 or int64, ascending and distinct.
            out_MW: ``[M, W]`` floating, written; any strides, so that it may be some columns of a wider tensor.
            to_N: ``[N]`` int32 or int64, distinct.
        """

    @abstractmethod
    def read_range(self, first: int, last: int, out_NW: Tensor) -> None:
        """``out[:] = host[first:last]``; fastest where ``out`` is contiguous and of the same type."""

    @abstractmethod
    def write_range(self, first: int, rows_NW: Tensor) -> None:
        """``host[first:first + N] = rows``; fastest where they are contiguous and of the same type."""

    @abstractmethod
    def add(self, rows_N: Tensor, values_MW: Tensor, at_N: Tensor) -> None:
        """``host[rows[i]] += values[at[i]]``.

        Rows that lie between these may be read and written back as they are: nobody else may write any meanwhile.

        Args:
            rows_N: ``[N]`` int32 or int64, ascending and distinct.
            values_MW: ``[M, W]`` float32 or float64; any strides. The host's rows must be of one of these types too.
            at_N: ``[N]`` int32 or int64.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of what holds the rows."""


class MemoryRows(HostRows):
    """The rows of a tensor in memory, or of a memory map that is used as memory.

    A GPU that reads or writes them has done so when its stream has come so far; rows that it is given are not checked.

    Args:
        values_VW: ``[V, W]`` floating. What is written goes into it.
        device: Where tensors on the other side are; for a GPU the memory is pinned.
        release: Called when they are closed, once or more often.
    """

    def __init__(
        self,
        values_VW: Tensor,
        device: torch.device = HostRows.device,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self.num_rows, self.width = values_VW.shape
        self.dtype, self.device = values_VW.dtype, device
        self._values_VW, self._release = values_VW.detach(), release

    def read(self, rows_N: Tensor, out_MW: Tensor, to_N: Tensor) -> None:
        """See `HostRows.read`."""
        if self.device.type == "cpu":
            check_rows(self, rows_N)
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
        """See `HostRows.add`."""
        check_rows(self, rows_N)
        check_sums(values_MW.dtype, self.dtype)
        add_rows(self._values_VW, rows_N, values_MW, at_N)

    def close(self) -> None:
        """Let go of the tensor."""
        self._release()
        self._values_VW = self._values_VW[:0]


def check_type(given: torch.dtype, wanted: torch.dtype) -> None:
    """Refuse a conversion that would lose digits.

    Raises:
        TypeError: Not every value of the type ``given`` is one of ``wanted``.
    """
    if given != wanted and torch.promote_types(given, wanted) != wanted:
        raise TypeError(f"{given} does not fit into {wanted} without loss")


def check_sums(values: torch.dtype, host: torch.dtype) -> None:
    """Refuse sums that are not of float32 or float64, or would lose digits.

    Raises:
        TypeError: The values cannot be added to such rows.
    """
    if not {values, host} <= {torch.float32, torch.float64}:
        raise TypeError(f"sums are of float32 or float64, not of {values} into {host}")
    check_type(values, host)


def check_range(host: HostRows, first: int, last: int, other_NW: Tensor) -> None:
    """Refuse a range that does not exist, or a tensor of another shape.

    Raises:
        ValueError: Which of both.
    """
    if not 0 <= first <= last <= host.num_rows:
        raise ValueError(f"rows {first} to {last} of {host.num_rows}")
    if other_NW.shape != (last - first, host.width):
        raise ValueError(f"a tensor of shape {tuple(other_NW.shape)} for {last - first} rows of width {host.width}")


def check_rows(host: HostRows, rows_N: Tensor) -> None:
    """Refuse ascending rows that do not exist.

    Raises:
        ValueError: The first or the last of them does not.
    """
    rows = array(rows_N)
    if len(rows) and not 0 <= rows[0] <= rows[-1] < host.num_rows:
        raise ValueError(f"rows {rows[0]} to {rows[-1]} of {host.num_rows}")


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
