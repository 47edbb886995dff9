"""The order by which ids are found, in bounded memory, and the detection of ids that occur twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.scratch_array import make_scratch_array

Keys = NDArray[Any]
ReadKeys = Callable[[int, int], Keys]
"""Returns the keys of the nodes ``first`` to ``last - 1``: ids, or hashes of texts."""
_SHOWN = 3
_BYTES_PER_NODE = 48
_BLOCK = 1 << 18
_SAMPLE = 1 << 12


class Space(NamedTuple):
    """Where arrays lie.

    Attributes:
        scratch: Folder for arrays that exceed the memory; None to keep all in memory.
        memory_bytes: Bytes of memory that temporary arrays may take; None for any number.
    """

    scratch: Path | None = None
    memory_bytes: int | None = None

    def make_array(self, count: int, dtype: np.dtype[Any] | type[np.generic]) -> NDArray[Any]:
        """Return an array of zeros, in a file if it exceeds the memory."""
        fits = self.memory_bytes is None or count * np.dtype(dtype).itemsize <= self.memory_bytes
        return make_scratch_array(count, dtype, None if fits else self.scratch)

    @property
    def most_nodes(self) -> int | None:
        """How many nodes may be sorted at once; None for any number."""
        if self.scratch is None or self.memory_bytes is None:
            return None
        return max(1, self.memory_bytes // _BYTES_PER_NODE)


class Repetitions:
    """Ids that several nodes have: how many too many there are, and the nodes of the first."""

    def __init__(self) -> None:
        self.count = 0
        self.nodes: list[int] = []

    def add_nodes(self, nodes: Sequence[int]) -> None:
        """Add nodes whose ids others have, too."""
        self.count += len(nodes)
        self.nodes += [int(node) for node in nodes[: _SHOWN - len(self.nodes)]]


def sort_nodes(
    read_keys: ReadKeys, count: int, borders: Sequence[int], space: Space, find_repeated: Callable[..., None]
) -> tuple[NDArray[Any], Keys]:
    """Return the nodes of each type ascending by key, then by number, and their keys.

    Args:
        read_keys: The key of each node.
        count: ``V``.
        borders: ``[T + 1]``, first node of each type and ``V``; empty for one type.
        space: Where arrays lie. Nodes are sorted in ranges of keys that fit; what is returned does not depend on it.
        find_repeated: Called with nodes in order and their keys, for consecutive ranges of keys.

    Returns:
        ``[V]`` int32 or, of many nodes, int64; ``[V]`` of the type of the keys.

    Raises:
        OSError: The disk of the temporary files is full.
    """
    order = space.make_array(count, np.int32 if count < 2**31 else np.int64)
    keys = space.make_array(count, read_keys(0, 0).dtype)
    for first, last in list_ranges(borders, count):
        at = first
        for nodes, found in _sort_parts(read_keys, first, last, space.most_nodes):
            order[at : at + len(nodes)], keys[at : at + len(nodes)] = nodes, found
            find_repeated(nodes, found)
            at += len(nodes)
    return order, keys


def _sort_parts(read_keys: ReadKeys, first: int, last: int, most: int | None) -> Iterator[tuple[NDArray[Any], Keys]]:
    count = last - first
    if most is None or count <= most:
        yield _sort(np.arange(first, last), read_keys(first, last))
        return
    lows = _choose_borders(read_keys, first, last, -(-count // most))
    for low, high in zip([None, *lows], [*lows, None], strict=True):
        picked = list(_select_range(read_keys, first, last, low, high))
        yield _sort(np.concatenate([nodes for nodes, _ in picked]), np.concatenate([keys for _, keys in picked]))


def _choose_borders(read_keys: ReadKeys, first: int, last: int, parts: int) -> list[Any]:
    """Return keys that cut a sample into equal parts."""
    step = max(1, (last - first) // max(_SAMPLE, 16 * parts))
    blocks = [read_keys(at, min(at + _BLOCK, last))[::step] for at in range(first, last, _BLOCK)]
    sample = np.unique(np.concatenate(blocks))
    return sorted({sample[len(sample) * part // parts] for part in range(1, parts)})


def _select_range(read_keys: ReadKeys, first: int, last: int, low: Any, high: Any) -> Iterator[tuple[Keys, Keys]]:
    for at in range(first, last, _BLOCK):
        keys = read_keys(at, min(at + _BLOCK, last))
        inside = np.ones(len(keys), bool)
        if low is not None:
            inside &= keys >= low
        if high is not None:
            inside &= keys < high
        yield np.flatnonzero(inside) + at, keys[inside]


def _sort(nodes: NDArray[Any], keys: Keys) -> tuple[NDArray[Any], Keys]:
    order = np.argsort(keys)
    ordered = keys[order]
    if (ordered[1:] == ordered[:-1]).any():
        # Slower, and only then another order.
        order = np.argsort(keys, kind="stable")
    return nodes[order], ordered


def iterate_runs(keys: Keys) -> Iterator[tuple[int, int]]:
    """Yield the first position and the one after the last of each run of equal keys, of two or more."""
    equal = keys[1:] == keys[:-1]
    if not equal.any():
        return
    edges = np.flatnonzero(np.diff(np.concatenate([[0], equal.view(np.int8), [0]])))
    yield from ((int(start), int(end) + 1) for start, end in zip(edges[::2], edges[1::2], strict=True))


def list_ranges(borders: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Return the first node of each type and the node after its last one."""
    if not len(borders):
        return [(0, count)]
    return [(int(first), int(last)) for first, last in pairwise(borders)]
