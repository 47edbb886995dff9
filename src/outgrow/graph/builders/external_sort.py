"""External sort of more edges than fit in memory: sorted runs on disk, merged by ranges of keys.

Features of edges are columns like the others: a run holds them in its order, so that both writing runs and merging them
read and write whole slices of files, never single rows.

A range is found by bisection of the keys with exact counts, so skew does not matter: a row, or even a pair of
nodes, with more edges than fit in memory is cut like any other range.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.builders.edge_order import EdgeColumns, EdgePolicy, sort_columns
from outgrow.graph.store.writer import write_fully

# Reserved for temporary arrays that do not grow with the buffer.
_FIXED_BYTES = 1 << 22
_FEWEST_EDGES = 16
# Bisection stops early: the last tenth of the buffer would cost further probes of all runs on disk.
_FILL = 0.9


class RunSlice(NamedTuple):
    """A slice of one run: positions ``first`` to ``last - 1`` of the files."""

    first: int
    last: int


class ExternalSorter:
    """Sorter that keeps sorted runs of edges on disk. Close it, or use it in ``with``. Final.

    If the policy drops duplicates, the edges of one pair of nodes are never split: they take as much memory
    as they need.

    Args:
        folder: Folder for the files.
        policy: Resolves duplicate edges.
        memory_bytes: Limit on the arrays of the sort.
    """

    def __init__(self, folder: Path, policy: EdgePolicy, memory_bytes: int) -> None:
        self._folder = folder
        self._rule = policy
        self._memory_bytes = memory_bytes
        self._runs: list[RunSlice] = []
        self._buffer: EdgeColumns | None = None
        self._filled = 0
        self._files: list[BinaryIO] = []

    @property
    def num_edges(self) -> int:
        """Number of edges on disk and in the buffer."""
        return self._num_written + self._filled

    @property
    def _num_written(self) -> int:
        return self._runs[-1].last if self._runs else 0

    def add_edges(self, edges: EdgeColumns) -> None:
        """Add edges; sort and write the buffer whenever it is full."""
        buffer = self._open_buffer(edges) if self._buffer is None else self._buffer
        taken = 0
        while taken < len(edges):
            count = min(len(edges) - taken, len(buffer) - self._filled)
            for to, values in zip(_present_columns(buffer), _present_columns(edges), strict=True):
                to[self._filled : self._filled + count] = values[taken : taken + count]
            taken = taken + count
            self._filled = self._filled + count
            if self._filled == len(buffer):
                self._write_run()

    def iter_sorted_ranges(self) -> Iterator[EdgeColumns]:
        """Yield all edges in order, duplicates resolved, in pieces that fit in memory.

        Call it once, after the last `add_edges`. A piece is valid until the next one is requested.
        """
        if self._buffer is None:
            return
        self._write_run()
        buffer = self._buffer
        # One run that fits is the result: it was sorted and its duplicates resolved when it was written.
        if len(self._runs) == 1 and self._runs[0].last <= len(buffer):
            yield self._read_slices(buffer, self._runs)
            return
        # Ranks are a second level of the cut only where edges of one pair may be separated.
        count = 1 + (buffer.rank is not None and self._rule.keeps_parallel_edges)
        columns = _present_columns(buffer)[:count]
        levels = [_map_file(file, to.dtype) for file, to in zip(self._files[:count], columns, strict=True)]
        for parts in _split_runs(levels, self._runs, len(buffer), self._rule.keeps_parallel_edges):
            # The slices are in the order of the runs, that of input, which the stable sort keeps for equal
            # edges.
            yield self._rule.resolve_duplicates(sort_columns(self._read_slices(buffer, parts)))

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    def __enter__(self) -> ExternalSorter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_buffer(self, edges: EdgeColumns) -> EdgeColumns:
        cost = self._rule.bytes_per_bare_edge if len(_present_columns(edges)) == 1 else self._rule.bytes_per_full_edge
        # The rows in the buffer, and a copy of them while they are put in order.
        cost += 2 * edges.data_bytes
        # The policy knows its peak of bytes per edge, so the buffer is as large as the limit allows.
        capacity = max(_FEWEST_EDGES, (self._memory_bytes - min(_FIXED_BYTES, self._memory_bytes // 4)) // cost)
        self._buffer = edges.empty_like(capacity)
        columns = zip(("key", "rank", "weight", "features", "time"), edges.all_columns, strict=True)
        names = [name for name, values in columns if values is not None]
        # Unbuffered: runs are written in large blocks, and a second copy would not be counted as memory.
        self._files = [(self._folder / name).open("x+b", buffering=0) for name in names]
        return self._buffer

    def _write_run(self) -> None:
        assert self._buffer is not None
        if not self._filled:
            return
        # Resolved before writing: duplicates then never reach the disk.
        run = self._rule.resolve_duplicates(sort_columns(self._buffer.slice_rows(slice(0, self._filled))))
        for file, values in zip(self._files, _present_columns(run), strict=True):
            write_fully(file, np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        self._runs.append(RunSlice(self._num_written, self._num_written + len(run)))
        self._filled = 0

    def _read_slices(self, buffer: EdgeColumns, parts: Sequence[RunSlice]) -> EdgeColumns:
        total = sum(part.last - part.first for part in parts)
        assert total <= len(buffer) or not self._rule.keeps_parallel_edges
        # Only the edges of one pair, which must not be separated, can exceed the buffer.
        to = buffer if total <= len(buffer) else buffer.empty_like(total)
        for file, values in zip(self._files, _present_columns(to), strict=True):
            at = 0
            for part in parts:
                count = part.last - part.first
                file.seek(part.first * values[:1].nbytes)
                _read_exactly(file, memoryview(values[at : at + count].reshape(-1).view(np.uint8).data))
                at += count
        return to.slice_rows(slice(0, total))


def _split_runs(
    levels: Sequence[NDArray[Any]], runs: Sequence[RunSlice], capacity: int, divisible: bool
) -> Iterator[list[RunSlice]]:
    """Yield the slices of all runs, one range of keys after another.

    A range has at most ``capacity`` edges, unless it is one key and not ``divisible``.

    Args:
        levels: Mapped columns to cut by: the keys, then the ranks if these matter.
        runs: The sorted runs.
        capacity: Edges that fit in memory.
        divisible: Whether edges with equal keys may be in different ranges.
    """
    values = levels[0]
    rest = list(runs)
    while rest := [part for part in rest if part.first < part.last]:
        cut = _find_cut(values, rest, capacity)
        taken = [RunSlice(part.first, end) for part, end in zip(rest, cut, strict=True)]
        rest = [RunSlice(end, part.last) for part, end in zip(rest, cut, strict=True)]
        taken = [part for part in taken if part.first < part.last]
        if _total_length(taken) <= capacity or not divisible:
            yield taken
        # One key has more edges than fit: cut it by rank, and edges of equal rank by their order of input.
        elif len(levels) > 1:
            yield from _split_runs(levels[1:], taken, capacity, divisible)
        else:
            yield from _slices_in_input_order(taken, capacity)


def _find_cut(values: NDArray[Any], parts: Sequence[RunSlice], capacity: int) -> list[int]:
    """Return where to end each part so that all values below one bound are included.

    The bound is the one that fills most of ``capacity``, or includes a single value if even that is too much.
    """
    if _total_length(parts) <= capacity:
        return [part.last for part in parts]
    start = [part.first for part in parts]
    high = [part.last for part in parts]
    bottom = min(int(values[part.first]) for part in parts) + 1
    top = max(int(values[part.last - 1]) for part in parts) + 1
    # At least the smallest value is always included, so that every cut makes progress.
    low = _search_bound(values, start, high, bottom)
    while top - bottom > 1 and sum(low) - sum(start) < _FILL * capacity:
        middle = (bottom + top) // 2
        # Only between the last two cuts: each probe of a run reads a page from disk.
        ends = _search_bound(values, low, high, middle)
        if sum(ends) - sum(start) <= capacity:
            low = ends
            bottom = middle
        else:
            high = ends
            top = middle
    return low


def _search_bound(values: NDArray[Any], low: Sequence[int], high: Sequence[int], bound: int) -> list[int]:
    # In the type of the values: NumPy would otherwise convert the whole slice to compare it.
    limit = values.dtype.type(bound)
    return [a + int(values[a:b].searchsorted(limit)) for a, b in zip(low, high, strict=True)]


def _slices_in_input_order(parts: Sequence[RunSlice], capacity: int) -> Iterator[list[RunSlice]]:
    """Yield equal edges run by run, which is the order of input."""
    for part in parts:
        for first in range(part.first, part.last, capacity):
            yield [RunSlice(first, min(first + capacity, part.last))]


def _total_length(parts: Sequence[RunSlice]) -> int:
    return sum(part.last - part.first for part in parts)


def _present_columns(edges: EdgeColumns) -> list[NDArray[Any]]:
    return [column for column in edges.all_columns if column is not None]


def _map_file(file: BinaryIO, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Map a file as an array for bisection.

    Without read-ahead, which would evict other pages from a small memory.
    """
    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if sys.platform != "win32":
        pages.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(pages, dtype=dtype)


def _read_exactly(file: BinaryIO, to: memoryview) -> None:
    while to:
        # An unbuffered file may return fewer bytes than requested.
        count = file.readinto(to)  # type: ignore[attr-defined]
        assert count
        to = to[count:]
