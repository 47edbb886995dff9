"""Interface of readers: edges in chunks, and tables of the nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from outgrow.core.graph_schema import EdgeFeatureColumn
from outgrow.core.user_warnings import warn_about_data
from outgrow.graph.graph import GraphOrigin, NodeType
from outgrow.graph.link_split import HeldOutLinks
from outgrow.graph.node_ids import NodeIds

Ids = NDArray[np.int64]
_SHOWN_NAMES = 20


class EdgeChunk(NamedTuple):
    """Some edges, in input order.

    Attributes:
        src: ``[n]`` int64.
        dst: ``[n]`` int64.
        relation: ``[n]`` integer; None if edges have no type.
        weight: ``[n]`` float32; None if edges have no weight.
        features: ``[n, C]`` floating, or integer codes of categories; None if edges have no features.
        time: ``[n]`` int64, `outgrow.graph.readers.times.NO_TIME` for none; None if edges have no times.
    """

    src: Ids
    dst: Ids
    relation: NDArray[np.integer[Any]] | None = None
    weight: NDArray[np.float32] | None = None
    features: NDArray[Any] | None = None
    time: Ids | None = None


class TypeLabelTable(NamedTuple):
    """Labels of the nodes of one type, where types have labels of their own.

    Attributes:
        name: Name of the type.
        labels: ``[n]`` or ``[n, C]`` of its nodes in order: see `NodeTableSource`.
        class_names: Name of each class, or empty.
        are_numbers: Whether labels are numbers, even where all of them are whole.
    """

    name: str
    labels: NDArray[Any]
    class_names: tuple[str, ...] = ()
    are_numbers: bool = False


class LazyMatrix(ABC):
    """Dense rows that are made or read on demand: ``rows[first:last]``; `numpy.asarray` returns all."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """``(V, D)``."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Type of an element, floating."""

    @abstractmethod
    def read_rows(self, first: int, last: int) -> NDArray[Any]:
        """Return rows ``first`` to ``last - 1``: ``[last - first, D]``, contiguous; the same each time."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        first, last, _ = rows.indices(len(self))
        return self.read_rows(first, max(first, last))

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> NDArray[Any]:
        return self.read_rows(0, len(self)).astype(dtype or self.dtype, copy=False)


class LazySparse(ABC):
    """Sparse rows that are made or read on demand: ``rows[first:last]`` is a CSR matrix."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """``(V, D)``."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Type of a value, floating."""

    @property
    @abstractmethod
    def indptr(self) -> Ids:
        """``[V + 1]`` int64: ends of the rows."""

    @abstractmethod
    def read_rows(self, first: int, last: int) -> csr_array:
        """Return rows ``first`` to ``last - 1``, columns ascending and unique in each; the same each time."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> csr_array:
        first, last, _ = rows.indices(len(self))
        return self.read_rows(first, max(first, last))


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockFeatures:
    """Dense features that node types have in columns of their own, one type after the other. Final.

    Attributes:
        parts: Of each type with features its first node and its rows, ``[n, d]``.
        num_rows: ``V``; nodes of no part have no features.
    """

    parts: tuple[tuple[int, NDArray[Any] | LazyMatrix], ...]
    num_rows: int

    @property
    def shape(self) -> tuple[int, int]:
        """``(V, D)``."""
        return self.num_rows, sum(int(rows.shape[1]) for _, rows in self.parts)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type that holds the numbers of all parts."""
        return np.result_type(*(rows.dtype for _, rows in self.parts))

    def __len__(self) -> int:
        return self.num_rows


FeatureTable = NDArray[Any] | csr_array | LazyMatrix | LazySparse | BlockFeatures
"""Features of all nodes, ``[V, D]``, in any form that a source may give."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeTableSource:
    """Tables of the nodes; small compared with the edges, or memory-mapped.

    Attributes:
        num_nodes: ``V``; None if it follows from the largest id in the edges.
        features: ``[V, D]`` floating, or CSR of that shape, or rows made on demand (large ones are read in
            slices).
        labels: ``[V]`` integer with -1 for unknown, or ``[V, C]`` zeros and ones; also as floats, or numbers.
        train: ``[n]`` node ids, or a ``[V]`` mask; None if there is no split.
        val: ``[n]`` node ids, or a mask.
        test: ``[n]`` node ids, or a mask.
        class_names: Name of each class, or empty.
        relation_names: Name of each relation, or empty (then relations are numbered).
        node_types: Ranges of node ids, or empty.
        splits: All splits, ``(train, val, test)`` each, ids or masks; empty if there is but the one above.
        held_out_links: Links to validate and test on; None if there are none.
        type_labels: Labels of at least two node types that have labels of their own; then there are no ``labels``.
        edge_feature_sizes: Number of categories of each column of the features of edges, 0 for numbers; empty if
            floating features are numbers, and integers are codes up to the largest one.
        node_time: ``[V]`` int64, time of each node, `outgrow.graph.readers.times.NO_TIME` for none; None if nodes have
            no times.
    """

    num_nodes: int | None = None
    features: FeatureTable | None = None
    labels: NDArray[Any] | None = None
    train: NDArray[Any] | None = None
    val: NDArray[Any] | None = None
    test: NDArray[Any] | None = None
    class_names: tuple[str, ...] = ()
    relation_names: tuple[str, ...] = ()
    node_types: tuple[NodeType, ...] = ()
    splits: tuple[tuple[NDArray[Any] | None, NDArray[Any] | None, NDArray[Any] | None], ...] = ()
    held_out_links: HeldOutLinks | None = None
    type_labels: tuple[TypeLabelTable, ...] = ()
    edge_feature_sizes: tuple[int, ...] = ()
    node_time: NDArray[Any] | None = None


class GraphSource(ABC):
    """Graph that can be read. ``read_edges`` may be called repeatedly, and yields the same chunks each time.

    Attributes:
        adds_inverse_relations: Whether the graph is to have, for each edge of relation ``r``, its inverse of a
            relation ``r^-1`` too. Held-out links have none.
        allows_overlap: Whether held-out links may be training links too, or test links validation links.
        allows_unseen_relations: Whether held-out links may have relations of which there are no training links.
    """

    adds_inverse_relations: bool = False
    allows_overlap: bool = False
    allows_unseen_relations: bool = False

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the graph."""

    @abstractmethod
    def read_tables(self) -> NodeTableSource:
        """Return the tables of the nodes."""

    @abstractmethod
    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges, in chunks of bounded size."""

    def read_relation_names(self) -> tuple[str, ...]:
        """Return the name of each relation that `read_edges` has met as text; called after it. Empty if there is none.

        Names in the tables come before these.
        """
        return ()

    def read_edge_feature_sizes(self) -> tuple[int, ...]:
        """Return ``edge_feature_sizes`` where `read_edges` has found them; called after it. Empty otherwise."""
        return ()

    def read_edge_columns(self) -> tuple[EdgeFeatureColumn, ...]:
        """Return the names of the columns of features of edges and of their categories; called after `read_edges`.

        Empty if they have no names, or there are too many categories to keep them.
        """
        return ()

    def has_dates(self) -> bool:
        """Return whether times are those of dates, in microseconds since 1970; called after `read_edges`."""
        return False

    def read_ids(self) -> NodeIds | None:
        """Return the id of each node; None if nodes are numbered from 0. Called after `read_edges`."""
        return None

    def read_held_out_links(self) -> HeldOutLinks | None:
        """Return links to validate and test on, which are none of the edges. Called after `read_edges`."""
        return self.read_tables().held_out_links

    def set_scratch(self, folder: Path, memory_bytes: int) -> None:  # noqa: B027
        """Say where temporary files may lie, and how many bytes of memory temporary tables may take.

        Called before anything is read, if a store is written; else tables are in memory.
        """

    def read_progress(self) -> tuple[int, int] | None:
        """Return how many bytes `read_edges` has read so far, and how many there are; None where that is not known."""
        return None

    def describe_origin(self) -> GraphOrigin:
        """Return what was read and what was not; called after `read_edges`."""
        return GraphOrigin(unread=self.list_unread())

    def list_unread(self) -> tuple[str, ...]:
        """Return the names of what the source holds and `read_tables` and `read_edges` pass over."""
        return ()

    def warn_of_unread(self) -> None:
        """Warn, in one line, of what the source holds and is not read; say nothing if there is nothing."""
        if names := self.list_unread():
            more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
            warn_about_data(f"not read: {', '.join(names[:_SHOWN_NAMES])}{more}, of {self.name}")
