"""Reader of knowledge graphs: folders of triples that are split into training, validation and test."""

from __future__ import annotations

import filecmp
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.user_warnings import warn_about_data
from outgrow.graph.graph import GraphOrigin
from outgrow.graph.link_split import HeldOutLinks
from outgrow.graph.link_triples import LinkTriples
from outgrow.graph.node_ids import ArrowArray, NodeIds, to_integers
from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource
from outgrow.graph.readers.tables.id_encoder import IdEncoder
from outgrow.graph.readers.tables.numbered_triples import NUMBERED, NumberedTripleFile
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.readers.tables.triple_files import (
    TripleColumns,
    TripleFile,
    choose_role_columns,
    read_numbered_names,
)

_ENTITY_FILES = {"entities.dict": False, "entity2id.txt": True}
_RELATION_FILES = {"relations.dict": False, "relation2id.txt": True}
"""Files of names and their numbers, and whether the name comes first."""
_NOTES = ("readme", "source", "license", "notice", "citation")
_SHOWN = 3


@final
class TriplesSource(GraphSource):
    """Source of a folder with ``train``, ``valid`` and ``test`` files of triples.

    The training triples are the edges, from head to tail; the others are held-out links. Entities and relations are
    numbered as they first occur, in the training triples, then in the others, or as a file of names and numbers in
    the folder says. Triples that occur several times are kept as often, so that counts are those published.

    Args:
        folder: The folder.
        files: The file of each part: see `find_triple_files`.
        options: Options, of which ``columns`` matters here.

    Raises:
        InputError: A file cannot be read or has no such columns, or two files are the same.
    """

    def __init__(self, folder: Path, files: Mapping[str, Path], options: TableOptions) -> None:
        self._folder = folder
        _require_other_files(files)
        columns = choose_role_columns(options.columns)
        self._named = {
            what: _find_named(folder, known)
            for what, known in (("entity", _ENTITY_FILES), ("relation", _RELATION_FILES))
        }
        self._files = {part: self._open_file(path, columns) for part, path in files.items()}
        self._entities = IdEncoder()
        self._relations: dict[str, int] = {}
        self._trained = _TrainedNames()
        self._held_out: HeldOutLinks | None = None
        self._started = self._finished = False

    def _open_file(self, path: Path, columns: Mapping[str, str]) -> TripleFile | NumberedTripleFile:
        if path.name not in NUMBERED.values():
            return TripleFile(path, columns)
        named = [found[0] if found is not None and found[1] else None for found in self._named.values()]
        return NumberedTripleFile(path, *named)

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self._folder.absolute().name

    def set_scratch(self, folder: Path, memory_bytes: int) -> None:
        """Keep tables of entities that exceed the memory in a folder."""
        self._entities = IdEncoder(folder, memory_bytes)

    def read_tables(self) -> NodeTableSource:
        """Return tables without anything: triples tell nothing of their entities but the names.

        Raises:
            InputError: A file of names and numbers is broken.
        """
        self._start()
        return NodeTableSource(relation_names=tuple(self._relations) if self._named["relation"] else ())

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield the training triples.

        Raises:
            InputError: A row is no triple, or has a name that the files of names do not have.
        """
        self._start()
        for triples in self._files["train"].read_batches():
            head, relation, tail = self._number(triples, self._files["train"].path)
            if not self._finished:
                self._trained.add(head, tail)
            yield EdgeChunk(src=head, dst=tail, relation=relation)
        self._finish()

    def read_relation_names(self) -> tuple[str, ...]:
        """Return the names of the relations of all files."""
        self._finish()
        return tuple(self._relations)

    def read_ids(self) -> NodeIds:
        """Return the names of the entities of all files; integers if all of them are."""
        self._finish()
        return self._ids

    @cached_property
    def _ids(self) -> NodeIds:
        ids = self._entities.finish()
        return _to_integer_ids(ids) if ids.are_text else ids

    def read_held_out_links(self) -> HeldOutLinks:
        """Return the triples to validate and to test on."""
        self._finish()
        assert self._held_out is not None
        return self._held_out

    def describe_origin(self) -> GraphOrigin:
        """Return which files were read."""
        kinds = (("edges", "train"), ("links to validate on", "valid"), ("links to test on", "test"))
        read = [(what, self._files[part].path.name) for what, part in kinds if part in self._files]
        every = ", ".join(each.path.name for each in self._files.values())
        for what, key in (("ids", "entity"), ("relations", "relation")):
            named = self._named[key]
            read.append((what, every if named is None else named[0].name))
        return GraphOrigin(read=tuple(read), unread=self.list_unread())

    def list_unread(self) -> tuple[str, ...]:
        """Return other columns of the files, and other files of the folder."""
        used = {each.path.name for each in self._files.values()}
        used |= {named[0].name for named in self._named.values() if named is not None}
        others = sorted(
            path.name
            for path in self._folder.iterdir()
            if path.is_file() and path.name not in used and not path.name.lower().startswith((".", *_NOTES))
        )
        return (*(name for each in self._files.values() for name in each.unread), *others)

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        import pyarrow as pa

        if (named := self._named["entity"]) is not None:
            self._entities.encode(pa.array(read_numbered_names(named[0], name_first=named[1]), pa.large_string()))
        if (named := self._named["relation"]) is not None:
            names = read_numbered_names(named[0], name_first=named[1])
            self._relations = {name: number for number, name in enumerate(names)}

    def _finish(self) -> None:
        """Read what is held out: once, after the edges, whose names come first."""
        if self._finished:
            return
        self._finished = True
        parts = {part: self._read_part(part) for part in ("valid", "test")}
        self._held_out = HeldOutLinks(parts["valid"], parts["test"])
        self._warn_of_untrained()

    def _read_part(self, part: str) -> LinkTriples:
        import torch

        found = [np.empty((3, 0), np.int64)]
        if part in self._files:
            file = self._files[part]
            found += [np.stack(self._number(triples, file.path)) for triples in file.read_batches()]
        head, relation, tail = torch.from_numpy(np.concatenate(found, axis=1)).unbind(0)
        return LinkTriples(head, tail, relation)

    def _number(
        self, triples: TripleColumns, path: Path
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the numbers of head, relation and tail of some triples."""
        import pyarrow as pa

        rows = len(triples.head)
        # One row after the other, so that the order does not depend on how many rows are read at a time.
        order = np.arange(2 * rows).reshape(2, rows).T.reshape(-1)
        names = pa.concat_arrays([triples.head, triples.tail]).take(pa.array(order))
        if (named := self._named["entity"]) is None:
            numbers = self._entities.encode(names)
        else:
            numbers = self._entities.find(names)
            _require_known(numbers, names, "entity", path, named[0])
        head, tail = np.ascontiguousarray(numbers.reshape(rows, 2).T)
        return head, self._number_relations(triples.relation, path), tail

    def _number_relations(self, names: ArrowArray, path: Path) -> NDArray[np.int64]:
        encoded = names.dictionary_encode()
        distinct: list[str] = encoded.dictionary.to_pylist()
        if (named := self._named["relation"]) is None:
            for name in distinct:
                self._relations.setdefault(name, len(self._relations))
        numbers = np.array([self._relations.get(name, -1) for name in distinct], np.int64)
        made: NDArray[np.int64] = numbers[encoded.indices.to_numpy()]
        if named is not None:
            _require_known(made, names, "relation", path, named[0])
        return made

    def _warn_of_untrained(self) -> None:
        assert self._held_out is not None
        held = [part for part in self._held_out if len(part)]
        if not held:
            return
        entities = self._trained.find_others([each.numpy() for part in held for each in (part.head, part.tail)])
        if len(entities):
            first = ", ".join(str(self._ids[int(at)]) for at in entities[:_SHOWN])
            warn_about_data(
                f"entities of {self.name} that occur in no training triple are kept: {len(entities):,}, such as {first}"
            )


class _TrainedNames:
    """Numbers of entities that occur in training triples."""

    def __init__(self) -> None:
        self._mask = np.zeros(0, bool)

    def add(self, *ends: NDArray[np.int64]) -> None:
        for numbers in ends:
            mask = self._mask
            most = int(numbers.max(initial=-1)) + 1
            if most > len(mask):
                # Twice as long, so that growing takes a time in proportion to the result.
                mask = self._mask = np.concatenate([mask, np.zeros(max(most, 2 * len(mask)) - len(mask), bool)])
            mask[numbers] = True

    def find_others(self, numbers: list[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return those that do not occur, ascending."""
        found = np.unique(np.concatenate(numbers))
        mask = self._mask
        there = found < len(mask)
        there[there] = mask[found[there]]
        others: NDArray[np.int64] = found[~there]
        return others


def _find_named(folder: Path, known: Mapping[str, bool]) -> tuple[Path, bool] | None:
    return next(((folder / name, first) for name, first in known.items() if (folder / name).is_file()), None)


def _require_other_files(files: Mapping[str, Path]) -> None:
    for part, path in files.items():
        for other in (each for name, each in files.items() if name < part):
            if path.is_file() and other.is_file() and filecmp.cmp(path, other, shallow=False):
                raise InputError(
                    f"{path.parent} has the same triples in two parts",
                    needed="other triples to train, to validate and to test on",
                    got=f"{other.name} and {path.name}, which are equal",
                    repair="give the files of the published split",
                )


def _require_known(numbers: NDArray[np.int64], names: ArrowArray, what: str, path: Path, named: Path) -> None:
    unknown = np.flatnonzero(numbers < 0)
    if len(unknown):
        shown = ", ".join(repr(names[int(at)].as_py()) for at in unknown[:_SHOWN])
        raise InputError(
            f"{path}: {named.name} does not have every {what}",
            needed=f"names of {named.name}",
            got=f"{len(unknown):,} others, such as {shown}",
            repair=f"correct {named.name}, or move it away: names are then numbered as they occur",
        )


def _to_integer_ids(ids: NodeIds) -> NodeIds:
    """Return ids as integers if each is one, in decimal form; else as they are."""
    values, known = to_integers(ids.texts.to_arrow())
    return NodeIds.from_integers(values) if len(ids) and known.all() else ids
