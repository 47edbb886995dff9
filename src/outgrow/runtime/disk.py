"""Rows of node data in files on disk: read as coalesced runs by several threads, physical bytes counted."""

from __future__ import annotations

import errno
import io
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.ops.backend import array, tensor
from outgrow.ops.gather import take_rows
from outgrow.ops.row_runs import add_rows, cut_runs, end_of_group
from outgrow.runtime.host_rows import HostRows, check_range, check_rows, check_sums, check_type

Piece = tuple[int, memoryview]
"""Where it begins in a file, and the memory for it."""

_PAGE_BYTES = 4096
_GROUP_RUNS = 64  # few enough that a small read still keeps all threads busy


class Disk:
    """What the files of one worker share: threads that read and write, how reads are joined, and what was moved.

    Args:
        in_flight: Number of threads, which is how many reads are under way at once.
        gap_bytes: Rows with no more than this between them are read at once, with what lies between.
        run_bytes: Most bytes read at once, unless one row is longer. Each thread stages no more than twice this.

    Attributes:
        read_bytes: Bytes asked from files, gaps included, each request rounded out to whole pages of 4096 bytes.
        written_bytes: Bytes written to files.
        read_requests: Number of reads.
    """

    def __init__(self, *, in_flight: int = 4, gap_bytes: int = 16384, run_bytes: int = 1 << 20) -> None:
        self.read_bytes = self.written_bytes = self.read_requests = 0
        self.gap_bytes, self.run_bytes = gap_bytes, run_bytes
        self._in_flight = in_flight
        self._threads = ThreadPoolExecutor(in_flight, thread_name_prefix="outgrow-disk")
        self._counting = threading.Lock()
        self._staged = threading.local()

    def run(self, tasks: Iterable[Callable[[], None]]) -> None:
        """Do all tasks on the threads, in any order; a task must not call this.

        Raises:
            Exception: What the first task in order that failed has raised. No task runs any more.
        """
        pending: deque[Future[None]] = deque()
        try:
            for task in tasks:
                pending.append(self._threads.submit(task))
                if len(pending) > 2 * self._in_flight:
                    pending[0].result()
                    pending.popleft()
            for future in pending:
                future.result()
        finally:
            for future in pending:
                future.cancel()
            wait(pending)

    def staging(self, name: str, num_rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """Memory ``[num_rows, width]`` of the calling thread, overwritten when it asks for the same name again."""
        num_bytes = num_rows * width * dtype.itemsize
        held: Tensor | None = getattr(self._staged, name, None)
        if held is None or len(held) < num_bytes:
            held = torch.empty(max(num_bytes, self.run_bytes), dtype=torch.uint8)
            setattr(self._staged, name, held)
        return held[:num_bytes].view(dtype).view(num_rows, width)

    def read(self, file: io.FileIO, pieces: Iterable[Piece]) -> None:
        """Fill pieces of memory from a file.

        Raises:
            InputError: The file ends too early.
        """
        requests = pages = 0
        for start, memory in pieces:
            requests += 1
            pages += -(-(start + len(memory)) // _PAGE_BYTES) - start // _PAGE_BYTES
            _fill(memory, file, start)
        with self._counting:
            self.read_requests += requests
            self.read_bytes += pages * _PAGE_BYTES

    def write(self, file: io.FileIO, pieces: Iterable[Piece]) -> None:
        """Put pieces of memory into a file.

        Raises:
            InputError: The disk is full.
        """
        written = 0
        for start, memory in pieces:
            _put(memory, file, start)
            written += len(memory)
        with self._counting:
            self.written_bytes += written

    def close(self) -> None:
        """End the threads. Files stay as they are."""
        self._threads.shutdown()


class DiskRows(HostRows):
    """Rows in a file, one after another; made by `create`, `existing` or `npy_rows`."""

    def __init__(
        self, disk: Disk, file: io.FileIO, num_rows: int, width: int, dtype: torch.dtype, *, offset: int = 0
    ) -> None:
        self.num_rows, self.width, self.dtype = num_rows, width, dtype
        self._disk, self._file, self._offset = disk, file, offset
        self._row_bytes = width * dtype.itemsize
        self._gap_rows = disk.gap_bytes // self._row_bytes
        self._piece_rows = max(1, disk.run_bytes // self._row_bytes)
        if sys.platform == "linux":  # else the kernel reads more than it is asked for
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)

    @staticmethod
    def create(disk: Disk, path: Path, num_rows: int, width: int, dtype: torch.dtype) -> DiskRows:
        """Make a file whose rows read as zeros; it takes room on the disk as it is written."""
        file = io.FileIO(path, "x+")
        file.truncate(num_rows * width * dtype.itemsize)
        return DiskRows(disk, file, num_rows, width, dtype)

    @staticmethod
    def existing(disk: Disk, path: Path, num_rows: int, width: int, dtype: torch.dtype, *, offset: int = 0) -> DiskRows:
        """Open rows that begin at a byte of a file; for writing too where that is allowed.

        Raises:
            InputError: The file ends too early.
        """
        return _opened(disk, path, num_rows, width, dtype, offset=offset, write=os.access(path, os.W_OK))

    def read(self, rows_N: Tensor, out_MW: Tensor, to_N: Tensor) -> None:
        """See `HostRows.read`."""
        check_rows(self, rows_N)
        check_type(self.dtype, out_MW.dtype)
        groups = self._groups(rows_N)
        self._disk.run(partial(self._read_group, rows_N[at], out_MW, to_N[at]) for at in groups)

    def read_range(self, first: int, last: int, out_NW: Tensor) -> None:
        """See `HostRows.read_range`."""
        check_range(self, first, last, out_NW)
        check_type(self.dtype, out_NW.dtype)
        self._disk.run(partial(self._read_piece, first + at.start, out_NW[at]) for at in self._pieces(last - first))

    def write_range(self, first: int, rows_NW: Tensor) -> None:
        """See `HostRows.write_range`."""
        check_range(self, first, first + len(rows_NW), rows_NW)
        check_type(rows_NW.dtype, self.dtype)
        self._check_writable()
        rows_NW = rows_NW.detach()
        self._disk.run(partial(self._write_piece, first + at.start, rows_NW[at]) for at in self._pieces(len(rows_NW)))

    def add(self, rows_N: Tensor, values_MW: Tensor, at_N: Tensor, fresh_N: Tensor) -> None:
        """See `HostRows.add`."""
        check_rows(self, rows_N)
        check_sums(values_MW.dtype, self.dtype)
        self._check_writable()
        groups = self._groups(rows_N)
        self._disk.run(partial(self._add_group, rows_N[at], values_MW, at_N[at], fresh_N[at]) for at in groups)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _groups(self, rows_N: Tensor) -> Iterator[slice]:
        rows, start = array(rows_N), 0
        while start < len(rows):
            end = end_of_group(rows, start, self._gap_rows, self._piece_rows, _GROUP_RUNS)
            yield slice(start, end)
            start = end

    def _pieces(self, num_rows: int) -> Iterator[slice]:
        return (slice(i, min(i + self._piece_rows, num_rows)) for i in range(0, num_rows, self._piece_rows))

    def _read_group(self, rows_n: Tensor, out_MW: Tensor, to_n: Tensor) -> None:
        runs, at_n = cut_runs(array(rows_n), self._gap_rows)
        first, last, place = runs[-1].tolist()
        staged = self._disk.staging("read", place + last - first, self.width, self.dtype)
        self._disk.read(self._file, self._in_file(runs, staged))
        take_rows(staged, at_n, out_MW, to_n)

    def _read_piece(self, first: int, out_nW: Tensor) -> None:
        if out_nW.dtype == self.dtype and out_nW.is_contiguous():
            self._disk.read(self._file, [(self._start(first), _memory(out_nW))])
        else:
            staged = self._disk.staging("read", len(out_nW), self.width, self.dtype)
            self._disk.read(self._file, [(self._start(first), _memory(staged))])
            take_rows(staged, None, out_nW, None)

    def _write_piece(self, first: int, rows_nW: Tensor) -> None:
        if rows_nW.dtype != self.dtype or not rows_nW.is_contiguous():
            staged = self._disk.staging("write", len(rows_nW), self.width, self.dtype)
            take_rows(rows_nW, None, staged, None)
            rows_nW = staged
        self._disk.write(self._file, [(self._start(first), _memory(rows_nW))])

    def _add_group(self, rows_n: Tensor, values_MW: Tensor, at_n: Tensor, fresh_n: Tensor) -> None:
        sums = self._disk.staging("write", len(rows_n), self.width, self.dtype)
        held = tensor(np.flatnonzero(~array(fresh_n)))
        held_rows = rows_n[held]
        for group in self._groups(held_rows):
            self._read_group(held_rows[group], sums, held[group])
        add_rows(sums, torch.arange(len(rows_n)), values_MW, at_n, fresh_n)
        self._disk.write(self._file, self._in_file(cut_runs(array(rows_n), 0)[0], sums))

    def _in_file(self, runs: NDArray[np.int64], staged_SW: Tensor) -> Iterator[Piece]:
        memory, size = _memory(staged_SW), self._row_bytes
        for first, last, place in runs.tolist():
            yield self._start(first), memory[place * size : (place + last - first) * size]

    def _start(self, row: int) -> int:
        return self._offset + row * self._row_bytes

    def _check_writable(self) -> None:
        if not self._file.writable():
            raise io.UnsupportedOperation(f"{self._file.name!r} is open for reading only")


def npy_rows(disk: Disk, path: Path) -> DiskRows:
    """The rows of a two-dimensional array in an .npy file, read only.

    Raises:
        InputError: It is not such a file, its rows are not one after another, or it ends too early.
    """
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, by_columns, dtype = header(file)
            kind = torch.from_numpy(np.empty(0, dtype=dtype)).dtype
        except (ValueError, TypeError) as error:
            raise _no_rows(path, str(error)) from error
        if len(shape) != 2 or by_columns or not kind.is_floating_point:
            raise _no_rows(path, f"shape {shape} of {dtype}{', column by column' if by_columns else ''}")
        return _opened(disk, path, *shape, kind, offset=file.tell(), write=False)


def _opened(
    disk: Disk, path: Path, num_rows: int, width: int, dtype: torch.dtype, *, offset: int, write: bool
) -> DiskRows:
    there, needed = path.stat().st_size, offset + num_rows * width * dtype.itemsize
    if there < needed:
        raise _too_short(path, needed, there)
    return DiskRows(disk, io.FileIO(path, "r+" if write else "r"), num_rows, width, dtype, offset=offset)


def _fill(memory: memoryview, file: io.FileIO, start: int) -> None:
    done = 0
    while done < len(memory):
        got = os.preadv(file.fileno(), [memory[done:]], start + done)
        if not got:
            raise _too_short(Path(str(file.name)), start + len(memory), os.fstat(file.fileno()).st_size)
        done += got


def _put(memory: memoryview, file: io.FileIO, start: int) -> None:
    done = 0
    try:
        while done < len(memory):
            done += os.pwrite(file.fileno(), memory[done:], start + done)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise _no_room(Path(str(file.name)), len(memory) - done, error) from error


def _memory(rows_NW: Tensor) -> memoryview:
    return rows_NW.detach().view(-1).view(torch.uint8).numpy().data


def _too_short(path: Path, needed: int, there: int) -> InputError:
    return InputError(
        f"{path} ends before its rows do",
        needed=f"{needed:,} bytes",
        got=f"{there:,} bytes",
        repair="make the file again, and let nothing else change it while it is in use",
    )


def _no_room(path: Path, needed: int, error: OSError) -> InputError:
    return InputError(
        f"{path} cannot grow",
        needed=f"room for {needed:,} more bytes",
        got=str(error.strerror),
        repair="make room, or choose a folder on another disk by the option `scratch`",
    )


def _no_rows(path: Path, got: str) -> InputError:
    return InputError(
        f"{path} does not hold rows",
        needed="an .npy file of a two-dimensional array of floating-point numbers, row by row",
        got=got,
        repair="write the array with numpy.save, from a C-ordered array",
    )
