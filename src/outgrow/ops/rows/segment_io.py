"""Parcels of rows moved between memory and a file by kernels that call the system themselves.

A parcel is some rows of one width that are written at once. Those of a file do not overlap, and lie in order.
Where pages are more than a byte, each parcel begins with one, and whole pages move: then the system need not
keep a copy. Letters: ``W`` columns, ``P`` parcels named, ``N`` their rows, ``M`` rows of the tensor on the
other side, ``B`` bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import serial_kernel
from outgrow.ops.rows.file_io import PAGE_BYTES, count_pages, io_kernel, pread_memory, pwrite_memory, raise_errno
from outgrow.ops.rows.gather import WORDS

Array = NDArray[Any]


def read_segments(
    file: int,
    places: tuple[Array, Array],
    row_range: tuple[int, int],
    page: int,
    staged_B: Array,
    out: tuple[Tensor, Array | None],
) -> tuple[int, int]:
    """Read some of the rows of parcels: ``out[to[i]] = row i of all their rows one after another``.

    Rows in order that need no rounding go where they belong without a copy in between.

    Args:
        file: Descriptor of the file.
        places: ``[P]`` int64 ascending bytes at which the parcels begin, and ``[P + 1]`` int64 rows before
            each of them and in all.
        row_range: First row that is read, and last plus 1.
        page: What reads are rounded out to: a power of two.
        staged_B: uint8, aligned and overwritten: whole pages, for at least one row with those that it lies
            in.
        out: ``[M, W]`` of the type of the file, written, and ``[N]`` integer distinct rows of it; None for
            the first ones, in order.

    Returns:
        Number of reads, and of the pages of `PAGE_BYTES` that they lie in.

    Raises:
        EOFError: The file ends too early.
        OSError: What else the system says.
    """
    word = WORDS[out[0].dtype.itemsize]
    rows, to = out[0].detach().view(word).numpy(), out[1]
    if to is None and page == 1 and rows.flags.c_contiguous:
        error, reads, pages = _read_in_order(file, places, row_range, rows.shape[1], rows.reshape(-1))
    else:
        to = np.arange(len(rows)) if to is None else to
        error, reads, pages = _read_segments(file, places, row_range, page, staged_B.view(rows.dtype), rows, to)
    raise_errno(error)
    return reads, pages


def write_segments(file: int, places: tuple[Array, Array], page: int, staged_B: Array, rows_B: Array) -> int:
    """Write parcels.

    Args:
        file: Descriptor of the file.
        places: ``[P]`` int64 ascending bytes at which the parcels begin, and ``[P + 1]`` int64 bytes of rows
            before each of them and in all.
        page: What writes are rounded up to: a power of two. Nothing else may lie in the last page of a
            parcel.
        staged_B: uint8, aligned and overwritten: whole pages.
        rows_B: uint8, the rows of the parcels one after another.

    Returns:
        Number of bytes written.

    Raises:
        OSError: What the system says.
    """
    if page == 1:
        error, written = _write_in_order(file, *places, rows_B)
    else:
        error, written = _write_segments(file, *places, page, staged_B, rows_B)
    raise_errno(error)
    return int(written)


@io_kernel
def _read_in_order(
    file: int, places: tuple[Array, Array], row_range: tuple[int, int], columns: int, out: Array
) -> tuple[int, int, int]:
    (begins, ends), (at, high) = places, row_range
    row_bytes, reads, pages = columns * out.itemsize, 0, 0
    parcel = int(np.searchsorted(ends, at, side="right")) - 1
    while at < high:
        first, base = at, begins[parcel] + (at - ends[parcel]) * row_bytes
        while at < high and begins[parcel] + (at - ends[parcel]) * row_bytes == base + (at - first) * row_bytes:
            at = min(ends[parcel + 1], high)
            while at < high and ends[parcel + 1] <= at:
                parcel += 1
        error = pread_memory(file, base, out[first * columns : at * columns])
        if error != 0:
            return error, reads, pages
        reads += 1
        pages += count_pages(base, (at - first) * row_bytes)
    return 0, reads, pages


@io_kernel
def _write_in_order(file: int, begins: Array, ends: Array, rows: Array) -> tuple[int, int]:
    end, written = 0, 0
    while end < len(begins):
        first, end = end, end + 1
        while end < len(begins) and begins[end] - begins[first] == ends[end] - ends[first]:
            end += 1
        error = pwrite_memory(file, begins[first], rows[ends[first] : ends[end]])
        if error != 0:
            return error, written
        written += ends[end] - ends[first]
    return 0, written


@io_kernel
def _read_segments(
    file: int, places: tuple[Array, Array], row_range: tuple[int, int], page: int, staged: Array, out: Array, to: Array
) -> tuple[int, int, int]:
    (begins, ends), (low, high) = places, row_range
    size, row_bytes = staged.itemsize, out.shape[1] * staged.itemsize
    reads, pages, at, parcel = 0, 0, low, int(np.searchsorted(ends, low, side="right")) - 1
    while at < high:
        while ends[parcel + 1] <= at:
            parcel += 1
        base = (begins[parcel] + (at - ends[parcel]) * row_bytes) // page * page
        last, until = _end_of_read(begins, ends, at, high, parcel, row_bytes, base, base + staged.size * size)
        length = -(-(until - base) // page) * page
        error = pread_memory(file, base, staged[: length // size])
        if error != 0:
            return error, reads, pages
        reads += 1
        pages += count_pages(base, length)
        while at < last:
            while ends[parcel + 1] <= at:
                parcel += 1
            count = min(ends[parcel + 1], last) - at
            word = (begins[parcel] + (at - ends[parcel]) * row_bytes - base) // size
            _scatter_words(staged[word : word + count * out.shape[1]], out, to[at : at + count])
            at += count
    return 0, reads, pages


@serial_kernel
def _end_of_read(
    begins: Array, ends: Array, at: int, high: int, parcel: int, row_bytes: int, base: int, limit: int
) -> tuple[int, int]:
    """The last row (plus 1) that one read from ``base_bytes`` to ``limit`` gives, and the byte at which it ends."""
    until = base
    while at < high:
        while ends[parcel + 1] <= at:
            parcel += 1
        begin = begins[parcel] + (at - ends[parcel]) * row_bytes
        if begin - until > PAGE_BYTES or begin + row_bytes > limit:
            break
        count = min(min(ends[parcel + 1], high) - at, (limit - begin) // row_bytes)
        at += count
        until = begin + count * row_bytes
    return at, until


@serial_kernel
def _scatter_words(staged: Array, out: Array, to: Array) -> None:
    columns = out.shape[1]
    for i in range(len(to)):
        place, first = to[i], i * columns
        for column in range(columns):
            out[place, column] = staged[first + column]


@io_kernel
def _write_segments(file: int, begins: Array, ends: Array, page: int, staged: Array, rows: Array) -> tuple[int, int]:
    parcel, done, written = 0, 0, 0
    while parcel < len(begins):
        base, used = begins[parcel] + done, 0
        while parcel < len(begins):
            begin, rest = begins[parcel] + done - base, ends[parcel + 1] - ends[parcel] - done
            if begin != -(-used // page) * page or (begin >= len(staged) and rest):
                break
            count, first = min(len(staged) - begin, rest), ends[parcel] + done
            staged[begin : begin + count] = rows[first : first + count]
            used, done = begin + count, done + count
            if count < rest:
                break
            parcel, done = parcel + 1, 0
        length = -(-used // page) * page
        error = pwrite_memory(file, base, staged[:length])
        if error != 0:
            return error, written
        written += length
    return 0, written
