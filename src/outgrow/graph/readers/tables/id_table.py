"""The ids that have numbers, and the hash table by which they are found: in memory or in temporary files."""

from __future__ import annotations

from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.node_ids import TextArrays
from outgrow.graph.scratch_array import ScratchArray, make_scratch_array
from outgrow.ops.id_table import (
    UNSETTLED,
    PackedIds,
    SlotTable,
    compare_candidates,
    copy_ids,
    find_candidates,
    find_ids,
    hash_ids,
    insert_numbers,
    number_absent,
    pack_ids,
)

_FEWEST_SLOT_BITS = 10
_BLOCK = 1 << 18


@final
class IdTable:
    """Ids numbered from 0. In files, tables are visited from their start to their end for each batch of ids.

    Args:
        width: Bytes of each id; 0 for texts.
        scratch: Folder for files; None to keep all in memory.
        memory_bytes: Bytes of memory that tables may take before they lie in files; None for any number.
    """

    def __init__(self, width: int, scratch: Path | None, memory_bytes: int | None) -> None:
        self.width = width
        self._scratch = scratch
        self._memory_bytes = None if scratch is None else memory_bytes
        self._in_files = False
        self._data = ScratchArray(np.uint8)
        self._offsets = ScratchArray(np.int64)
        if not width:
            self._offsets.append_values(np.zeros(1, np.int64))
        self._slots = np.zeros(1 << _FEWEST_SLOT_BITS, np.uint64)

    def __len__(self) -> int:
        return len(self._data) // self.width if self.width else len(self._offsets) - 1

    @property
    def integers(self) -> NDArray[np.int64]:
        """The ids as int64."""
        return self._data.values.view(np.int64)

    @property
    def texts(self) -> TextArrays:
        """The ids as texts."""
        return TextArrays(self._offsets.values, self._data.values)

    def find_ids(self, ids: PackedIds, out: NDArray[np.int64]) -> None:
        """Write the number of each id to ``out``, ``[n]``, -1 for none."""
        self._find(ids, self._hash(ids, 0, len(out)), out)

    def encode_ids(self, ids: PackedIds, out: NDArray[np.int64], columns: int = 1) -> None:
        """Write the number of each id to ``out``, ``[n]``; an id that has none gets the next one.

        Args:
            ids: The ids, those of some columns one after the other.
            out: ``[n]``.
            columns: Number of columns. New ids are numbered row by row.

        Raises:
            OSError: The disk is full.
        """
        hashes = self._hash(ids, 0, len(out))
        self._find(ids, hashes, out)
        absent = int(np.count_nonzero(out < 0))
        if not absent:
            return
        new_rows = np.empty(absent, np.int64)
        count = number_absent(_make_table(_slot_bits(absent)), ids, hashes, columns, len(self), out, new_rows)
        new_rows = new_rows[:count]
        first = len(self)
        self._append(ids, new_rows)
        # The table last: it is made of the ids when it grows.
        if not self._grow():
            self._insert(hashes[new_rows], first)

    @staticmethod
    def _hash(ids: PackedIds, first: int, count: int) -> NDArray[np.uint64]:
        hashes = np.empty(count, np.uint64)
        hash_ids(ids, first, hashes)
        return hashes

    @property
    def _known(self) -> PackedIds:
        return pack_ids(self.width, self._offsets.values, self._data.values)

    def _find(self, ids: PackedIds, hashes: NDArray[np.uint64], out: NDArray[np.int64]) -> None:
        table, known = _as_table(self._slots), self._known
        rows = np.arange(len(out))
        if self._in_files:
            # First along the table, then along the ids: at random, each look would wait for the disk.
            find_candidates(table, hashes, np.argsort(hashes), out)
            compare_candidates(known, ids, np.argsort(out), out)
            rows = np.flatnonzero(out == UNSETTLED)
        find_ids(table, known, ids, hashes, rows, out)

    def _append(self, ids: PackedIds, rows: NDArray[np.int64]) -> None:
        self._move_if_large(sum(array.capacity_bytes for array in (self._data, self._offsets)) + self._slots.nbytes)
        if self.width:
            ends = np.arange(len(rows)) * self.width
            total = len(rows) * self.width
        else:
            lengths = ids.offsets[rows + 1] - ids.offsets[rows]
            total = int(lengths.sum())
            ends = np.cumsum(lengths) - lengths
            self._offsets.append_values(len(self._data) + ends + lengths)
        copy_ids(ids, rows, ends, self._data.extend(total))

    def _move_if_large(self, num_bytes: int) -> None:
        if self._in_files or self._memory_bytes is None or num_bytes <= self._memory_bytes:
            return
        assert self._scratch is not None
        self._in_files = True
        self._data.move_to_file(self._scratch)
        self._offsets.move_to_file(self._scratch)
        slots = make_scratch_array(len(self._slots), np.uint64, self._scratch)
        slots[:] = self._slots
        self._slots = slots

    def _grow(self) -> bool:
        """Make the table anew if it is too full; whether it was."""
        bits = _slot_bits(len(self))
        if 1 << bits <= len(self._slots):
            return False
        held = sum(array.capacity_bytes for array in (self._data, self._offsets))
        self._move_if_large(held + (8 << bits))
        # Before the new one is there, so that both are never held.
        self._slots = np.zeros(0, np.uint64)
        self._slots = make_scratch_array(1 << bits, np.uint64, self._scratch if self._in_files else None)
        known = self._known
        for first in range(0, len(self), _BLOCK):
            self._insert(self._hash(known, first, min(_BLOCK, len(self) - first)), first)
        return True

    def _insert(self, hashes: NDArray[np.uint64], first: int) -> None:
        order = np.argsort(hashes) if self._in_files else np.arange(len(hashes))
        insert_numbers(_as_table(self._slots), hashes, order, first)


def _slot_bits(count: int) -> int:
    """Return the binary logarithm of the slots for some ids, of which they fill at most 5/8."""
    return max(_FEWEST_SLOT_BITS, (count * 8 // 5).bit_length())


def _make_table(bits: int) -> SlotTable:
    return _as_table(np.zeros(1 << bits, np.uint64))


def _as_table(slots: NDArray[np.uint64]) -> SlotTable:
    return SlotTable(slots, 64 - (len(slots).bit_length() - 1))
