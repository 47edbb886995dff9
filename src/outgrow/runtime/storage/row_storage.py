"""`RowStorage`, the interface of row storage, and its implementation in (pinned) memory; `row_file` has the other."""

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
    """Rows of one width in the HOST tier. Thread-safe as long as threads write different rows.

    Arguments are checked here, for every kind of storage; the final classes only transfer rows.

    Letters: ``V`` stored rows, ``W`` columns, ``N`` transferred rows, ``M`` rows of the other tensor. Values are
    widened to a wider destination dtype; a narrower one raises a TypeError, and rows out of range a ValueError.

    Attributes:
        num_rows: Number of stored rows.
        width: Number of columns.
        dtype: Dtype of the values.
        device: Device of the other tensors; those of `add_rows` are always in host memory.
    """

    num_rows: int
    width: int
    dtype: torch.dtype
    device = torch.device("cpu")

    def read_rows(self, rows_N: Tensor, out_MW: Tensor, to_N: Tensor) -> None:
        """Read selected rows: ``out[to[i]] = host[rows[i]]``.

        Args:
            rows_N: ``[N]`` int32 or int64, ascending and distinct; on a GPU they are not checked.
            out_MW: ``[M, W]`` floating, output; any strides, so that it may be a slice of columns of a wider
                tensor.
            to_N: ``[N]`` int32 or int64, distinct.
        """
        # Ids on a GPU would have to be copied, and its stream waited for.
        if self.device.type == "cpu":
            self._check_row_ids(rows_N)
        _check_lossless_cast(self.dtype, out_MW.dtype)
        self._read_rows(rows_N, out_MW, to_N)

    def read_range(self, first: int, last: int, out_NW: Tensor) -> None:
        """Read a range: ``out[:] = host[first:last]``; fastest if contiguous and of the same dtype."""
        self._check_row_range(first, last, out_NW)
        _check_lossless_cast(self.dtype, out_NW.dtype)
        self._read_range(first, out_NW)

    def write_range(self, first: int, rows_NW: Tensor) -> None:
        """Write a range: ``host[first:first + N] = rows``; fastest if contiguous and of the same dtype."""
        self._check_row_range(first, first + len(rows_NW), rows_NW)
        _check_lossless_cast(rows_NW.dtype, self.dtype)
        self._write_range(first, rows_NW.detach())

    def add_rows(self, rows_N: Tensor, values_MW: Tensor, at_N: Tensor) -> None:
        """Accumulate into selected rows: ``host[rows[i]] += values[at[i]]``.

        May read and write back unchanged rows in between, so no other thread may write to any row at the same
        time.

        Args:
            rows_N: ``[N]`` int32 or int64, ascending and distinct.
            values_MW: ``[M, W]`` float32 or float64; any strides. The stored rows must have one of these
                dtypes too.
            at_N: ``[N]`` int32 or int64.
        """
        self._check_row_ids(rows_N)
        if not {values_MW.dtype, self.dtype} <= {torch.float32, torch.float64}:
            raise TypeError(f"sums are of float32 or float64, not of {values_MW.dtype} into {self.dtype}")
        _check_lossless_cast(values_MW.dtype, self.dtype)
        self._add_rows(rows_N, values_MW, at_N)

    def write_rows(self, rows_N: Tensor, values_MW: Tensor, at_N: Tensor) -> None:
        """Write selected rows: ``host[rows[i]] = values[at[i]]``; in threads as for `add_rows`.

        Args:
            rows_N: ``[N]`` int32 or int64, ascending and distinct.
            values_MW: ``[M, W]`` of the type of the rows; any strides.
            at_N: ``[N]`` int32 or int64.
        """
        self._check_row_ids(rows_N)
        if values_MW.dtype != self.dtype:
            raise TypeError(f"rows are of {self.dtype}, not of {values_MW.dtype}")
        self._write_rows(rows_N, values_MW.detach(), at_N)

    @abstractmethod
    def close(self) -> None:
        """Release the rows."""

    @abstractmethod
    def _read_rows(self, rows_N: Tensor, out_MW: Tensor, to_N: Tensor) -> None: ...

    @abstractmethod
    def _read_range(self, first: int, out_NW: Tensor) -> None: ...

    @abstractmethod
    def _write_range(self, first: int, rows_NW: Tensor) -> None: ...

    @abstractmethod
    def _add_rows(self, rows_N: Tensor, values_MW: Tensor, at_N: Tensor) -> None: ...

    @abstractmethod
    def _write_rows(self, rows_N: Tensor, values_MW: Tensor, at_N: Tensor) -> None: ...

    def _check_row_ids(self, rows_N: Tensor) -> None:
        # Ids ascend, so both ends are enough.
        rows = as_numpy(rows_N)
        if len(rows) and not 0 <= rows[0] <= rows[-1] < self.num_rows:
            raise ValueError(f"rows {rows[0]} to {rows[-1]} of {self.num_rows}")

    def _check_row_range(self, first: int, last: int, other_NW: Tensor) -> None:
        if not 0 <= first <= last <= self.num_rows:
            raise ValueError(f"rows {first} to {last} of {self.num_rows}")
        if other_NW.shape != (last - first, self.width):
            raise ValueError(f"a tensor of shape {tuple(other_NW.shape)} for {last - first} rows of width {self.width}")


class InMemoryRows(RowStorage):
    """Rows of a tensor in memory, or in a memory map that is used like memory.

    With a GPU, transfers are asynchronous on its current stream.

    Args:
        values_VW: ``[V, W]`` floating; written in place.
        device: Device of the other tensors; for a GPU the memory must be pinned.
        release: Called by `close`, each time.
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

    def _read_rows(self, rows_N: Tensor, out_MW: Tensor, to_N: Tensor) -> None:
        gather_rows(self._values_VW, rows_N, out_MW, to_N)

    def _read_range(self, first: int, out_NW: Tensor) -> None:
        out_NW.copy_(self._values_VW[first : first + len(out_NW)], non_blocking=True)

    def _write_range(self, first: int, rows_NW: Tensor) -> None:
        self._values_VW[first : first + len(rows_NW)].copy_(rows_NW, non_blocking=True)

    def _add_rows(self, rows_N: Tensor, values_MW: Tensor, at_N: Tensor) -> None:
        scatter_add_rows(self._values_VW, rows_N, values_MW, at_N)

    def _write_rows(self, rows_N: Tensor, values_MW: Tensor, at_N: Tensor) -> None:
        self._values_VW[rows_N.long()] = values_MW[at_N.long()]

    def close(self) -> None:
        """Release the tensor."""
        self._release()
        self._values_VW = self._values_VW[:0]


def _check_lossless_cast(given: torch.dtype, wanted: torch.dtype) -> None:
    """Refuse a conversion that would lose precision."""
    if given != wanted and torch.promote_types(given, wanted) != wanted:
        raise TypeError(f"{given} does not fit into {wanted} without loss")


def allocate_pinned_rows(num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> InMemoryRows:
    """Allocate rows of zeros in memory that a device accesses directly, until they are closed.

    Args:
        num_rows: Number of rows.
        width: Number of columns.
        dtype: Dtype of the values.
        device: Device that accesses them; memory is pinned only for CUDA.

    Raises:
        RuntimeError: The system does not allow so much memory to be pinned.
    """
    # torch's own pinned allocator rounds up to powers of two, up to twice the size: register an ordinary
    # tensor instead.
    return pin_rows(torch.zeros(num_rows, width, dtype=dtype), device)


def pin_rows(values_VW: Tensor, device: torch.device) -> InMemoryRows:
    """Return rows of a tensor in memory that a device accesses directly, until they are closed.

    Args:
        values_VW: ``[V, W]`` contiguous, such as memory that several processes have in common.
        device: Device that accesses them; memory is pinned only for CUDA.

    Raises:
        RuntimeError: The system does not allow so much memory to be pinned.
    """
    pinned = ExitStack()
    if device.type == "cuda" and values_VW.numel():
        address = values_VW.data_ptr()
        _check_status(_cuda_runtime().cudaHostRegister(address, values_VW.nbytes, 0))
        pinned.callback(lambda: _check_status(_cuda_runtime().cudaHostUnregister(address)))
    return InMemoryRows(values_VW, device, pinned.close)


def _cuda_runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _check_status(status: Any) -> None:
    torch.cuda.check_error(int(status))
