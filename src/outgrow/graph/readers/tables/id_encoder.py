"""Encoding of ids: from integers or texts in tables to node numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.node_ids import ArrowArray, NodeIds, TextArrays, to_integers
from outgrow.graph.readers.source import Ids
from outgrow.graph.readers.tables.id_table import IdTable
from outgrow.ops.id_table import PackedIds, pack_ids, pack_integers

_ROWS = 1 << 20
"""Most ids that are looked up at once: temporary arrays have some 50 bytes for each."""
_FEWEST_ROWS = 1 << 14


@final
class IdEncoder:
    """Encoder that numbers ids from 0 in the order in which they first occur.

    Ids are all integers or all texts: integers are kept as their decimal texts once a text has come. Different ids are
    never taken for one: hashes only say where to look.

    Args:
        scratch: Folder for tables that exceed the memory; None to keep all in memory.
        memory_bytes: Bytes of memory that tables may take before they lie in files; None for any number.
    """

    def __init__(self, scratch: Path | None = None, memory_bytes: int | None = None) -> None:
        self._scratch, self._memory_bytes = scratch, memory_bytes
        limit = _ROWS if memory_bytes is None or scratch is None else memory_bytes // 64
        self._rows = max(_FEWEST_ROWS, min(_ROWS, limit))
        self._table: IdTable | None = None

    def __len__(self) -> int:
        return 0 if self._table is None else len(self._table)

    @property
    def are_text(self) -> bool:
        """Whether ids are texts; False without ids."""
        return self._table is not None and self._table.width == 0

    def encode(self, ids: ArrowArray) -> NDArray[np.int64]:
        """Return the number of each id, ``[n]``; an id that has none gets the next one.

        Args:
            ids: ``[n]`` Arrow array of integers, texts or a dictionary of either, without nulls.

        Raises:
            OSError: The disk of the tables is full.
        """
        import pyarrow as pa

        if pa.types.is_dictionary(ids.type):
            return self._encode_dictionary(ids)
        (numbers,) = self.encode_columns([ids])
        return numbers

    def encode_columns(self, columns: Sequence[ArrowArray]) -> list[NDArray[np.int64]]:
        """Return the number of each id of some columns, ``[n]`` each; ids get numbers row by row.

        So numbers do not depend on the batches in which the rows of several columns come.

        Args:
            columns: ``[n]`` Arrow arrays as `encode` takes them.

        Raises:
            OSError: The disk of the tables is full.
        """
        import pyarrow as pa

        num_rows = len(columns[0])
        out = [np.empty(num_rows, np.int64) for _ in columns]
        if not num_rows:
            return out
        given = _unify([_as_integers_or_texts(ids) for ids in columns])
        is_text = not pa.types.is_int64(given[0].type)
        if self._table is None:
            self._table = IdTable(0 if is_text else 8, self._scratch, self._memory_bytes)
        elif is_text and not self.are_text:
            self._keep_as_texts()
        step = self._rows // len(columns)
        for first in range(0, num_rows, step):
            parts = [ids.slice(first, step) for ids in given]
            numbers = np.empty(len(parts) * len(parts[0]), np.int64)
            joined = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
            self._table.encode_ids(_pack(joined, as_text=self.are_text), numbers, len(parts))
            for to, part in zip(out, np.split(numbers, len(parts)), strict=True):
                to[first : first + len(part)] = part
        return out

    def find(self, ids: ArrowArray) -> NDArray[np.int64]:
        """Return the number of each id, ``[n]``, -1 where it has none.

        Integers are found among texts too, in decimal form, and texts in decimal form among integers.
        """
        import pyarrow as pa

        if pa.types.is_dictionary(ids.type):
            found = self.find(ids.dictionary)
            return found[np.asarray(ids.indices.to_numpy(zero_copy_only=False), np.int64)]
        out = np.full(len(ids), -1, np.int64)
        if self._table is None or not len(ids):
            return out
        given = _as_integers_or_texts(ids)
        if not self.are_text and not pa.types.is_int64(given.type):
            values, known = to_integers(given)
            out[known] = self.find(_arrow_numbers(values[known]))
            return out
        for first in range(0, len(given), self._rows):
            part = given.slice(first, self._rows)
            self._table.find_ids(_pack(part, as_text=self.are_text), out[first : first + len(part)])
        return out

    def finish(self, borders: Sequence[int] = ()) -> NodeIds:
        """Return the id of each number; may be called repeatedly, and more ids may be encoded after it.

        Arrays may be mapped from files in the folder for tables, and stay as they are when more ids come.

        Args:
            borders: ``[T + 1]``, first node of each type and ``V``; empty for one type.

        Raises:
            OSError: The disk of the tables is full.
        """
        table = self._table or IdTable(8, None, None)
        scratch, memory_bytes = self._scratch, self._memory_bytes
        if table.width:
            return NodeIds.from_integers(table.integers, borders, scratch=scratch, memory_bytes=memory_bytes)
        return NodeIds.from_texts(table.texts, borders, scratch=scratch, memory_bytes=memory_bytes)

    def _encode_dictionary(self, ids: ArrowArray) -> NDArray[np.int64]:
        """Encode the entries that occur, in the order in which they do: a dictionary may hold others."""
        indices = ids.indices.to_numpy(zero_copy_only=False)
        occurring, first_rows, places = np.unique(indices, return_index=True, return_inverse=True)
        order = np.argsort(first_rows)
        numbers = np.empty(len(occurring), np.int64)
        numbers[order] = self.encode(ids.dictionary.take(_arrow_numbers(occurring[order])))
        return numbers[places]

    def _keep_as_texts(self) -> None:
        import pyarrow as pa

        assert self._table is not None
        values = self._table.integers
        self._table = IdTable(0, self._scratch, self._memory_bytes)
        for first in range(0, len(values), self._rows):
            texts = pa.array(values[first : first + self._rows], pa.int64()).cast(pa.large_string())
            self._table.encode_ids(_pack(texts, as_text=True), np.empty(len(texts), np.int64))


def _as_integers_or_texts(ids: ArrowArray) -> ArrowArray:
    """Return ids as int64 or large strings."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_decode()
    assert not ids.null_count, "ids without nulls"
    if pa.types.is_uint64(ids.type) and len(ids) and compute.max(ids).as_py() >= 2**63:
        return ids.cast(pa.large_string())
    if pa.types.is_integer(ids.type):
        return ids.cast(pa.int64())
    return ids.cast(pa.large_string())


def _unify(columns: list[ArrowArray]) -> list[ArrowArray]:
    import pyarrow as pa

    if all(pa.types.is_int64(ids.type) for ids in columns):
        return columns
    return [ids.cast(pa.large_string()) for ids in columns]


def _pack(ids: ArrowArray, *, as_text: bool) -> PackedIds:
    import pyarrow as pa

    if as_text:
        return pack_ids(0, *TextArrays.from_arrow(ids))
    return pack_integers(ids.cast(pa.int64()).to_numpy(zero_copy_only=False))


def _arrow_numbers(numbers: NDArray[np.int64]) -> ArrowArray:
    import pyarrow as pa

    return pa.array(numbers)


def node_keys(encoder: IdEncoder | None, num_nodes: int) -> Ids:
    """Return ``[V]`` int64, distinct: what tells nodes apart whatever their order, their ids if they have any."""
    if encoder is None:
        return np.arange(num_nodes)
    return keys_of_ids(encoder.finish())


def keys_of_ids(ids: NodeIds) -> Ids:
    """Return ``[V]`` int64: integer ids as they are, of texts a hash each."""
    if ids.values is not None:
        return ids.values.numpy()
    assert ids.hashes is not None
    keys = np.empty(len(ids), np.int64)
    keys[ids.order.numpy()] = ids.hashes.numpy()
    return keys
