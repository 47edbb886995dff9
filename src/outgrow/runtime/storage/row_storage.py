"""`RowStorage`: rows in memory or pinned memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from outgrow.ops.backend import as_numpy
from outgrow.ops.rows.coalesce import scatter_add_rows
from outgrow.ops.rows.gather import gather_rows


class RowStorage(ABC):
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
    def read_rows(self, rows_N: Tensor, out_MW: Tensor, to_N: Tensor) -> None:
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
    def add_rows(self, rows_N: Tensor, values_MW: Tensor, at_N: Tensor) -> None:
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


class InMemoryRows(RowStorage):
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
        device: torch.device = RowStorage.device,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self.num_rows, self.width = values_VW.shape
        self.dtype, self.device = values_VW.dtype, device
        self._values_VW, self._release = values_VW.detach(), release

    def read_rows(self, rows_N: Tensor, out_MW: Tensor, to_N: Tensor) -> None:
        """See `RowStorage.read_rows`."""
        if self.device.type == "cpu":
            check_row_ids(self, rows_N)
        check_lossless_cast(self.dtype, out_MW.dtype)
        gather_rows(self._values_VW, rows_N, out_MW, to_N)

    def read_range(self, first: int, last: int, out_NW: Tensor) -> None:
        """See `RowStorage.read_range`."""
        check_row_range(self, first, last, out_NW)
        check_lossless_cast(self.dtype, out_NW.dtype)
        out_NW.copy_(self._values_VW[first:last], non_blocking=True)

    def write_range(self, first: int, rows_NW: Tensor) -> None:
        """See `RowStorage.write_range`."""
        last = first + len(rows_NW)
        check_row_range(self, first, last, rows_NW)
        check_lossless_cast(rows_NW.dtype, self.dtype)
        self._values_VW[first:last].copy_(rows_NW.detach(), non_blocking=True)

    def add_rows(self, rows_N: Tensor, values_MW: Tensor, at_N: Tensor) -> None:
        """See `RowStorage.add_rows`."""
        check_row_ids(self, rows_N)
        check_accumulate_dtype(values_MW.dtype, self.dtype)
        scatter_add_rows(self._values_VW, rows_N, values_MW, at_N)

    def close(self) -> None:
        """Let go of the tensor."""
        self._release()
        self._values_VW = self._values_VW[:0]


def check_lossless_cast(given: torch.dtype, wanted: torch.dtype) -> None:
    """Refuse a conversion that would lose digits.

    Raises:
        TypeError: Not every value of the type ``given`` is one of ``wanted``.
    """
    if given != wanted and torch.promote_types(given, wanted) != wanted:
        raise TypeError(f"{given} does not fit into {wanted} without loss")


def check_accumulate_dtype(values: torch.dtype, host: torch.dtype) -> None:
    """Refuse sums that are not of float32 or float64, or would lose digits.

    Raises:
        TypeError: The values cannot be added to such rows.
    """
    if not {values, host} <= {torch.float32, torch.float64}:
        raise TypeError(f"sums are of float32 or float64, not of {values} into {host}")
    check_lossless_cast(values, host)


def check_row_range(storage: RowStorage, first: int, last: int, other_NW: Tensor) -> None:
    """Refuse a range that does not exist, or a tensor of another shape.

    Raises:
        ValueError: Which of both.
    """
    if not 0 <= first <= last <= storage.num_rows:
        raise ValueError(f"rows {first} to {last} of {storage.num_rows}")
    if other_NW.shape != (last - first, storage.width):
        raise ValueError(f"a tensor of shape {tuple(other_NW.shape)} for {last - first} rows of width {storage.width}")


def check_row_ids(storage: RowStorage, rows_N: Tensor) -> None:
    """Refuse ascending rows that do not exist.

    Raises:
        ValueError: The first or the last of them does not.
    """
    rows = as_numpy(rows_N)
    if len(rows) and not 0 <= rows[0] <= rows[-1] < storage.num_rows:
        raise ValueError(f"rows {rows[0]} to {rows[-1]} of {storage.num_rows}")


def allocate_pinned_rows(num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> InMemoryRows:
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
        _check_status(_cuda_runtime().cudaHostRegister(address, values_VW.nbytes, 0))
        pinned.callback(lambda: _check_status(_cuda_runtime().cudaHostUnregister(address)))
    return InMemoryRows(values_VW, device, pinned.close)


def _cuda_runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _check_status(status: Any) -> None:
    torch.cuda.check_error(int(status))
