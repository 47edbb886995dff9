"""Triples of numbers, as OpenKE has them: ``train2id.txt`` beside ``entity2id.txt`` and ``relation2id.txt``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.files import os_errors_as_input_errors
from outgrow.graph.node_ids import ArrowArray
from outgrow.graph.readers.tables.triple_files import TripleColumns, empty_file_error, read_numbered_names

NUMBERED = {"train": "train2id.txt", "valid": "valid2id.txt", "test": "test2id.txt"}
"""Files of the parts of a folder of OpenKE."""
_BATCH_ROWS = 1 << 17


def find_numbered_files(folder: Path) -> dict[str, Path] | None:
    """Return the files of a folder of OpenKE by their parts; None if it is none."""
    found = {part: folder / name for part, name in NUMBERED.items() if (folder / name).is_file()}
    return found if "train" in found and len(found) > 1 else None


@final
class NumberedTripleFile:
    """A file of triples as numbers: their count in the first line, then head, tail and relation in this order.

    Args:
        path: The file, such as ``train2id.txt``.
        entities: File with a name and a number of each entity in a line; None to name entities by their numbers.
        relations: Likewise of relations.
    """

    def __init__(self, path: Path, entities: Path | None, relations: Path | None) -> None:
        self.path = path
        self._entity_file = entities
        self._relation_file = relations

    @property
    def unread(self) -> tuple[str, ...]:
        """Nothing: all columns are read."""
        return ()

    def read_batches(self) -> Iterator[TripleColumns]:
        """Yield all triples by their names, in batches; the numbers of the whole file are held in memory.

        Raises:
            InputError: A row of another form, a number without a name, or no rows.
        """
        table = self._read_numbers()
        if not len(table):
            raise empty_file_error(self.path)
        for first in range(0, len(table), _BATCH_ROWS):
            head, tail, relation = table[first : first + _BATCH_ROWS].T
            yield TripleColumns(
                self._name(head, self._entities, "entity"),
                self._name(relation, self._relations, "relation"),
                self._name(tail, self._entities, "entity"),
            )

    @cached_property
    def _entities(self) -> ArrowArray | None:
        return _read_names(self._entity_file)

    @cached_property
    def _relations(self) -> ArrowArray | None:
        return _read_names(self._relation_file)

    def _read_numbers(self) -> NDArray[np.int64]:
        import pyarrow as pa
        from pyarrow import csv

        refused = os_errors_as_input_errors(
            f"{self.path} cannot be read",
            needed="the number of triples, then head, tail and relation in each line, as numbers",
            repair="correct the file; triples of names are in train.txt, valid.txt and test.txt",
            also=(pa.ArrowInvalid,),
        )
        with refused:
            count, _, rest = self.path.read_bytes().partition(b"\n")
            file: Any = pa.BufferReader(rest)
            mark = "\t" if b"\t" in rest[:1024] else " "
            names = ["head", "tail", "relation"]
            made: Any = (
                csv.read_csv(
                    file,
                    csv.ReadOptions(column_names=names),
                    csv.ParseOptions(delimiter=mark),
                    csv.ConvertOptions(column_types=dict.fromkeys(names, pa.int64()), null_values=[]),
                )
                if rest.strip()
                else pa.table({name: pa.array([], pa.int64()) for name in names})
            )
        if count.strip() != str(made.num_rows).encode():
            raise InputError(
                f"{self.path} does not have as many triples as its first line says",
                needed="the number of triples in the first line",
                got=f"{count.strip()[:20].decode(errors='replace')!r} above {made.num_rows:,} triples",
                repair="take the file from its publisher again",
            )
        return np.stack([np.asarray(made[name]) for name in names], 1)

    def _name(self, numbers: NDArray[np.int64], names: ArrowArray | None, what: str) -> ArrowArray:
        import pyarrow as pa

        if names is None:
            return pa.array(numbers, pa.int64()).cast(pa.large_string())
        bad = numbers[(numbers < 0) | (numbers >= len(names))]
        if len(bad):
            raise InputError(
                f"{self.path} has a number without a name",
                needed=f"numbers from 0 to {len(names) - 1} of each {what}",
                got=f"{len(bad):,} others, the first is {bad[0]}",
                repair=f"take it and {what}2id.txt from the same data set",
            )
        return names.take(pa.array(numbers))


def _read_names(path: Path | None) -> ArrowArray | None:
    import pyarrow as pa

    return None if path is None else pa.array(read_numbered_names(path, name_first=True), pa.large_string())
