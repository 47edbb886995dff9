"""Renumbering of a batch whose rows are pairs of a node and a time.

A table of all nodes, as in `outgrow.ops.sampling.renumber`, has no place for several times of a node. Here a hash table
with linear probing holds ``base`` plus the row of each pair; smaller entries are left from earlier batches and count as
free, so that it is not cleared between batches. It has at least twice as many places as the batch has rows.

Letters: ``n`` rows, ``E`` edges, ``P`` places of the table, a power of 2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import serial_kernel
from outgrow.ops.rng import hash64
from outgrow.ops.sampling.uniform import Ids

Table = NDArray[np.int32]
_LARGEST = int(np.iinfo(np.int32).max)
_FEWEST = 1 << 10


class PairRows(NamedTuple):
    """Rows of a batch, by number.

    Attributes:
        nodes: ``[n]`` int64.
        times: ``[n]`` int64, the time that each row is drawn for: that of its seed.
    """

    nodes: Ids
    times: Ids

    def slice_rows(self, rows: slice) -> PairRows:
        """Return some of the rows."""
        return PairRows(self.nodes[rows], self.times[rows])


class PairTable:
    """Numbers of pairs; for one batch at a time. Final."""

    def __init__(self) -> None:
        self._table: Table = np.zeros(_FEWEST, np.int32)
        self._base = 1
        self._count = 0

    def number_rows(self, rows: PairRows) -> int:
        """Forget all numbers, and number some pairs from 0.

        Returns:
            How many were numbered: all, or the position of the first that is repeated.
        """
        self._forget(len(rows.nodes))
        self._count = _number_pairs(self._table, self._base, rows)
        return self._count

    def add_sources(self, sources: Ids, times: Ids, known: PairRows) -> tuple[PairRows, Table]:
        """Number the sources of edges, each with the time of its destination.

        Args:
            sources: ``[E]`` int64.
            times: ``[E]`` int64.
            known: All rows that have a number, in this order.

        Returns:
            The rows that have a number now, and ``[E]``, the row of each source.
        """
        count = len(known.nodes)
        if 2 * (count + len(sources)) > len(self._table):
            self._forget(count + len(sources))
            _number_pairs(self._table, self._base, known)
        # Room for the worst case, in which every edge has a new source.
        rows = PairRows(np.empty(count + len(sources), np.int64), np.empty(count + len(sources), np.int64))
        rows.nodes[:count], rows.times[:count] = known
        local = np.empty(len(sources), np.int32)
        self._count = _number_sources(self._table, self._base, sources, times, rows, count, local)
        return rows.slice_rows(slice(self._count)), local

    def _forget(self, most: int) -> None:
        """Forget all numbers, with room for ``most`` rows."""
        # One more than any entry of the table: they count as free without a pass over it.
        self._base += self._count
        self._count = 0
        if 2 * most > len(self._table):
            self._table, self._base = np.zeros(1 << (2 * most - 1).bit_length(), np.int32), 1
        elif self._base > _LARGEST - len(self._table):
            self._table[:] = 0
            self._base = 1


@serial_kernel
def _number_pairs(table: Table, base: int, rows: PairRows) -> int:
    nodes, times = rows
    for i in range(len(nodes)):
        place = _find_place(table, base, rows, nodes[i], times[i])
        if table[place] >= base:
            return i
        table[place] = base + i
    return len(nodes)


@serial_kernel
def _number_sources(
    table: Table, base: int, sources: Ids, source_times: Ids, rows: PairRows, known: int, local: Table
) -> int:
    nodes, times = rows
    for e in range(len(sources)):
        place = _find_place(table, base, rows, sources[e], source_times[e])
        if table[place] < base:
            table[place] = base + known
            nodes[known], times[known] = sources[e], source_times[e]
            known += 1
        local[e] = table[place] - base
    return known


@serial_kernel
def _find_place(table: Table, base: int, rows: PairRows, node: int, time: int) -> np.uint64:
    """Return the place of a pair in the table, or the free one where it belongs."""
    mask = np.uint64(len(table) - 1)
    place = hash64(np.uint64(node), np.uint64(time)) & mask
    while table[place] >= base:
        row = table[place] - base
        if rows.nodes[row] == node and rows.times[row] == time:
            break
        place = (place + np.uint64(1)) & mask
    return place
