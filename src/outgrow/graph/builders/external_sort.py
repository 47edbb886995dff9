"""Sorting more edges than fit in memory: sorted runs on disk, then one range of keys after another from all runs.

Ranges are found by bisection of the keys, counting exactly, so that skew does not matter: a row or even a pair of
nodes with more edges than fit is cut like anything else.
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

_FIXED_BYTES = 1 << 22
_FEWEST_EDGES = 16
_FILL = 0.9


class RunSlice(NamedTuple):
    """A slice of one run: positions ``first`` to ``last - 1`` of the spill."""

    first: int
    last: int


class ExternalSorter:
    """Edges on disk in sorted runs. Close it, or use it in ``with``. Final.

    Where a rule drops duplicates, one pair of nodes is never cut: it takes as much memory as its relations need.

    Args:
        folder: Where to put the files.
        policy: Settles edges.
        memory_bytes: Most that the arrays of a sort may take.
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
        """Edges on disk, and those that are about to be."""
        return self._num_written + self._filled

    @property
    def _num_written(self) -> int:
        return self._runs[-1].last if self._runs else 0

    def add_edges(self, edges: EdgeColumns) -> None:
        """Take edges; a full buffer is sorted and written."""
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
        """All edges, sorted and settled, in pieces that fit; call it once, after the last `add`.

        A piece is valid until the next one is asked for.
        """
        if self._buffer is None:
            return
        self._write_run()
        buffer = self._buffer
        if len(self._runs) == 1 and self._runs[0].last <= len(buffer):
            yield self._read_slices(buffer, self._runs)
            return
        maps = [_map_file(file, to.dtype) for file, to in zip(self._files, _present_columns(buffer), strict=True)]
        levels = maps[: 1 + (buffer.rank is not None and self._rule.keeps_parallel_edges)]
        for parts in _split_runs(levels, self._runs, len(buffer), self._rule.keeps_parallel_edges):
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
        capacity = max(_FEWEST_EDGES, (self._memory_bytes - min(_FIXED_BYTES, self._memory_bytes // 4)) // cost)
        self._buffer = edges.empty_like(capacity)
        names = [name for name, v in zip(("key", "rank", "weight"), edges.all_columns, strict=True) if v is not None]
        self._files = [(self._folder / name).open("x+b", buffering=0) for name in names]
        return self._buffer

    def _write_run(self) -> None:
        assert self._buffer is not None
        if not self._filled:
            return
        run = self._rule.resolve_duplicates(sort_columns(self._buffer.slice_rows(slice(0, self._filled))))
        for file, values in zip(self._files, _present_columns(run), strict=True):
            write_fully(file, np.ascontiguousarray(values).view(np.uint8).data)
        self._runs.append(RunSlice(self._num_written, self._num_written + len(run)))
        self._filled = 0

    def _read_slices(self, buffer: EdgeColumns, parts: Sequence[RunSlice]) -> EdgeColumns:
        total = sum(part.last - part.first for part in parts)
        assert total <= len(buffer) or not self._rule.keeps_parallel_edges
        to = buffer if total <= len(buffer) else buffer.empty_like(total)
        for file, values in zip(self._files, _present_columns(to), strict=True):
            at = 0
            for part in parts:
                count = part.last - part.first
                file.seek(part.first * values.itemsize)
                _read_exactly(file, memoryview(values[at : at + count].view(np.uint8).data))
                at += count
        return to.slice_rows(slice(0, total))


def _split_runs(
    levels: Sequence[NDArray[Any]], runs: Sequence[RunSlice], capacity: int, divisible: bool
) -> Iterator[list[RunSlice]]:
    """Parts of all runs, range after range of the first level; ranges hold ``capacity`` edges at most."""
    values = levels[0]
    rest = list(runs)
    while rest := [part for part in rest if part.first < part.last]:
        cut = _find_cut(values, rest, capacity)
        taken = [RunSlice(part.first, end) for part, end in zip(rest, cut, strict=True)]
        rest = [RunSlice(end, part.last) for part, end in zip(rest, cut, strict=True)]
        taken = [part for part in taken if part.first < part.last]
        if _total_length(taken) <= capacity or not divisible:
            yield taken
        elif len(levels) > 1:
            yield from _split_runs(levels[1:], taken, capacity, divisible)
        else:
            yield from _slices_in_input_order(taken, capacity)


def _find_cut(values: NDArray[Any], parts: Sequence[RunSlice], capacity: int) -> list[int]:
    """Where to end each part, so that all values below a bound are taken: most of ``capacity``, or one value."""
    if _total_length(parts) <= capacity:
        return [part.last for part in parts]
    start = [part.first for part in parts]
    high = [part.last for part in parts]
    bottom = min(int(values[part.first]) for part in parts) + 1
    top = max(int(values[part.last - 1]) for part in parts) + 1
    low = _search_bound(values, start, high, bottom)
    while top - bottom > 1 and sum(low) - sum(start) < _FILL * capacity:
        middle = (bottom + top) // 2
        ends = _search_bound(values, low, high, middle)
        if sum(ends) - sum(start) <= capacity:
            low = ends
            bottom = middle
        else:
            high = ends
            top = middle
    return low


def _search_bound(values: NDArray[Any], low: Sequence[int], high: Sequence[int], bound: int) -> list[int]:
    limit = values.dtype.type(bound)
    return [a + int(values[a:b].searchsorted(limit)) for a, b in zip(low, high, strict=True)]


def _slices_in_input_order(parts: Sequence[RunSlice], capacity: int) -> Iterator[list[RunSlice]]:
    """Equal edges: the runs in turn, since that is the order of input."""
    for part in parts:
        for first in range(part.first, part.last, capacity):
            yield [RunSlice(first, min(first + capacity, part.last))]


def _total_length(parts: Sequence[RunSlice]) -> int:
    return sum(part.last - part.first for part in parts)


def _present_columns(edges: EdgeColumns) -> list[NDArray[Any]]:
    return [column for column in edges.all_columns if column is not None]


def _map_file(file: BinaryIO, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The file as an array for bisection: without reading ahead, which would push other pages out of a small memory."""
    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if sys.platform != "win32":
        pages.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(pages, dtype=dtype)


def _read_exactly(file: BinaryIO, to: memoryview) -> None:
    while to:
        count = file.readinto(to)  # type: ignore[attr-defined]
        assert count
        to = to[count:]
