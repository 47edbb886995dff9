"""Ids of nodes of several types."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import final

import numpy as np

from outgrow.graph.node_ids import NodeIds, TextArrays
from outgrow.graph.readers.tables.id_encoder import IdEncoder


@final
class TypedIds:
    """The ids of the nodes of one type.

    Args:
        encoder: Their ids.
        are_given: Whether a table has them; if not, they are the numbers of its rows.
    """

    def __init__(self, encoder: IdEncoder, *, are_given: bool = True) -> None:
        self.encoder = encoder
        self.are_given = are_given

    @staticmethod
    def make_empty(scratch: Path | None, memory_bytes: int | None) -> TypedIds:
        """Return the ids of no nodes, to which others can be added."""
        return TypedIds(IdEncoder(scratch, memory_bytes))

    @staticmethod
    def number_rows(count: int, scratch: Path | None, memory_bytes: int | None) -> TypedIds:
        """Return the numbers of the rows of a table without ids."""
        import pyarrow as pa

        encoder = IdEncoder(scratch, memory_bytes)
        encoder.encode(pa.array(np.arange(count)))
        return TypedIds(encoder, are_given=False)

    def __len__(self) -> int:
        return len(self.encoder)


def join_ids(kinds: Sequence[TypedIds], *, scratch: Path | None, memory_bytes: int | None) -> NodeIds | None:
    """Return the ids of the nodes of all types, one type after the other; None if no type has any.

    They are integers if those of all types are, else texts. Nodes without ids have their numbers within the type.

    Args:
        kinds: The ids of each type.
        scratch: Folder for arrays that exceed the memory; None for memory.
        memory_bytes: Bytes that they may take.
    """
    import pyarrow as pa

    if not any(kind.are_given for kind in kinds):
        return None
    counts = [len(kind) for kind in kinds]
    arrays = [kind.encoder.finish().take_arrow(np.arange(count)) for kind, count in zip(kinds, counts, strict=True)]
    borders = [0, *accumulate(counts)]
    if not any(kind.encoder.are_text for kind in kinds):
        values = pa.concat_arrays([each.cast(pa.int64()) for each in arrays]).to_numpy(zero_copy_only=False)
        return NodeIds.from_integers(np.array(values), borders, scratch=scratch, memory_bytes=memory_bytes)
    texts = TextArrays.from_arrow(pa.concat_arrays([each.cast(pa.large_string()) for each in arrays]))
    return NodeIds.from_texts(texts, borders, scratch=scratch, memory_bytes=memory_bytes)
