"""Kernels that read rows of a file, and add to them, by calling the system directly.

Runs are short and many, and threads that read them from Python would wait for Python's lock before each one.
If the system has no ``pread``, Python runs the same loops. Letters: ``W`` columns, ``M`` rows of the tensor,
``N`` rows requested, ``S`` rows of the staging buffer.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import overload, serial_kernel
from outgrow.ops.kernels.numerics import as_float, kernel_view
from outgrow.ops.rows.coalesce import coalesce_end, scatter_add_range, scatter_range
from outgrow.ops.rows.gather import WORDS

Array = NDArray[Any]
P = ParamSpec("P")
R = TypeVar("R")

PAGE_BYTES = 4096
ENDED = -1
"""Result of a kernel if the file ends too early."""


def pread_into(file: int, start: int, memory: Array) -> None:
    """Read bytes ``start, ...`` of a file into contiguous memory.

    Raises:
        EOFError: The file ends too early.
        OSError: The read failed.
    """
    raise_errno(pread_memory(file, start, memory))


def pwrite_from(file: int, start: int, memory: Array) -> None:
    """Write contiguous memory to bytes ``start, ...`` of a file.

    Raises:
        OSError: The write failed.
    """
    raise_errno(pwrite_memory(file, start, memory))


def read_file_rows(
    file: int, offset: int, rows_N: Array, gap_rows: int, staged_SW: Tensor, out_MW: Tensor, to_N: Array
) -> tuple[int, int]:
    """Read ``out[to[i]] = row rows[i] of the file``, converted to the type of ``out``.

    Args:
        file: Descriptor of the file.
        offset: Byte of the file at which row 0 begins.
        rows_N: ``[N]`` integer, ascending and distinct.
        gap_rows: Most rows between two neighbours of one run, which is read at once.
        staged_SW: ``[S, W]`` contiguous, of the type of the file, overwritten; limits the length of a run.
        out_MW: ``[M, W]`` of the same or a wider floating type, written.
        to_N: ``[N]`` integer, distinct.

    Returns:
        Number of runs, and of the pages of `PAGE_BYTES` that they lie in.

    Raises:
        EOFError: The file ends too early.
        OSError: A system call failed.
    """
    if staged_SW.dtype == out_MW.dtype:
        # Copied as integers of the same size, so that all types of a width share one kernel.
        word = WORDS[out_MW.dtype.itemsize]
        staged = staged_SW.view(word).numpy()
        out = out_MW.detach().view(word).numpy()
    else:
        staged = kernel_view(staged_SW).numpy()
        out = out_MW.detach().numpy()
    rows = _as_int64(rows_N)
    to = _as_int64(to_N)
    error, runs, pages = _read_rows(file, offset, rows, gap_rows, staged, out, to)
    raise_errno(error)
    return runs, pages


def change_file_rows(
    file: int, offset: int, rows_N: Array, gap_rows: int, staged_SW: Tensor, given: tuple[Tensor, Array], *, adds: bool
) -> tuple[int, int, int]:
    """Add ``values[at[i]]`` to row ``rows[i]`` of the file, or write it there.

    Rows in the gaps of a run are written back unchanged, which is cheaper than a system call per row.

    Args:
        file: Descriptor of the file.
        offset: Byte of the file at which row 0 begins.
        rows_N: ``[N]`` integer, ascending and distinct.
        gap_rows: Most rows between two neighbours of one run, which is read and written at once.
        staged_SW: ``[S, W]`` contiguous float32 or float64, of the type of the file, overwritten; no run is
            longer.
        given: ``values [M, W]`` float32 or float64, and ``at [N]`` integer.
        adds: Whether values are added to what is there.

    Returns:
        Number of runs read, of the pages of `PAGE_BYTES` that they lie in, and of bytes written.

    Raises:
        EOFError: The file ends too early.
        OSError: A system call failed.
    """
    values_MW, at_N = given
    rows = _as_int64(rows_N)
    at = _as_int64(at_N)
    values = values_MW.detach().numpy()
    staged = staged_SW.numpy()
    error, runs, pages, written = _change_rows(file, offset, rows, gap_rows, staged, values, at, adds)
    raise_errno(error)
    return runs, pages, written


def _as_int64(positions: Array) -> Array:
    """Return the array as int64, so that a single kernel is compiled."""
    return positions.astype(np.int64, copy=False)


def raise_errno(error: int) -> None:
    """Raise the error for a kernel's result: 0 for none, `ENDED`, or an error number of the system."""
    if error == ENDED:
        raise EOFError
    if error:
        raise OSError(error, os.strerror(error))


if sys.platform in ("linux", "darwin"):
    _moves = types.int64(types.int32, types.uintp, types.uintp, types.int64)
    _pread: Any = types.ExternalFunction("pread", _moves)
    _pwrite: Any = types.ExternalFunction("pwrite", _moves)
    _place = types.CPointer(types.int32)  # type: ignore[no-untyped-call]
    _errno_place: Any = types.ExternalFunction("__errno_location" if sys.platform == "linux" else "__error", _place())

    @serial_kernel
    def pread_memory(file: int, start: int, memory: Array) -> int:
        """Do `pread_into` for kernels; returns 0 or an error for `raise_errno`."""
        done = 0
        size = memory.size * memory.itemsize
        # The system may read less than asked for (2 GiB at most on Linux), so repeat until all is read.
        while done < size:
            moved = _pread(file, memory.ctypes.data + done, size - done, start + done)
            if moved == 0:
                return ENDED
            # The error number belongs to this thread and must be read before its next system call.
            error = carray(_errno_place(), 1)[0] if moved < 0 else 0
            # A signal has interrupted the call before it moved anything: repeat it.
            if error != 0 and error != errno.EINTR:
                return error
            done += max(moved, 0)
        return 0

    @serial_kernel
    def pwrite_memory(file: int, start: int, memory: Array) -> int:
        """Do `pwrite_from` for kernels; returns 0 or an error for `raise_errno`."""
        done = 0
        size = memory.size * memory.itemsize
        while done < size:
            moved = _pwrite(file, memory.ctypes.data + done, size - done, start + done)
            error = carray(_errno_place(), 1)[0] if moved < 0 else 0
            if error != 0 and error != errno.EINTR:
                return error
            done += max(moved, 0)
        return 0

    io_kernel = serial_kernel
else:
    _SEEKING = threading.Lock()

    def pread_memory(file: int, start: int, memory: Array) -> int:
        """Do `pread_into`; returns 0 or an error for `raise_errno`."""
        rest = memoryview(memory).cast("B")
        try:
            # Seeking and reading are two calls on an offset that all threads share.
            with _SEEKING:
                os.lseek(file, start, os.SEEK_SET)
                while rest:
                    got = os.read(file, len(rest))
                    if not got:
                        return ENDED
                    rest[: len(got)] = got
                    rest = rest[len(got) :]
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def pwrite_memory(file: int, start: int, memory: Array) -> int:
        """Do `pwrite_from`; returns 0 or an error for `raise_errno`."""
        rest = memoryview(memory).cast("B")
        try:
            with _SEEKING:
                os.lseek(file, start, os.SEEK_SET)
                while rest:
                    rest = rest[os.write(file, rest) :]
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def io_kernel(function: Callable[P, R]) -> Callable[P, R]:
        """Return the function as it is: Python runs its loop."""
        return function


@io_kernel
def _read_rows(
    file: int, offset: int, rows: Array, gap_rows: int, staged: Array, out: Array, to: Array
) -> tuple[int, int, int]:
    end, runs, pages, row_bytes = 0, 0, 0, staged.shape[1] * staged.itemsize
    while end < len(rows):
        start, end = end, coalesce_end(rows, end, gap_rows, len(staged))
        first = int(rows[start])
        begin, num_rows = offset + first * row_bytes, rows[end - 1] + 1 - first
        error = pread_memory(file, begin, staged[:num_rows])
        if error != 0:
            return error, runs, pages
        # Rows go through the staging buffer, because a run also holds the rows in its gaps.
        _scatter_rows(staged, first, rows, start, end, out, to)
        runs += 1
        pages += count_pages(begin, num_rows * row_bytes)
    return 0, runs, pages


@io_kernel
def _change_rows(
    file: int, offset: int, rows: Array, gap_rows: int, staged: Array, values: Array, at: Array, adds: bool
) -> tuple[int, int, int, int]:
    end, runs, pages, written, row_bytes = 0, 0, 0, 0, staged.shape[1] * staged.itemsize
    while end < len(rows):
        start, end = end, coalesce_end(rows, end, gap_rows, len(staged))
        first = int(rows[start])
        begin, num_rows = offset + first * row_bytes, rows[end - 1] + 1 - first
        # A run that is written whole need not be read.
        if adds or num_rows > end - start:
            error = pread_memory(file, begin, staged[:num_rows])
            if error != 0:
                return error, runs, pages, written
            runs += 1
            pages += count_pages(begin, num_rows * row_bytes)
        # Rows are ascending and distinct, so no other run or thread writes the same row; the groups' runs are
        # disjoint.
        if adds:
            scatter_add_range(staged, first, rows, start, end, values, at)
        else:
            scatter_range(staged, first, rows, start, end, values, at)
        error = pwrite_memory(file, begin, staged[:num_rows])
        if error != 0:
            return error, runs, pages, written
        written += num_rows * row_bytes
    return 0, runs, pages, written


@serial_kernel
def _scatter_rows(staged: Array, first: int, rows: Array, start: int, end: int, out: Array, to: Array) -> None:
    for i in range(start, end):
        row, target = rows[i] - first, to[i]
        for column in range(staged.shape[1]):
            out[target, column] = _convert_value(out, staged[row, column])


@overload
def _convert_value(out: Any, value: Any) -> Callable[..., Any]:
    """Return a value of the file as ``out`` stores it: words unchanged, else as a float."""
    return _copy_value if isinstance(out.dtype, types.Integer) else _widen_value


def _copy_value(out: Any, value: Any) -> Any:
    return value


def _widen_value(out: Any, value: Any) -> Any:
    return as_float(value)


@serial_kernel
def count_pages(begin: int, num_bytes: int) -> int:
    """Return the number of pages of `PAGE_BYTES` that hold some bytes of a file. For kernels too."""
    return -(-(begin + num_bytes) // PAGE_BYTES) - begin // PAGE_BYTES
