"""The order of edges in a graph, and the conversion of edges from any source to in-edges in CSC form.

Building in memory (`assemble_graph`) and building on disk (`ExternalSorter`) share everything here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.builders.edge_features import EdgeFeatureForm
from outgrow.graph.inverse_relations import name_inverses
from outgrow.graph.readers.source import EdgeChunk

# Temporary arrays of a piece stay in the cache, and memory does not grow with the chunks of a reader.
PIECE_EDGES = 1 << 16
_PIECE_BYTES = 1 << 22
REVERSED = 1 << 30
"""Added to the relation of an edge that a policy adds, in its rank."""
_NO_ENDS = np.empty(0, dtype=np.int64)
_SHIFT, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, eq=False)
class EdgeColumns:
    """Edges as columns that are sorted together: by key, then by rank, then by input order.

    Attributes:
        key: ``[n]`` uint64, ``dst * 2^32 + src``.
        rank: ``[n]`` int32, the relation, plus 2^30 for an edge that the policy adds; None if edges with
            equal keys are equal.
        weight: ``[n]`` float32; None if edges have no weight.
        features: ``[n, C]`` as they are read; None if edges have no features.
        time: ``[n]`` int64; None if edges have no times.
    """

    key: NDArray[np.uint64]
    rank: NDArray[np.int32] | None = None
    weight: NDArray[np.float32] | None = None
    features: NDArray[Any] | None = None
    time: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.key)

    @property
    def all_columns(self) -> tuple[NDArray[Any] | None, ...]:
        """The columns, in the order of the fields."""
        return self.key, self.rank, self.weight, self.features, self.time

    @property
    def data_bytes(self) -> int:
        """Bytes of the features and the time of an edge; 0 without."""
        features = 0 if self.features is None else self.features.shape[1] * self.features.itemsize
        return features + (0 if self.time is None else self.time.itemsize)

    def empty_like(self, num_edges: int) -> EdgeColumns:
        """Allocate uninitialised columns of the same types for ``num_edges`` edges."""
        return EdgeColumns(
            np.empty(num_edges, np.uint64),
            None if self.rank is None else np.empty(num_edges, np.int32),
            None if self.weight is None else np.empty(num_edges, np.float32),
            None if self.features is None else np.empty((num_edges, self.features.shape[1]), self.features.dtype),
            None if self.time is None else np.empty(num_edges, np.int64),
        )

    def slice_rows(self, rows: slice) -> EdgeColumns:
        """Return a view of a slice of the edges."""
        return EdgeColumns(
            self.key[rows],
            None if self.rank is None else self.rank[rows],
            None if self.weight is None else self.weight[rows],
            None if self.features is None else self.features[rows],
            None if self.time is None else self.time[rows],
        )

    def select_rows_inplace(self, rows: NDArray[Any]) -> EdgeColumns:
        """Keep the edges of a mask, or reorder all of them.

        Works in place, one column after another, and overwrites the old values.
        """
        # A column at a time: only one temporary copy is alive, and that is what the bytes per edge count.
        count = len(self)
        for column in self.all_columns:
            if column is not None:
                picked = column[rows]
                count = len(picked)
                column[:count] = picked
        return self.slice_rows(slice(0, count))


class EdgePolicy(ABC):
    """Policy that decides which edges a graph gets from the edges that are read.

    Attributes:
        keeps_parallel_edges: Whether equal edges are kept, so that a pair of nodes can have any number of
            edges.
        bytes_per_bare_edge: Peak bytes of arrays per edge while edges that consist of a key alone are sorted
            and duplicates are resolved; tests/graph/builders/test_external_sort.py checks it.
        bytes_per_full_edge: The same for edges with more columns; features and times take twice their own bytes
            besides.
    """

    keeps_parallel_edges: bool
    bytes_per_bare_edge: int
    bytes_per_full_edge: int

    @abstractmethod
    def make_columns(self, chunk: EdgeChunk) -> EdgeColumns:
        """Return the columns to sort for a chunk."""

    @abstractmethod
    def resolve_duplicates(self, edges: EdgeColumns) -> EdgeColumns:
        """Drop edges of sorted columns, in place.

        Applying this to parts first and then to the whole gives the same result as applying it once.
        """

    @abstractmethod
    def name_relations(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the relation names of the graph for those of the edges that are read."""


@final
class DirectedPolicy(EdgePolicy):
    """Policy that keeps edges as they are read, including parallel ones."""

    keeps_parallel_edges = True
    bytes_per_bare_edge = 12
    bytes_per_full_edge = 36

    def make_columns(self, chunk: EdgeChunk) -> EdgeColumns:
        """Return the edges themselves."""
        key = pack_key(chunk.dst, chunk.src)
        return EdgeColumns(key, _as_int32(chunk.relation), chunk.weight, chunk.features, chunk.time)

    def resolve_duplicates(self, edges: EdgeColumns) -> EdgeColumns:
        """Return all edges unchanged."""
        return edges

    def name_relations(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names unchanged."""
        return names


@final
class UndirectedPolicy(EdgePolicy):
    """Policy that drops duplicates but the first, and adds the reverse of each edge that has none.

    Edges of equal ends and relation are duplicates, whatever their weights, features and times: those of the first are
    kept. A reverse that is added has the weight, the features and the time of its edge.
    """

    keeps_parallel_edges = False
    bytes_per_bare_edge = 20
    bytes_per_full_edge = 44

    def make_columns(self, chunk: EdgeChunk) -> EdgeColumns:
        """Return the edges, followed by their reverses."""
        key = np.concatenate([pack_key(chunk.dst, chunk.src), pack_key(chunk.src, chunk.dst)])
        if all(column is None for column in (chunk.relation, chunk.weight, chunk.features, chunk.time)):
            return EdgeColumns(key)
        # With weights, features or times, equal keys are not equal edges: the rank tells read edges from added ones.
        relation = np.zeros(len(chunk.src), dtype=np.int32) if chunk.relation is None else _as_int32(chunk.relation)
        assert relation is not None
        # Added edges sort behind all edges that were read between the same two nodes.
        rank = np.concatenate([relation, relation + np.int32(REVERSED)])
        columns = (repeat_column(column) for column in (chunk.weight, chunk.features, chunk.time))
        return EdgeColumns(key, rank, *columns)

    def resolve_duplicates(self, edges: EdgeColumns) -> EdgeColumns:
        """Keep one of each edge, and an added reverse only if no edge of the same pair was read."""
        if len(edges) == 0:
            return edges
        # Edges of one pair of nodes are adjacent, since the destination and source make up the key.
        new_pair = np.concatenate([[True], edges.key[1:] != edges.key[:-1]])
        if edges.rank is None:
            return edges.select_rows_inplace(new_pair)
        keep = new_pair.copy()
        keep[1:] |= edges.rank[1:] != edges.rank[:-1]
        # Read edges come first in a pair: the first one shows whether the pair has any.
        goes_back = edges.rank[new_pair] < REVERSED
        pair = np.cumsum(new_pair, dtype=np.int64)
        # In place: another array of this size would count in the bytes per edge.
        pair -= 1
        keep &= (edges.rank < REVERSED) | ~goes_back[pair]
        return edges.select_rows_inplace(keep)

    def name_relations(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names, followed by one for the reverse of each."""
        return (*names, *name_inverses(names))


def sort_columns(edges: EdgeColumns) -> EdgeColumns:
    """Sort edges in place and return them; edges that are mostly in order sort faster."""
    # Keys alone need no permutation, which would take as much memory again.
    if all(column is None for column in edges.all_columns[1:]):
        edges.key.sort(kind="stable")
        return edges
    # Stable sorts keep the order of input among equal edges, so any cut into runs gives the same graph.
    order = edges.key.argsort(kind="stable") if edges.rank is None else np.lexsort((edges.rank, edges.key))
    return edges.select_rows_inplace(order)


class InEdges(NamedTuple):
    """A piece of a graph's in-edges, in graph order.

    Attributes:
        ends: ``[r]`` int64, ends of the rows that the piece completes.
        indices: ``[n]`` int32 or int64, sources.
        relation: ``[n]`` int8, int16 or int32; None if edges have no type, or none are in this piece.
        weight: ``[n]`` float32; None if edges have no weight, or none are in this piece.
        features: ``[n, De]`` floating or codes; None if edges have no features, or none are in this piece.
        time: ``[n]`` int64; None if edges have no times, or none are in this piece.
    """

    ends: NDArray[np.int64]
    indices: NDArray[Any]
    relation: NDArray[Any] | None
    weight: NDArray[np.float32] | None
    features: NDArray[Any] | None
    time: NDArray[np.int64] | None


class CscBuilder:
    """Converter of sorted edges to in-edges in CSC form, piece by piece in bounded memory.

    Args:
        num_nodes: ``V``.
        num_relations: Number of relations in the source; 0 if edges have no type.
        policy: The policy that made the edges.
        feature_form: How the graph keeps the features of edges; None if they have none.
    """

    def __init__(
        self, num_nodes: int, num_relations: int, policy: EdgePolicy, feature_form: EdgeFeatureForm | None = None
    ) -> None:
        self.feature_form = feature_form
        # The narrowest type that holds every id: indices are the largest array of most graphs.
        self.index_dtype = np.dtype(np.int32 if num_nodes < 2**31 else np.int64)
        total = len(policy.name_relations(("",) * num_relations))
        self.relation_dtype = np.dtype(_narrowest_dtype(total)) if num_relations else None
        self._num_nodes = num_nodes
        # Maps the rank of an added edge, relation + 2^30, to relation + R.
        self._added = num_relations - REVERSED
        self._row = self._edges = 0

    def compress_edges(self, edges: EdgeColumns) -> Iterator[InEdges]:
        """Yield the in-edges for the next sorted edges."""
        form = self.feature_form
        step = _edges_of_piece(0 if form is None else form.width * form.dtype.itemsize)
        for first in range(0, len(edges), step):
            part = edges.slice_rows(slice(first, first + step))
            dst = (part.key >> _SHIFT).astype(np.int64)
            # The last row may go on in the next piece, so its end is not known yet.
            yield from self._complete_rows(dst, int(dst[-1]))
            indices = (part.key & _LOW).astype(self.index_dtype)
            features = None if form is None or part.features is None else form.encode_rows(part.features)
            yield InEdges(_NO_ENDS, indices, self._relation_from_rank(part.rank), part.weight, features, part.time)
            self._edges += len(dst)

    def complete_remaining_rows(self) -> Iterator[InEdges]:
        """Yield the ends of the remaining rows; call it after the last edge."""
        yield from self._complete_rows(_NO_ENDS, self._num_nodes)

    def _complete_rows(self, dst: NDArray[np.int64], last: int) -> Iterator[InEdges]:
        nothing = np.empty(0, dtype=self.index_dtype)
        # In steps: a long run of empty rows must not make one large array of ends.
        while self._row < last:
            ends = self._ends_before(dst, min(last, self._row + PIECE_EDGES))
            yield InEdges(ends, nothing, None, None, None, None)

    def _ends_before(self, dst: NDArray[np.int64], stop: int) -> NDArray[np.int64]:
        low, high = np.searchsorted(dst, [self._row, stop])
        counts = np.bincount(dst[low:high] - self._row, minlength=stop - self._row)
        self._row = stop
        # Edges of earlier pieces, and those of this piece that lie in rows before.
        counts[:1] += self._edges + low
        return counts.cumsum(dtype=np.int64)

    def _relation_from_rank(self, rank: NDArray[np.int32] | None) -> NDArray[Any] | None:
        if self.relation_dtype is None:
            return None
        assert rank is not None
        return np.where(rank < REVERSED, rank, rank + np.int32(self._added)).astype(self.relation_dtype)


def split_chunk(chunk: EdgeChunk) -> Iterator[EdgeChunk]:
    """Split a chunk into pieces of bounded size."""
    step = _edges_of_piece(0 if chunk.features is None else chunk.features.shape[1] * chunk.features.itemsize)
    for first in range(0, len(chunk.src), step):
        part = slice(first, first + step)
        yield EdgeChunk(
            src=chunk.src[part],
            dst=chunk.dst[part],
            relation=None if chunk.relation is None else chunk.relation[part],
            weight=None if chunk.weight is None else chunk.weight[part],
            features=None if chunk.features is None else chunk.features[part],
            time=None if chunk.time is None else chunk.time[part],
        )


def pack_key(high: NDArray[np.int64], low: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the keys of edges, ``[n]``, from their destinations and sources."""
    key = high.astype(np.uint64)
    key <<= _SHIFT
    # Ids are not negative, so the view has the same value and saves a copy.
    key |= low.view(np.uint64) if low.dtype == np.int64 else low.astype(np.uint64)
    return key


def repeat_column(values: NDArray[Any] | None) -> NDArray[Any] | None:
    """Return the values of edges, then again those of the reverse of each."""
    return None if values is None else np.concatenate([values, values])


def _edges_of_piece(row_bytes: int) -> int:
    return max(1, min(PIECE_EDGES, _PIECE_BYTES // max(1, row_bytes)))


def _as_int32(values: NDArray[Any] | None) -> NDArray[np.int32] | None:
    return None if values is None else values.astype(np.int32)


def _narrowest_dtype(count: int) -> type[np.integer[Any]]:
    if count <= 2**7:
        return np.int8
    return np.int16 if count <= 2**15 else np.int32
