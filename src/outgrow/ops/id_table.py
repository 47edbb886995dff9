"""Kernels of a hash table from ids to numbers: open addressing, with an exact comparison of ids.

A slot is 64 bits: the number of an id plus one in the low 40 bits, and above it the low 24 bits of the hash; 0 if it is
empty. An id lies in the first free slot from its home on, which the highest bits of its hash say: ids sorted by hash
visit the table from its start to its end, which is what a table in a file needs. Several ids of one hash are told apart
by their bytes. Tables are read by all threads and written by one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import device_function, parallel_kernel, prange, serial_kernel
from outgrow.ops.kernels.numerics import prefetch_entry
from outgrow.ops.text_hash import equal_bytes, hash_bytes

Numbers = NDArray[np.int64]
Slots = NDArray[np.uint64]
_NUMBER_BITS, _TAG_BITS = np.uint64(40), np.uint64(24)
_NUMBER = np.uint64((1 << 40) - 1)
_TAG = np.uint64((1 << 24) - 1)
_ONE, _EMPTY = np.uint64(1), np.uint64(0)
_AHEAD = 8
ABSENT, UNSETTLED = -1, -2
"""In place of a number: the table has no such id; the table must be searched by comparing each id."""


class PackedIds(NamedTuple):
    """Ids one after the other, as bytes: texts, or integers of 8 bytes each.

    Attributes:
        width: Bytes of each id; 0 if they differ.
        offsets: ``[n + 1]`` int64, ends of ids in ``data``; empty if all have one width.
        data: ``[N]`` uint8.
    """

    width: int
    offsets: NDArray[np.int64]
    data: NDArray[np.uint8]


def pack_ids(width: int, offsets: NDArray[np.int64], data: NDArray[Any]) -> PackedIds:
    """Return ids as kernels take them, without a copy: read-only, as arrays of Arrow are, for all to be of one type."""
    ends, held = offsets.view(), np.ascontiguousarray(data).view(np.uint8)
    ends.flags.writeable = held.flags.writeable = False
    return PackedIds(width, ends, held)


def pack_integers(values: NDArray[np.int64]) -> PackedIds:
    """Return integer ids as kernels take them, without a copy."""
    return pack_ids(8, np.empty(0, np.int64), values)


class SlotTable(NamedTuple):
    """A hash table.

    Attributes:
        slots: ``[2 ** k]`` uint64.
        shift: ``64 - k``, by which a hash is shifted to give a home.
    """

    slots: Slots
    shift: Any


@serial_kernel
def find_span(ids: PackedIds, i: Any) -> tuple[Any, Any]:
    """Return the first byte of an id, and how many bytes it has."""
    width, offsets, _ = ids
    if width > 0:
        return i * width, width
    return offsets[i], offsets[i + 1] - offsets[i]


@serial_kernel
def equal_ids(a: PackedIds, i: Any, b: PackedIds, j: Any) -> Any:
    """Whether id ``i`` of ``a`` is id ``j`` of ``b``."""
    first_a, length_a = find_span(a, i)
    first_b, length_b = find_span(b, j)
    return length_a == length_b and equal_bytes(a.data, first_a, b.data, first_b, length_a)


@parallel_kernel
def hash_ids(ids: PackedIds, first: int, out: NDArray[np.uint64]) -> None:
    """Write the hashes of the ids from ``first`` on to ``out``, ``[n]``."""
    for i in prange(len(out)):
        start, length = find_span(ids, first + i)
        out[i] = hash_bytes(ids.data, start, start + length)


@device_function
def _prefetch_ahead(table: SlotTable, known: PackedIds, hashes: NDArray[np.uint64], rows: Numbers, j: int) -> None:
    """Request what later looks read: of one row its slot, of another that slot's id, of a third the id's bytes."""
    slots, shift = table
    width, offsets, data = known
    last = len(rows) - 1
    prefetch_entry(slots, hashes[rows[min(j + 3 * _AHEAD, last)]] >> np.uint64(shift))
    slot = slots[hashes[rows[min(j + 2 * _AHEAD, last)]] >> np.uint64(shift)]
    if slot != _EMPTY:
        number = np.int64((slot & _NUMBER) - _ONE)
        if width > 0:
            prefetch_entry(data, number * width)
        else:
            prefetch_entry(offsets, number)
    slot = slots[hashes[rows[min(j + _AHEAD, last)]] >> np.uint64(shift)]
    if slot != _EMPTY and width == 0:
        prefetch_entry(data, offsets[np.int64((slot & _NUMBER) - _ONE)])


@parallel_kernel
def find_ids(
    table: SlotTable, known: PackedIds, ids: PackedIds, hashes: NDArray[np.uint64], rows: Numbers, out: Numbers
) -> None:
    """Write to ``out[row]`` the number of the id of each of some rows, `ABSENT` for none.

    Args:
        table: The table.
        known: The ids in it, by number.
        ids: The ids to find.
        hashes: ``[n]``, their hashes.
        rows: ``[m]``, which of them are looked up.
        out: ``[n]``.
    """
    for j in prange(len(rows)):
        slots, shift = table
        _prefetch_ahead(table, known, hashes, rows, j)
        row = rows[j]
        hashed = hashes[row]
        tag = hashed & _TAG
        mask = len(slots) - 1
        at: Any = np.int64(hashed >> np.uint64(shift))
        found: Any = ABSENT
        while slots[at] != _EMPTY:
            slot = slots[at]
            number = np.int64((slot & _NUMBER) - _ONE)
            if slot >> _NUMBER_BITS == tag and equal_ids(known, number, ids, row):
                found = number
                break
            at = (at + 1) & mask
        out[row] = found


@serial_kernel
def group_rows(keys: NDArray[np.uint64], shift: int, counts: Numbers, rows: Numbers) -> None:
    """Order rows by the high bits of their keys: a counting sort.

    Args:
        keys: ``[n]``.
        shift: By how many bits keys are shifted to give a group.
        counts: Zeros, of one entry more than there are groups; overwritten.
        rows: ``[n]``, receives the rows, those of the first group first.
    """
    for row in range(len(keys)):
        counts[np.int64(keys[row] >> np.uint64(shift)) + 1] += 1
    for group in range(1, len(counts)):
        counts[group] += counts[group - 1]
    for row in range(len(keys)):
        at = np.int64(keys[row] >> np.uint64(shift))
        rows[counts[at]] = row
        counts[at] += 1


@parallel_kernel
def find_candidates(table: SlotTable, hashes: NDArray[np.uint64], rows: Numbers, out: Numbers) -> None:
    """Write to ``out[row]`` the first number with the tag of a row's hash, `ABSENT` for none; ids are not compared."""
    for j in prange(len(rows)):
        slots, shift = table
        prefetch_entry(slots, hashes[rows[min(j + 2 * _AHEAD, len(rows) - 1)]] >> np.uint64(shift))
        row = rows[j]
        tag = hashes[row] & _TAG
        mask = len(slots) - 1
        at: Any = np.int64(hashes[row] >> np.uint64(shift))
        found: Any = ABSENT
        while slots[at] != _EMPTY:
            if slots[at] >> _NUMBER_BITS == tag:
                found = np.int64((slots[at] & _NUMBER) - _ONE)
                break
            at = (at + 1) & mask
        out[row] = found


@parallel_kernel
def compare_candidates(known: PackedIds, ids: PackedIds, rows: Numbers, out: Numbers) -> None:
    """Replace numbers of other ids in ``out[row]`` by `UNSETTLED`."""
    for j in prange(len(rows)):
        width, offsets, data = known
        # Rows of a batch are scattered, too: its offsets and bytes are requested like those of the table.
        farthest, later = rows[min(j + 3 * _AHEAD, len(rows) - 1)], rows[min(j + 2 * _AHEAD, len(rows) - 1)]
        soon = rows[min(j + _AHEAD, len(rows) - 1)]
        prefetch_entry(out, farthest)
        if width == 0:
            prefetch_entry(ids.offsets, later)
            if out[later] >= 0:
                prefetch_entry(offsets, out[later])
        start, _ = find_span(ids, soon)
        prefetch_entry(ids.data, start)
        if out[soon] >= 0:
            start, _ = find_span(known, out[soon])
            prefetch_entry(data, start)
        row = rows[j]
        if out[row] >= 0 and not equal_ids(known, out[row], ids, row):
            out[row] = UNSETTLED


@serial_kernel
def number_absent(
    table: SlotTable,
    ids: PackedIds,
    hashes: NDArray[np.uint64],
    columns: int,
    first: int,
    out: Numbers,
    new_rows: Numbers,
) -> int:
    """Number ids that are `ABSENT`, in the order in which they first occur: row by row, and in a row by columns.

    Args:
        table: An empty table, of more slots than rows that are absent; filled.
        ids: The ids.
        hashes: ``[n]``, their hashes.
        columns: Number of columns, ``n / columns`` ids each, which lie one after the other.
        first: The first number to give.
        out: ``[n]``, numbers; those of absent ids are written.
        new_rows: ``[m]``, of at least as many entries as there are absent ids; receives the first row of each.

    Returns:
        How many ids were numbered.
    """
    slots, shift = table
    mask = len(slots) - 1
    count = 0
    for place in range(len(out)):
        row = (place % columns) * (len(out) // columns) + place // columns
        if out[row] != ABSENT:
            continue
        hashed = hashes[row]
        tag = hashed & _TAG
        at: Any = np.int64(hashed >> np.uint64(shift))
        found: Any = ABSENT
        while slots[at] != _EMPTY:
            number = np.int64((slots[at] & _NUMBER) - _ONE)
            if slots[at] >> _NUMBER_BITS == tag and equal_ids(ids, new_rows[number], ids, row):
                found = number
                break
            at = (at + 1) & mask
        if found == ABSENT:
            slots[at] = (tag << _NUMBER_BITS) | (np.uint64(count) + _ONE)
            new_rows[count] = row
            found = count
            count += 1
        out[row] = first + found
    return count


@serial_kernel
def insert_numbers(table: SlotTable, hashes: NDArray[np.uint64], order: Numbers, first: int) -> None:
    """Put the numbers ``first + order[j]``, of hashes ``hashes[order[j]]`` and new to the table, into free slots."""
    slots, shift = table
    mask = len(slots) - 1
    for j in range(len(order)):
        hashed = hashes[order[j]]
        at: Any = np.int64(hashed >> np.uint64(shift))
        while slots[at] != _EMPTY:
            at = (at + 1) & mask
        slots[at] = ((hashed & _TAG) << _NUMBER_BITS) | (np.uint64(first + order[j]) + _ONE)


@parallel_kernel
def copy_ids(ids: PackedIds, rows: Numbers, ends: Numbers, out: NDArray[np.uint8]) -> None:
    """Copy the bytes of some ids to ``out``, the one of ``rows[j]`` to ``ends[j]``."""
    for j in prange(len(rows)):
        start, length = find_span(ids, rows[j])
        for k in range(length):
            out[ends[j] + k] = ids.data[start + k]
