"""Encoding of ids: from integers or texts in tables to node numbers."""

from __future__ import annotations

from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.node_ids import ArrowArray, NodeIds, TextArrays


@final
class IdEncoder:
    """Encoder that numbers ids from 0 in the order in which they first occur.

    Ids are all integers or all texts: integers are kept as their decimal texts once a text has come.

    Args:
        scratch: Folder for tables that exceed the memory; None to keep all in memory.
        memory_bytes: Bytes of memory that tables may take before they lie in files.
    """

    def __init__(self, scratch: Path | None = None, memory_bytes: int | None = None) -> None:
        self._numbers: dict[int | str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def encode(self, ids: ArrowArray) -> NDArray[np.int64]:
        """Return the number of each id, ``[n]``; an id that has none gets the next one.

        Args:
            ids: ``[n]`` Arrow array of integers or texts, without nulls.
        """
        numbers = self._numbers
        made = (numbers.setdefault(value, len(numbers)) for value in ids.to_pylist())
        return np.fromiter(made, np.int64, len(ids))

    def find(self, ids: ArrowArray) -> NDArray[np.int64]:
        """Return the number of each id, ``[n]``, -1 where it has none."""
        return np.fromiter((self._numbers.get(value, -1) for value in ids.to_pylist()), np.int64, len(ids))

    def finish(self) -> NodeIds:
        """Return the id of each number; may be called repeatedly, and more ids may be encoded after it."""
        import pyarrow as pa

        names = list(self._numbers)
        if all(isinstance(name, int) for name in names):
            return NodeIds.from_integers(np.array(names, dtype=np.int64))
        texts = TextArrays.from_arrow(pa.array(map(str, names), pa.large_string()))
        return NodeIds.from_texts(texts)
