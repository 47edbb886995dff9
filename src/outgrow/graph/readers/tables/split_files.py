"""Splits in files beside the tables of a graph: ids line by line, or masks in ``.npz`` files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.files import os_errors_as_input_errors
from outgrow.graph.node_ids import NodeIds
from outgrow.graph.readers.npz_archive import NpzArchive
from outgrow.graph.readers.source import Ids
from outgrow.graph.readers.splits import PART_WORDS, PARTS, Parts, empty_split_error, splits_of_masks
from outgrow.graph.readers.tables.node_roles import ID
from outgrow.graph.readers.tables.open_table import open_table

FOLDERS = ("split", "splits")
_TEXT = {".txt", ".csv", ".tsv"}
_TABLES = {".parquet", ".arrow", ".feather", ".ipc"}
_PACKED = {".gz", ".zst", ".bz2"}
_SPLIT_NAME = re.compile(r"(.*_)?splits?(_.*)?")
_DIGITS = re.compile(r"(\d+)")
_SHOWN = 3
FindNodes = Callable[[Sequence[str]], Ids]


def find_split_files(folder: Path) -> list[Path | dict[str, Path]]:
    """Return the splits in a folder, and in its ``split/`` or ``splits/``, in the order of their names.

    Returns:
        For each split the files of its parts, ``train.txt`` and so on, or one ``.npz`` file; of the second kind one
        file may hold several splits.
    """
    found: list[Path | dict[str, Path]] = []
    inside = [folder / name for name in FOLDERS if (folder / name).is_dir()]
    for place in [folder, *inside, *(sub for each in inside for sub in _natural_order(each) if sub.is_dir())]:
        parts = {part: path for path in _natural_order(place) if (part := _part_of(path)) is not None}
        if parts:
            found.append(parts)
        archives = [path for path in _natural_order(place) if path.suffix == ".npz" and path.is_file()]
        found += [path for path in archives if place != folder or _SPLIT_NAME.fullmatch(path.stem)]
    return found


def list_split_files(splits: Sequence[Path | dict[str, Path]]) -> list[Path]:
    """Return the files of some splits."""
    return [path for each in splits for path in ([each] if isinstance(each, Path) else each.values())]


def read_split_files(
    splits: Sequence[Path | dict[str, Path]], num_nodes: int, find_nodes: FindNodes
) -> tuple[Parts, ...]:
    """Read splits that `find_split_files` has found.

    Args:
        splits: The files.
        num_nodes: ``V``.
        find_nodes: Returns the node of each id, -1 for none.

    Raises:
        InputError: An id that no node has, with file and number; a broken file, or one that names nobody.
    """
    made: list[Parts] = []
    for each in splits:
        if isinstance(each, Path):
            made += _read_archive(each, num_nodes)
            continue
        nodes = {part: _read_nodes(path, find_nodes) for part, path in each.items()}
        if not any(len(part) for part in nodes.values()):
            raise empty_split_error(str(next(iter(each.values())).parent))
        train, val, test = (nodes.get(part) for part in PARTS)
        made.append((train, val, test))
    return tuple(made)


def finder_of_ids(ids: NodeIds | None, num_nodes: int) -> FindNodes:
    """Return the function that finds nodes by their ids; by their numbers, if they have no ids."""

    def find(names: Sequence[str]) -> Ids:
        import pyarrow as pa

        if ids is not None:
            return ids.find(pa.array(names, pa.large_string()))
        numbers = [int(name) if name.isdecimal() else -1 for name in names]
        return np.array([number if number < num_nodes else -1 for number in numbers], np.int64)

    return find


def _part_of(path: Path) -> str | None:
    ending = path.suffix
    name = path.name
    if ending in _PACKED:
        name = name.removesuffix(ending)
        ending = Path(name).suffix
    known = ending in _TEXT | _TABLES and path.is_file()
    return PART_WORDS.get(name.removesuffix(ending).lower()) if known else None


def _natural_order(folder: Path) -> list[Path]:
    """Return what is in a folder, with numbers in names in their order: split 10 after split 9."""

    def key(path: Path) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(path.name)]

    return sorted(folder.iterdir(), key=key)


def _read_nodes(path: Path, find_nodes: FindNodes) -> Ids:
    names = _read_names(path)
    nodes = find_nodes(names)
    if len(nodes) and nodes[0] < 0 and names[0].lower() in ID:
        names, nodes = names[1:], nodes[1:]
    unknown = np.flatnonzero(nodes < 0)
    if len(unknown):
        raise InputError(
            f"{path} names nodes that there are not",
            needed="ids of the node table, one in a line",
            got=f"{len(unknown):,} others, such as {', '.join(repr(names[at][:60]) for at in unknown[:_SHOWN])}",
            repair="correct the ids, or take them out",
        )
    return nodes


def _read_names(path: Path) -> list[str]:
    if path.suffix in _TABLES:
        table = open_table(path)
        column = next((name for name in table.names if name.lower() in ID), table.names[0])
        return [str(value) for batch in table.read_batches([column]) for value in batch.column(0).to_pylist()]
    import pyarrow as pa

    refused = os_errors_as_input_errors(
        f"{path} cannot be read",
        needed="text in UTF-8 with an id in each line",
        repair="write the file again",
        also=(UnicodeDecodeError, pa.ArrowInvalid),
    )
    with refused, pa.input_stream(path, compression="detect") as stream:
        text = bytes(stream.read()).decode("utf-8-sig")
    lines = [line.strip().strip('"') for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def _read_archive(path: Path, num_nodes: int) -> tuple[Parts, ...]:
    archive = NpzArchive(path)
    keys = set(archive.keys())
    masks: dict[str, NDArray[np.generic] | None] = {}
    for part in PARTS:
        names = [name for long, short in PART_WORDS.items() if short == part for name in _key_names(long)]
        masks[part] = next((archive.get(name) for name in names if name in keys), None)
    splits = splits_of_masks(masks, num_nodes, str(path))
    if not splits:
        raise InputError(
            f"{path} is no split",
            needed="the keys train_mask, val_mask and test_mask, or train_idx, val_idx and test_idx",
            got=f"the keys {', '.join(sorted(keys)[:8]) or 'none'}",
            repair="write the file again, or move it away",
        )
    return splits


def _key_names(part: str) -> list[str]:
    return [f"{part}_mask", f"{part}_masks", f"{part}_idx", part]
