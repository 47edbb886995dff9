"""Rows in files on disk, read as coalesced runs by several threads; physical bytes are counted."""

from __future__ import annotations

import errno
import io
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.ops.backend import as_numpy, as_tensor
from outgrow.ops.rows.coalesce import split_groups
from outgrow.ops.rows.file_io import PAGE_BYTES, change_file_rows, count_pages, pread_into, pwrite_from, read_file_rows
from outgrow.ops.rows.gather import gather_rows
from outgrow.runtime.storage.row_storage import RowStorage

Array = NDArray[Any]

_GROUPS_PER_THREAD = 4  # balances the load: at the end no thread waits long for another


class IoPool:
    """Threads, coalescing limits and byte counters that the files of one worker share.

    Args:
        in_flight: Number of threads, and so of concurrent reads.
        gap_bytes: Rows with a gap of at most this size are read in one request, gap included.
        run_bytes: Maximum size of a request, unless one row is longer; also the staging memory of a thread.

    Attributes:
        in_flight, gap_bytes, run_bytes: As given.
        read_bytes: Bytes requested, gaps included, each request rounded out to whole pages of 4096 bytes.
        written_bytes: Bytes written.
        read_requests: Number of reads.
    """

    def __init__(self, *, in_flight: int = 4, gap_bytes: int = 16384, run_bytes: int = 1 << 20) -> None:
        self.read_bytes = self.written_bytes = self.read_requests = 0
        self.gap_bytes, self.run_bytes = gap_bytes, run_bytes
        self.in_flight = in_flight
        self._threads = ThreadPoolExecutor(in_flight, thread_name_prefix="outgrow-disk")
        self._counting = threading.Lock()
        self._thread_buffers = threading.local()

    def run_tasks(self, tasks: Iterable[Callable[[], None]]) -> None:
        """Run all tasks on the threads, in any order, and wait; a task must not call this.

        Raises:
            Exception: Raised by the first task, in order, that failed. No task is running any more then.
        """
        pending: deque[Future[None]] = deque()
        todo = iter(tasks)
        begun = [*islice(todo, 2)]
        if len(begun) == 1:  # handing a single task to a thread would take longer
            begun[0]()
            return
        try:
            for task in chain(begun, todo):
                pending.append(self._threads.submit(task))
                # Bounds the queue: tasks come from an iterator that may be long.
                if len(pending) > 2 * self.in_flight:
                    pending[0].result()
                    pending.popleft()
            for future in pending:
                future.result()
        finally:
            # The caller may free the buffers after an error, so no task may still use them.
            for future in pending:
                future.cancel()
            wait(pending)

    def page_buffer(self, num_bytes: int) -> Array:
        """Return page-aligned memory ``[num_bytes]`` uint8 of the calling thread; its next call reuses it."""
        held: Tensor | None = getattr(self._thread_buffers, "memory", None)
        if held is None or len(held) < num_bytes:
            made = torch.empty(max(num_bytes, self.run_bytes) + PAGE_BYTES, dtype=torch.uint8)
            held = self._thread_buffers.memory = made[-made.data_ptr() % PAGE_BYTES :][: len(made) - PAGE_BYTES]
        return held[:num_bytes].numpy()

    def staging_buffer(self, num_rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """Return memory ``[num_rows, width]`` of the calling thread; its next call reuses it."""
        memory = as_tensor(self.page_buffer(num_rows * width * dtype.itemsize))
        return memory.view(dtype).view(num_rows, width)

    def count_io(self, requests: int, pages: int, written_bytes: int = 0) -> None:
        """Count reads, the pages they requested, and bytes written."""
        with self._counting:
            self.read_requests += requests
            self.read_bytes += pages * PAGE_BYTES
            self.written_bytes += written_bytes

    def close(self) -> None:
        """Stop the threads. Files stay open."""
        self._threads.shutdown()


class RowFile(RowStorage):
    """Contiguous rows in a file; made by `create`, `open_existing` or `open_npy_rows`."""

    def __init__(
        self, io_pool: IoPool, file: io.FileIO, num_rows: int, width: int, dtype: torch.dtype, *, offset: int = 0
    ) -> None:
        self.num_rows, self.width, self.dtype = num_rows, width, dtype
        self._io_pool, self._file, self._offset = io_pool, file, offset
        self._row_bytes = width * dtype.itemsize
        self._gap_rows = io_pool.gap_bytes // self._row_bytes
        self._added_gap_rows = min(io_pool.gap_bytes, PAGE_BYTES) // self._row_bytes
        self._run_rows = max(1, io_pool.run_bytes // self._row_bytes)
        # Turns off readahead: rows are scattered, and requests already cover whole runs.
        if sys.platform == "linux":
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)

    @staticmethod
    def create(io_pool: IoPool, path: Path, num_rows: int, width: int, dtype: torch.dtype) -> RowFile:
        """Create a sparse file of zero rows; it takes disk space only as it is written."""
        file = io.FileIO(path, "x+")
        file.truncate(num_rows * width * dtype.itemsize)
        return RowFile(io_pool, file, num_rows, width, dtype)

    @staticmethod
    def open_existing(
        io_pool: IoPool,
        path: Path,
        num_rows: int,
        width: int,
        dtype: torch.dtype,
        *,
        offset: int = 0,
        read_only: bool = False,
    ) -> RowFile:
        """Open rows at an offset of a file; also for writing if that is permitted, unless ``read_only``.

        Raises:
            InputError: The file is too short.
        """
        there, needed = path.stat().st_size, offset + num_rows * width * dtype.itemsize
        if there < needed:
            raise _truncated_error(path, needed, there)
        mode = "r+" if not read_only and os.access(path, os.W_OK) else "r"
        return RowFile(io_pool, io.FileIO(path, mode), num_rows, width, dtype, offset=offset)

    def _read_rows(self, rows_N: Tensor, out_MW: Tensor, to_N: Tensor) -> None:
        """Read coalesced runs on the threads and copy the selected rows out of them."""
        rows, to = as_numpy(rows_N), as_numpy(to_N)
        groups = self._coalesce_rows(rows, self._gap_rows)
        self._io_pool.run_tasks(partial(self._read_group, rows[at], out_MW, to[at]) for at in groups)

    def _read_range(self, first: int, out_NW: Tensor) -> None:
        """Read a range in parts on the threads."""
        self._io_pool.run_tasks(
            partial(self._read_part, first + at.start, out_NW[at]) for at in self._split_range(len(out_NW))
        )

    def _write_range(self, first: int, rows_NW: Tensor) -> None:
        """Write a range in parts on the threads."""
        self._check_writable()
        self._io_pool.run_tasks(
            partial(self._write_part, first + at.start, rows_NW[at]) for at in self._split_range(len(rows_NW))
        )

    def _add_rows(self, rows_N: Tensor, values_MW: Tensor, at_N: Tensor) -> None:
        """Read runs, add to their selected rows and write them back, on the threads."""
        self._change_rows(rows_N, values_MW, at_N, adds=True)

    def _write_rows(self, rows_N: Tensor, values_MW: Tensor, at_N: Tensor) -> None:
        """Read runs, replace their selected rows and write them back, on the threads."""
        self._change_rows(rows_N, values_MW, at_N, adds=False)

    def _change_rows(self, rows_N: Tensor, values_MW: Tensor, at_N: Tensor, *, adds: bool) -> None:
        self._check_writable()
        rows, at = as_numpy(rows_N), as_numpy(at_N)
        self._io_pool.run_tasks(
            partial(self._change_group, rows[here], (values_MW, at[here]), adds=adds)
            for here in self._coalesce_rows(rows, self._added_gap_rows)
        )

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _coalesce_rows(self, rows: Array, gap_rows: int) -> Iterator[slice]:
        starts = split_groups(rows, gap_rows, self._run_rows, _GROUPS_PER_THREAD * self._io_pool.in_flight).tolist()
        return (slice(*ends) for ends in pairwise(starts))

    def _split_range(self, num_rows: int) -> Iterator[slice]:
        pieces = -(-num_rows // self._run_rows)
        return _iterate_slices(num_rows, self._run_rows * -(-pieces // (_GROUPS_PER_THREAD * self._io_pool.in_flight)))

    def _read_group(self, rows: Array, out_MW: Tensor, to: Array) -> None:
        staged = self._staging_rows(self._run_rows)
        with self._explain_errors():
            moved = read_file_rows(self._file.fileno(), self._offset, rows, self._gap_rows, staged, out_MW, to)
        self._io_pool.count_io(*moved)

    def _change_group(self, rows: Array, given: tuple[Tensor, Array], *, adds: bool) -> None:
        staged = self._staging_rows(self._run_rows)
        gap = self._added_gap_rows
        with self._explain_errors():
            moved = change_file_rows(self._file.fileno(), self._offset, rows, gap, staged, given, adds=adds)
        self._io_pool.count_io(*moved)

    def _read_part(self, first: int, out_nW: Tensor) -> None:
        # Without a conversion, read straight into the output instead of through staging memory.
        direct, requests, pages = out_nW.dtype == self.dtype and out_nW.is_contiguous(), 0, 0
        for at in _iterate_slices(len(out_nW), self._run_rows):
            into_nW = out_nW[at] if direct else self._staging_rows(len(out_nW[at]))
            start, memory = self._row_offset(first + at.start), _as_bytes(into_nW)
            with self._explain_errors():
                pread_into(self._file.fileno(), start, memory)
            requests, pages = requests + 1, pages + count_pages(start, len(memory))
            if not direct:
                gather_rows(into_nW, None, out_nW[at], None)
        self._io_pool.count_io(requests, pages)

    def _write_part(self, first: int, rows_nW: Tensor) -> None:
        direct, written = rows_nW.dtype == self.dtype and rows_nW.is_contiguous(), 0
        for at in _iterate_slices(len(rows_nW), self._run_rows):
            from_nW = rows_nW[at] if direct else self._staging_rows(len(rows_nW[at]))
            if not direct:
                gather_rows(rows_nW[at], None, from_nW, None)
            memory = _as_bytes(from_nW)
            with self._explain_errors():
                pwrite_from(self._file.fileno(), self._row_offset(first + at.start), memory)
            written += len(memory)
        self._io_pool.count_io(0, 0, written)

    def _row_offset(self, row: int) -> int:
        return self._offset + row * self._row_bytes

    def _staging_rows(self, num_rows: int) -> Tensor:
        return self._io_pool.staging_buffer(num_rows, self.width, self.dtype)

    def _explain_errors(self) -> AbstractContextManager[None]:
        return explain_os_error(self._file, self._offset + self.num_rows * self._row_bytes)

    def _check_writable(self) -> None:
        if not self._file.writable():
            raise io.UnsupportedOperation(f"{self._file.name!r} is open for reading only")


@contextmanager
def explain_os_error(file: io.FileIO, needed_bytes: int) -> Iterator[None]:
    """Turn errors of a file that is too short or cannot grow into helpful ones; add its name to others.

    Args:
        file: The file, opened by its path.
        needed_bytes: Required length of the file.

    Raises:
        InputError: The file is too short, or the disk is full.
        OSError: Any other error of the system.
    """
    path = Path(str(file.name))
    try:
        yield
    except EOFError as error:
        raise _truncated_error(path, needed_bytes, os.fstat(file.fileno()).st_size) from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            error.filename = path
            raise
        raise _disk_full_error(path, needed_bytes, error) from error


def open_npy_rows(io_pool: IoPool, path: Path) -> RowFile:
    """Open a two-dimensional .npy array read-only; uint16 means the bits of bfloat16, as in a store.

    Raises:
        InputError: The file has another format, is in column-major order, or is too short.
    """
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, by_columns, dtype = header(file)
            kind = torch.bfloat16 if dtype == np.dtype("<u2") else torch.from_numpy(np.empty(0, dtype=dtype)).dtype
        except OSError:
            raise
        except Exception as error:  # NumPy evaluates the header, which can raise nearly anything
            raise _not_rows_error(path, f"{type(error).__name__}: {str(error)[:200]}") from error
        if len(shape) != 2 or by_columns or not kind.is_floating_point:
            raise _not_rows_error(path, f"shape {shape} of {dtype}{', column by column' if by_columns else ''}")
        return RowFile.open_existing(io_pool, path, *shape, kind, offset=file.tell(), read_only=True)


def _iterate_slices(num_rows: int, most: int) -> Iterator[slice]:
    return (slice(i, min(i + most, num_rows)) for i in range(0, num_rows, max(1, most)))


def _as_bytes(rows_NW: Tensor) -> Array:
    return rows_NW.detach().view(-1).view(torch.uint8).numpy()


def _truncated_error(path: Path, needed: int, there: int) -> InputError:
    return InputError(
        f"{path} ends before its rows do",
        needed=f"{needed:,} bytes",
        got=f"{there:,} bytes",
        repair="make the file again, and let nothing else change it while it is in use",
    )


def _disk_full_error(path: Path, needed: int, error: OSError) -> InputError:
    return InputError(
        f"{path} cannot grow",
        needed=f"room for {needed:,} bytes in all",
        got=str(error.strerror),
        repair="make room, or choose a folder on another disk, by TMPDIR or by scratch_dir of offload and tensor",
    )


def _not_rows_error(path: Path, got: str) -> InputError:
    return InputError(
        f"{path} does not hold rows",
        needed="an .npy file of a two-dimensional array of floating-point numbers, row by row",
        got=got,
        repair="write the array with numpy.save, from a C-ordered array",
    )
