"""Transfer of row segments between memory and a file by kernels that call the system directly.

A segment is a range of rows of one width that was written at once. The segments of a file do not overlap and
are in order. For direct I/O the page is more than a byte: each segment begins at a page and whole pages are
transferred, so that the system keeps no copy. Letters: ``W`` columns, ``P`` segments, ``N`` their rows, ``M``
rows of the tensor, ``B`` bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import serial_kernel
from outgrow.ops.rows.file_io import PAGE_BYTES, count_pages, io_kernel, pread_memory, pwrite_memory, raise_errno
from outgrow.ops.rows.gather import WORDS
from outgrow.ops.rows.row_encoding import RowEncoding, decode_row

Array = NDArray[Any]


def read_segments(
    file: int,
    places: tuple[Array, Array],
    row_range: tuple[int, int],
    page: int,
    staged_B: Array,
    out: tuple[Tensor, Array | None],
    encoding: RowEncoding | None = None,
) -> tuple[int, int]:
    """Read ``out[to[i]] = row i`` of the rows of all segments, numbered one after another.

    Rows in order, without rounding to pages, are read into ``out`` directly. Those of an encoding that is not full
    are decoded, unless ``out`` has the type in which they are stored.

    Args:
        file: Descriptor of the file.
        places: ``[P]`` int64 ascending bytes at which the segments begin, and ``[P + 1]`` int64 rows before
            each of them and in all.
        row_range: First row that is read, and last plus 1.
        page: Bytes that reads are aligned to: a power of two; 1 for none.
        staged_B: uint8, aligned and overwritten: whole pages, for at least one row with those that it lies
            in.
        out: ``[M, W]``, written, and ``[N]`` integer distinct rows of it; None for the first ones, in order.
        encoding: How rows are stored; ``out`` is of its type, or of its stored type. None: as ``out`` has them.

    Returns:
        Number of reads, and of the pages of `PAGE_BYTES` that they lie in.

    Raises:
        EOFError: The file ends too early.
        OSError: The read failed.
    """
    given, to = out[0].detach(), out[1]
    if encoding is not None and given.dtype != encoding.stored_dtype:
        rows, staged = given.numpy(), staged_B.view(encoding.stored_array_dtype)
        stride = encoding.stored_width(rows.shape[1])
    else:
        # Bits are copied as integers of their size, so that all types of a size share one compiled kernel.
        rows = given.view(WORDS[given.dtype.itemsize]).numpy()
        staged, stride = staged_B.view(rows.dtype), rows.shape[1]
    if to is None and page == 1 and rows.flags.c_contiguous and staged.dtype == rows.dtype:
        error, reads, pages = _read_in_order(file, places, row_range, stride, rows.reshape(-1))
    else:
        to = np.arange(len(rows)) if to is None else to
        error, reads, pages = _read_segments(file, places, row_range, (page, stride), staged, rows, to)
    raise_errno(error)
    return reads, pages


def write_segments(file: int, places: tuple[Array, Array], page: int, staged_B: Array, rows_B: Array) -> int:
    """Write segments.

    Args:
        file: Descriptor of the file.
        places: ``[P]`` int64 ascending bytes at which the segments begin, and ``[P + 1]`` int64 bytes of rows
            before each of them and in all.
        page: Bytes that writes are aligned to: a power of two; 1 for none. The last page of a segment holds
            nothing else.
        staged_B: uint8, aligned and overwritten: whole pages.
        rows_B: uint8, the rows of the segments one after another.

    Returns:
        Number of bytes written.

    Raises:
        OSError: The write failed.
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
    begins, ends = places
    at, high = row_range
    row_bytes = columns * out.itemsize
    reads = 0
    pages = 0
    segment = int(np.searchsorted(ends, at, side="right")) - 1
    while at < high:
        first = at
        base = begins[segment] + (at - ends[segment]) * row_bytes
        # Segments that follow one another in the file without a gap are one read.
        while at < high and begins[segment] + (at - ends[segment]) * row_bytes == base + (at - first) * row_bytes:
            at = min(ends[segment + 1], high)
            # Skips segments without rows as well.
            while at < high and ends[segment + 1] <= at:
                segment += 1
        error = pread_memory(file, base, out[first * columns : at * columns])
        if error != 0:
            return error, reads, pages
        reads += 1
        pages += count_pages(base, (at - first) * row_bytes)
    return 0, reads, pages


@io_kernel
def _write_in_order(file: int, begins: Array, ends: Array, rows: Array) -> tuple[int, int]:
    end = 0
    written = 0
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
    file: int,
    places: tuple[Array, Array],
    row_range: tuple[int, int],
    units: tuple[int, int],
    staged: Array,
    out: Array,
    to: Array,
) -> tuple[int, int, int]:
    begins, ends = places
    low, high = row_range
    page, stride = units
    size = staged.itemsize
    row_bytes = stride * staged.itemsize
    reads = 0
    pages = 0
    at = low
    segment = int(np.searchsorted(ends, low, side="right")) - 1
    while at < high:
        while ends[segment + 1] <= at:
            segment += 1
        # Direct I/O requires that offset, length and memory are aligned to pages.
        base = (begins[segment] + (at - ends[segment]) * row_bytes) // page * page
        last, until = _end_of_read(begins, ends, at, high, segment, row_bytes, base, base + staged.size * size)
        length = -(-(until - base) // page) * page
        error = pread_memory(file, base, staged[: length // size])
        if error != 0:
            return error, reads, pages
        reads += 1
        pages += count_pages(base, length)
        while at < last:
            while ends[segment + 1] <= at:
                segment += 1
            count = min(ends[segment + 1], last) - at
            word = (begins[segment] + (at - ends[segment]) * row_bytes - base) // size
            _scatter_rows(staged[word : word + count * stride], stride, out, to[at : at + count])
            at += count
    return 0, reads, pages


@serial_kernel
def _end_of_read(
    begins: Array, ends: Array, at: int, high: int, segment: int, row_bytes: int, base: int, limit: int
) -> tuple[int, int]:
    """Return the last row + 1 that a read from ``base`` to ``limit`` covers, and the byte of its end."""
    until = base
    while at < high:
        while ends[segment + 1] <= at:
            segment += 1
        begin = begins[segment] + (at - ends[segment]) * row_bytes
        # Reading across a gap of a page is cheaper than a second read; a larger gap is not worth it.
        if begin - until > PAGE_BYTES or begin + row_bytes > limit:
            break
        count = min(min(ends[segment + 1], high) - at, (limit - begin) // row_bytes)
        at += count
        until = begin + count * row_bytes
    return at, until


@serial_kernel
def _scatter_rows(staged: Array, stride: int, out: Array, to: Array) -> None:
    for i in range(len(to)):
        decode_row(staged, i * stride, stride, out, to[i])


@io_kernel
def _write_segments(file: int, begins: Array, ends: Array, page: int, staged: Array, rows: Array) -> tuple[int, int]:
    segment = 0
    done = 0
    written = 0
    while segment < len(begins):
        base = begins[segment] + done
        used = 0
        while segment < len(begins):
            begin, rest = begins[segment] + done - base, ends[segment + 1] - ends[segment] - done
            # Collect segments in the buffer while each begins at the page after the last one. A segment that
            # is larger than the buffer is written in several turns; ``done`` counts its bytes so far.
            if begin != -(-used // page) * page or (begin >= len(staged) and rest):
                break
            count, first = min(len(staged) - begin, rest), ends[segment] + done
            staged[begin : begin + count] = rows[first : first + count]
            used = begin + count
            done = done + count
            if count < rest:
                break
            segment = segment + 1
            done = 0
        length = -(-used // page) * page
        error = pwrite_memory(file, base, staged[:length])
        if error != 0:
            return error, written
        written += length
    return 0, written
