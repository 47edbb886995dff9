"""Ids of nodes of several types: found by edges, counted where they are unknown, and joined."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np

from outgrow.core.errors import InputError
from outgrow.core.user_warnings import warn_about_data
from outgrow.graph.node_ids import ArrowArray, NodeIds, TextArrays
from outgrow.graph.readers.source import Ids
from outgrow.graph.readers.tables.edge_table import EdgeBatch
from outgrow.graph.readers.tables.id_encoder import IdEncoder
from outgrow.graph.readers.tables.table import Table
from outgrow.graph.readers.typed_parts import Relation

_SHOWN = 3


@final
class TypedIds:
    """The ids of the nodes of one type.

    Args:
        count: Number of nodes.
        encoder: Their ids; None if they are the numbers from 0.
    """

    def __init__(self, count: int, encoder: IdEncoder | None) -> None:
        self._count = count
        self.encoder = encoder

    @staticmethod
    def make_empty(scratch: Path | None, memory_bytes: int | None) -> TypedIds:
        """Return the ids of no nodes, to which others can be added."""
        return TypedIds(0, IdEncoder(scratch, memory_bytes))

    def __len__(self) -> int:
        return self._count if self.encoder is None else len(self.encoder)

    @property
    def are_text(self) -> bool:
        """Whether ids are texts."""
        return self.encoder is not None and self.encoder.are_text

    def add(self, ids: ArrowArray) -> None:
        """Number the ids that have no number yet; nothing is added to nodes without ids."""
        if self.encoder is not None:
            self.encoder.encode(ids)

    def find(self, ids: ArrowArray) -> Ids:
        """Return the number of each id within the type, ``[n]``, -1 where it has none."""
        import pyarrow as pa

        if self.encoder is not None:
            return self.encoder.find(ids)
        if not pa.types.is_integer(ids.type):
            return np.full(len(ids), -1, np.int64)
        numbers = np.asarray(ids.cast(pa.int64()).to_numpy(zero_copy_only=False))
        return np.where((numbers >= 0) & (numbers < self._count), numbers, -1)


@final
class UnknownIds:
    """Counter of edges that lead to nodes of unknown ids.

    Args:
        relation: Type of the edges.
        table: Their table.
    """

    def __init__(self, relation: Relation, table: Table) -> None:
        self._relation = relation
        self._table = table
        self._count = 0
        self._first: dict[str, int] = {}

    def add(self, batch: EdgeBatch, src: Ids, dst: Ids) -> None:
        """Count the edges of a batch of which one end was not found."""
        self._count += int(((src < 0) | (dst < 0)).sum())
        if len(self._first) >= _SHOWN:
            return
        ends = ((self._relation[0], batch.src, src), (self._relation[2], batch.dst, dst))
        unknown = [(int(at), kind, ids) for kind, ids, found in ends for at in np.flatnonzero(found < 0)[:_SHOWN]]
        for at, kind, ids in sorted(unknown, key=lambda each: each[0]):
            self._first.setdefault(f"{kind} {str(ids[at])[:80]!r}", batch.first_row + at)

    def report(self, *, drop: bool) -> None:
        """Refuse unknown nodes, or warn that their edges are dropped; say nothing if there are none.

        Raises:
            InputError: There are some, and they are not to be dropped.
        """
        if not self._count:
            return
        where = " ".join(self._relation)
        shown = ", ".join(list(self._first)[:_SHOWN])
        if drop:
            warn_about_data(f"{self._count:,} edges {where} to nodes that no table names are dropped, such as {shown}")
            return
        row = next(iter(self._first.values()))
        raise InputError(
            f"{self._table.locate_row(row)}: edges {where} lead to nodes that no table names",
            needed="ids of the tables of nodes, or row numbers from 0 where these have no column of ids",
            got=f"{self._count:,} such edges, to {shown}",
            repair="add the nodes to their tables, or give --unknown-nodes drop or add",
        )


def join_ids(
    kinds: Sequence[TypedIds], counts: Sequence[int], *, scratch: Path | None, memory_bytes: int | None
) -> NodeIds | None:
    """Return the ids of the nodes of all types, one type after the other; None if no type has any.

    They are integers if those of all types are, else texts. Nodes without ids have their numbers within the type.

    Args:
        kinds: The ids of each type.
        counts: Its number of nodes.
        scratch: Folder for arrays that exceed the memory; None for memory.
        memory_bytes: Bytes that they may take.
    """
    import pyarrow as pa

    if all(kind.encoder is None for kind in kinds):
        return None
    arrays = []
    for kind, count in zip(kinds, counts, strict=True):
        numbers = np.arange(count)
        arrays.append(pa.array(numbers) if kind.encoder is None else kind.encoder.finish().take_arrow(numbers))
    borders = np.cumsum([0, *counts]).tolist()
    if not any(kind.are_text for kind in kinds):
        values = pa.concat_arrays([each.cast(pa.int64()) for each in arrays]).to_numpy(zero_copy_only=False)
        return NodeIds.from_integers(np.array(values), borders, scratch=scratch, memory_bytes=memory_bytes)
    texts = TextArrays.from_arrow(pa.concat_arrays([each.cast(pa.large_string()) for each in arrays]))
    return NodeIds.from_texts(texts, borders, scratch=scratch, memory_bytes=memory_bytes)
