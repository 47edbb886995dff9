"""The order of edges in a graph: how edges from any source become in-edges in compressed columns.

Building in memory (`assemble_graph`) and on disk (`external`) share everything here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.readers.source import EdgeChunk

PIECE_EDGES = 1 << 16
_REVERSED = 1 << 30
_NO_ENDS = np.empty(0, dtype=np.int64)
_SHIFT, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, eq=False)
class EdgeColumns:
    """Edges as columns that are sorted together, by key, then rank, then input order.

    Attributes:
        key: ``[n]`` uint64, ``dst * 2^32 + src``.
        rank: ``[n]`` int32, the relation, plus 2^30 for an edge that a rule adds; None if equal keys are equal edges.
        weight: ``[n]`` float32; None if edges have no weight.
    """

    key: NDArray[np.uint64]
    rank: NDArray[np.int32] | None = None
    weight: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.key)

    @property
    def all_columns(self) -> tuple[NDArray[np.uint64], NDArray[np.int32] | None, NDArray[np.float32] | None]:
        """The three columns."""
        return self.key, self.rank, self.weight

    def empty_like(self, num_edges: int) -> EdgeColumns:
        """Columns of the same kinds, not filled."""
        return EdgeColumns(
            np.empty(num_edges, np.uint64),
            None if self.rank is None else np.empty(num_edges, np.int32),
            None if self.weight is None else np.empty(num_edges, np.float32),
        )

    def slice_rows(self, rows: slice) -> EdgeColumns:
        """A view of a slice of the edges."""
        return EdgeColumns(
            self.key[rows],
            None if self.rank is None else self.rank[rows],
            None if self.weight is None else self.weight[rows],
        )

    def select_rows_inplace(self, rows: NDArray[Any]) -> EdgeColumns:
        """Some of the edges (a mask), or all in another order. Done in place, column after column: the old are gone."""
        count = len(self)
        for column in self.all_columns:
            if column is not None:
                picked = column[rows]
                count = len(picked)
                column[:count] = picked
        return self.slice_rows(slice(0, count))


class EdgePolicy(ABC):
    """Which edges the graph gets for the edges that are read.

    Attributes:
        keeps_parallel_edges: Whether equal edges may remain, so that one pair of nodes can have any number of edges.
        bytes_per_bare_edge: Bytes of arrays alive at once for an edge that is sorted and settled, where
            there is only a key; tests/graph/builders/test_external_sort.py holds the sort against it.
        bytes_per_full_edge: The same where there are other columns.
    """

    keeps_parallel_edges: bool
    bytes_per_bare_edge: int
    bytes_per_full_edge: int

    @abstractmethod
    def make_columns(self, chunk: EdgeChunk) -> EdgeColumns:
        """What to sort for a chunk."""

    @abstractmethod
    def resolve_duplicates(self, edges: EdgeColumns) -> EdgeColumns:
        """What remains of sorted edges, in place; applying it to parts first and then to the whole gives the same."""

    @abstractmethod
    def name_relations(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the relations of the graph, from those of the edges that are read."""


@final
class DirectedPolicy(EdgePolicy):
    """Edges as they are read, parallel ones too."""

    keeps_parallel_edges = True
    bytes_per_bare_edge = 12
    bytes_per_full_edge = 36

    def make_columns(self, chunk: EdgeChunk) -> EdgeColumns:
        """The edges."""
        return EdgeColumns(_pack_key(chunk.dst, chunk.src), _as_int32(chunk.relation), chunk.weight)

    def resolve_duplicates(self, edges: EdgeColumns) -> EdgeColumns:
        """All."""
        return edges

    def name_relations(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The same."""
        return names


@final
class UndirectedPolicy(EdgePolicy):
    """Duplicates dropped (the first stays), and the reverse of every edge added where no edge goes back."""

    keeps_parallel_edges = False
    bytes_per_bare_edge = 20
    bytes_per_full_edge = 44

    def make_columns(self, chunk: EdgeChunk) -> EdgeColumns:
        """The edges, then their reverses."""
        key = np.concatenate([_pack_key(chunk.dst, chunk.src), _pack_key(chunk.src, chunk.dst)])
        if chunk.relation is None and chunk.weight is None:
            return EdgeColumns(key)
        relation = np.zeros(len(chunk.src), dtype=np.int32) if chunk.relation is None else _as_int32(chunk.relation)
        assert relation is not None
        rank = np.concatenate([relation, relation + np.int32(_REVERSED)])
        return EdgeColumns(key, rank, None if chunk.weight is None else np.concatenate([chunk.weight, chunk.weight]))

    def resolve_duplicates(self, edges: EdgeColumns) -> EdgeColumns:
        """One of each, and a reverse only where it has no company that was read."""
        if len(edges) == 0:
            return edges
        new_pair = np.concatenate([[True], edges.key[1:] != edges.key[:-1]])
        if edges.rank is None:
            return edges.select_rows_inplace(new_pair)
        keep = new_pair.copy()
        keep[1:] |= edges.rank[1:] != edges.rank[:-1]
        goes_back = edges.rank[new_pair] < _REVERSED
        pair = np.cumsum(new_pair, dtype=np.int64)
        pair -= 1
        keep &= (edges.rank < _REVERSED) | ~goes_back[pair]
        return edges.select_rows_inplace(keep)

    def name_relations(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names, and as many again for reverses."""
        return (*names, *(f"{name}^-1" for name in names))


def edge_policy_for(undirected: bool) -> EdgePolicy:
    """The rule that a user names by a flag."""
    return UndirectedPolicy() if undirected else DirectedPolicy()


def sort_columns(edges: EdgeColumns) -> EdgeColumns:
    """The same edges in order, sorted in place; runs that are in order already make it quick."""
    if edges.rank is None and edges.weight is None:
        edges.key.sort(kind="stable")
        return edges
    order = edges.key.argsort(kind="stable") if edges.rank is None else np.lexsort((edges.rank, edges.key))
    return edges.select_rows_inplace(order)


class InEdges(NamedTuple):
    """A piece of the in-edges of a graph, in graph order.

    Attributes:
        ends: ``[r]`` int64, ends of the rows that this piece completes.
        indices: ``[n]`` int32 or int64, sources.
        relation: ``[n]`` int8, int16 or int32; None if edges have no type, or none are in this piece.
        weight: ``[n]`` float32; None if edges have no weight, or none are in this piece.
    """

    ends: NDArray[np.int64]
    indices: NDArray[Any]
    relation: NDArray[Any] | None
    weight: NDArray[np.float32] | None


class CscBuilder:
    """Turns sorted edges into in-edges in compressed columns, piece by piece, in little memory.

    Args:
        num_nodes: ``V``.
        num_relations: Number of relations that were read; 0 if edges have no type.
        policy: The rule that the edges were made by.
    """

    def __init__(self, num_nodes: int, num_relations: int, policy: EdgePolicy) -> None:
        self.index_dtype = np.dtype(np.int32 if num_nodes < 2**31 else np.int64)
        total = len(policy.name_relations(("",) * num_relations))
        self.relation_dtype = np.dtype(_narrowest_dtype(total)) if num_relations else None
        self._num_nodes = num_nodes
        self._added = num_relations - _REVERSED
        self._row = self._edges = 0

    def compress_edges(self, edges: EdgeColumns) -> Iterator[InEdges]:
        """The next sorted edges."""
        for first in range(0, len(edges), PIECE_EDGES):
            part = edges.slice_rows(slice(first, first + PIECE_EDGES))
            dst = (part.key >> _SHIFT).astype(np.int64)
            yield from self._complete_rows(dst, int(dst[-1]))
            indices = (part.key & _LOW).astype(self.index_dtype)
            yield InEdges(_NO_ENDS, indices, self._relation_from_rank(part.rank), part.weight)
            self._edges += len(dst)

    def complete_remaining_rows(self) -> Iterator[InEdges]:
        """After the last edge: the ends of the remaining rows."""
        yield from self._complete_rows(_NO_ENDS, self._num_nodes)

    def _complete_rows(self, dst: NDArray[np.int64], last: int) -> Iterator[InEdges]:
        nothing = np.empty(0, dtype=self.index_dtype)
        while self._row < last:
            ends = self._ends_before(dst, min(last, self._row + PIECE_EDGES))
            yield InEdges(ends, nothing, None, None)

    def _ends_before(self, dst: NDArray[np.int64], stop: int) -> NDArray[np.int64]:
        low, high = np.searchsorted(dst, [self._row, stop])
        counts = np.bincount(dst[low:high] - self._row, minlength=stop - self._row)
        self._row = stop
        counts[:1] += self._edges + low
        return counts.cumsum(dtype=np.int64)

    def _relation_from_rank(self, rank: NDArray[np.int32] | None) -> NDArray[Any] | None:
        if self.relation_dtype is None:
            return None
        assert rank is not None
        return np.where(rank < _REVERSED, rank, rank + np.int32(self._added)).astype(self.relation_dtype)


def split_chunk(chunk: EdgeChunk) -> Iterator[EdgeChunk]:
    """A chunk in pieces of bounded size."""
    for first in range(0, len(chunk.src), PIECE_EDGES):
        part = slice(first, first + PIECE_EDGES)
        yield EdgeChunk(
            src=chunk.src[part],
            dst=chunk.dst[part],
            relation=None if chunk.relation is None else chunk.relation[part],
            weight=None if chunk.weight is None else chunk.weight[part],
        )


def _pack_key(high: NDArray[np.int64], low: NDArray[np.int64]) -> NDArray[np.uint64]:
    key = high.astype(np.uint64)
    key <<= _SHIFT
    key |= low.view(np.uint64) if low.dtype == np.int64 else low.astype(np.uint64)
    return key


def _as_int32(values: NDArray[Any] | None) -> NDArray[np.int32] | None:
    return None if values is None else values.astype(np.int32)


def _narrowest_dtype(count: int) -> type[np.integer[Any]]:
    if count <= 2**7:
        return np.int8
    return np.int16 if count <= 2**15 else np.int32
