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

from outgrow.graph.builders.edge_order import Columns, EdgeRule, sorted_columns
from outgrow.graph.store.writer import write_all

_FIXED_BYTES = 1 << 22
_FEWEST_EDGES = 16
_FILL = 0.9


class Part(NamedTuple):
    """A slice of one run: positions ``first`` to ``last - 1`` of the spill."""

    first: int
    last: int


class Spill:
    """Edges on disk in sorted runs. Close it, or use it in ``with``. Final.

    Where a rule drops duplicates, one pair of nodes is never cut: it takes as much memory as its relations need.

    Args:
        folder: Where to put the files.
        rule: Settles edges.
        memory_bytes: Most that the arrays of a sort may take.
    """

    def __init__(self, folder: Path, rule: EdgeRule, memory_bytes: int) -> None:
        self._folder, self._rule, self._memory_bytes = folder, rule, memory_bytes
        self._runs: list[Part] = []
        self._buffer: Columns | None = None
        self._filled = 0
        self._files: list[BinaryIO] = []

    @property
    def num_edges(self) -> int:
        """Edges on disk, and those that are about to be."""
        return self._spilled + self._filled

    @property
    def _spilled(self) -> int:
        return self._runs[-1].last if self._runs else 0

    def add(self, edges: Columns) -> None:
        """Take edges; a full buffer is sorted and written."""
        buffer = self._begin(edges) if self._buffer is None else self._buffer
        taken = 0
        while taken < len(edges):
            count = min(len(edges) - taken, len(buffer) - self._filled)
            for to, values in zip(_present(buffer), _present(edges), strict=True):
                to[self._filled : self._filled + count] = values[taken : taken + count]
            taken, self._filled = taken + count, self._filled + count
            if self._filled == len(buffer):
                self._flush()

    def ranges(self) -> Iterator[Columns]:
        """All edges, sorted and settled, in pieces that fit; call it once, after the last `add`.

        A piece is valid until the next one is asked for.
        """
        if self._buffer is None:
            return
        self._flush()
        buffer = self._buffer
        if len(self._runs) == 1 and self._runs[0].last <= len(buffer):
            yield self._read(buffer, self._runs)
            return
        maps = [_mapped(file, to.dtype) for file, to in zip(self._files, _present(buffer), strict=True)]
        levels = maps[: 1 + (buffer.rank is not None and self._rule.keeps_parallel)]
        for parts in _split(levels, self._runs, len(buffer), self._rule.keeps_parallel):
            yield self._rule.settle(sorted_columns(self._read(buffer, parts)))

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Spill:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, edges: Columns) -> Columns:
        cost = self._rule.key_bytes if len(_present(edges)) == 1 else self._rule.column_bytes
        capacity = max(_FEWEST_EDGES, (self._memory_bytes - min(_FIXED_BYTES, self._memory_bytes // 4)) // cost)
        self._buffer = edges.empty(capacity)
        names = [name for name, v in zip(("key", "rank", "weight"), edges.all, strict=True) if v is not None]
        self._files = [(self._folder / name).open("x+b", buffering=0) for name in names]
        return self._buffer

    def _flush(self) -> None:
        assert self._buffer is not None
        if not self._filled:
            return
        run = self._rule.settle(sorted_columns(self._buffer.take(slice(0, self._filled))))
        for file, values in zip(self._files, _present(run), strict=True):
            write_all(file, np.ascontiguousarray(values).view(np.uint8).data)
        self._runs.append(Part(self._spilled, self._spilled + len(run)))
        self._filled = 0

    def _read(self, buffer: Columns, parts: Sequence[Part]) -> Columns:
        total = sum(part.last - part.first for part in parts)
        assert total <= len(buffer) or not self._rule.keeps_parallel
        to = buffer if total <= len(buffer) else buffer.empty(total)
        for file, values in zip(self._files, _present(to), strict=True):
            at = 0
            for part in parts:
                count = part.last - part.first
                file.seek(part.first * values.itemsize)
                _read_all(file, memoryview(values[at : at + count].view(np.uint8).data))
                at += count
        return to.take(slice(0, total))


def _split(
    levels: Sequence[NDArray[Any]], runs: Sequence[Part], capacity: int, divisible: bool
) -> Iterator[list[Part]]:
    """Parts of all runs, range after range of the first level; ranges hold ``capacity`` edges at most."""
    values, rest = levels[0], list(runs)
    while rest := [part for part in rest if part.first < part.last]:
        cut = _cut(values, rest, capacity)
        taken = [Part(part.first, end) for part, end in zip(rest, cut, strict=True)]
        rest = [Part(end, part.last) for part, end in zip(rest, cut, strict=True)]
        taken = [part for part in taken if part.first < part.last]
        if _size(taken) <= capacity or not divisible:
            yield taken
        elif len(levels) > 1:
            yield from _split(levels[1:], taken, capacity, divisible)
        else:
            yield from _in_turn(taken, capacity)


def _cut(values: NDArray[Any], parts: Sequence[Part], capacity: int) -> list[int]:
    """Where to end each part, so that all values below a bound are taken: most of ``capacity``, or one value."""
    if _size(parts) <= capacity:
        return [part.last for part in parts]
    start, high = [part.first for part in parts], [part.last for part in parts]
    bottom = min(int(values[part.first]) for part in parts) + 1
    top = max(int(values[part.last - 1]) for part in parts) + 1
    low = _ends(values, start, high, bottom)
    while top - bottom > 1 and sum(low) - sum(start) < _FILL * capacity:
        middle = (bottom + top) // 2
        ends = _ends(values, low, high, middle)
        if sum(ends) - sum(start) <= capacity:
            low, bottom = ends, middle
        else:
            high, top = ends, middle
    return low


def _ends(values: NDArray[Any], low: Sequence[int], high: Sequence[int], bound: int) -> list[int]:
    limit = values.dtype.type(bound)
    return [a + int(values[a:b].searchsorted(limit)) for a, b in zip(low, high, strict=True)]


def _in_turn(parts: Sequence[Part], capacity: int) -> Iterator[list[Part]]:
    """Equal edges: the runs in turn, since that is the order of input."""
    for part in parts:
        for first in range(part.first, part.last, capacity):
            yield [Part(first, min(first + capacity, part.last))]


def _size(parts: Sequence[Part]) -> int:
    return sum(part.last - part.first for part in parts)


def _present(edges: Columns) -> list[NDArray[Any]]:
    return [column for column in edges.all if column is not None]


def _mapped(file: BinaryIO, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The file as an array for bisection: without reading ahead, which would push other pages out of a small memory."""
    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if sys.platform != "win32":
        pages.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(pages, dtype=dtype)


def _read_all(file: BinaryIO, to: memoryview) -> None:
    while to:
        count = file.readinto(to)  # type: ignore[attr-defined]
        assert count
        to = to[count:]
