"""Graphs of a node table and an edge table in one folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from outgrow.core.errors import InputError
from outgrow.core.graph_schema import EdgeFeatureColumn
from outgrow.graph.graph import GraphOrigin
from outgrow.graph.link_split import HeldOutLinks
from outgrow.graph.node_ids import NodeIds
from outgrow.graph.readers.source import EdgeChunk, GraphSource, LazyMatrix, NodeTableSource
from outgrow.graph.readers.splits import parse_split, select_parts
from outgrow.graph.readers.tables.edge_table import EdgeTableSource
from outgrow.graph.readers.tables.forms import is_table
from outgrow.graph.readers.tables.node_features import Matrix
from outgrow.graph.readers.tables.node_table import NodeTable, read_node_table
from outgrow.graph.readers.tables.options import NODE_AND_EDGE_OPTIONS, TableOptions
from outgrow.graph.readers.tables.split_files import (
    FOLDERS,
    find_split_files,
    finder_of_ids,
    list_split_files,
    read_split_files,
)
from outgrow.graph.readers.tables.table import Table
from outgrow.graph.readers.tables.time_columns import Clock, missing_column_error
from outgrow.graph.readers.times import NO_TIME

TABLE_GRAPH_OPTIONS = ("columns", *NODE_AND_EDGE_OPTIONS)
"""Names of the options of tables that apply."""


def find_table_pair(folder: Path) -> tuple[Path, Path] | None:
    """Return the node table and the edge table of a folder: ``nodes.*`` and ``edges.*``, or folders of these names.

    Returns:
        None if one of them is missing, or nodes are in ``nodes.npz``.

    Raises:
        InputError: Two of a kind.
    """
    found = []
    for stem in ("nodes", "edges"):
        named = sorted(path for path in folder.iterdir() if path.name.partition(".")[0] == stem)
        tables = [path for path in named if is_table(path)]
        if len(tables) > 1:
            raise InputError(
                f"{folder} has several tables of {stem}",
                needed=f"one file {stem}.csv, .parquet, ..., or one folder {stem}",
                got=", ".join(path.name for path in tables),
                repair="move all but one of them away",
            )
        if not tables or any(path.suffix == ".npz" for path in named):
            return None
        found.append(tables[0])
    return found[0], found[1]


@final
class TableGraphSource(GraphSource):
    """Source of a folder with a node table and an edge table.

    Nodes are numbered by the rows of the node table or, if it has types, type after type. Edges name them by their
    ids or, if there is no column of ids, by the numbers of their rows from 0. The split is in a column, in files beside
    the tables (see `find_split_files`), or drawn.

    Args:
        folder: The folder; None if the tables lie in none.
        nodes: The node table, or its path.
        edges: The edge table, or its path.
        options: Those of `TABLE_GRAPH_OPTIONS` apply.
    """

    def __init__(
        self, folder: Path | None, nodes: Path | Table, edges: Path | Table, options: TableOptions | None = None
    ) -> None:
        self._folder = folder
        self._tables = nodes, edges
        self._paths = [each.path if isinstance(each, Table) else each for each in (nodes, edges)]
        self._options = options or TableOptions()
        self._scratch: Path | None = None
        self._memory: int | None = None
        self._added = 0
        self._clock = Clock()

    @property
    def name(self) -> str:
        """Name of the folder; ``tables`` if there is none."""
        return "tables" if self._folder is None else self._folder.absolute().name

    def set_scratch(self, folder: Path, memory_bytes: int) -> None:
        """Say where ids and features may lie that exceed the memory."""
        self._scratch, self._memory = folder, memory_bytes

    def read_tables(self) -> NodeTableSource:
        """Return what the node table and the files of splits have.

        Raises:
            InputError: See `read_node_table`; or files of splits beside a column of it.
        """
        nodes = self._nodes
        count, encoder = nodes.num_nodes, nodes.encoder
        if self._options.unknown_nodes == "add" and encoder is not None:
            if nodes.node_types:
                raise InputError(
                    "nodes that only edges name have no type",
                    needed="--unknown-nodes refuse or drop, for a node table with types",
                    got="add",
                    repair="add the nodes to the node table",
                )
            # The number of nodes must be known before the tables are checked.
            for _ in self._edges.read_edges():
                pass
            self._added = len(encoder) - count
        splits = nodes.splits
        if self._split_files:
            finder = finder_of_ids(None if encoder is None else encoder.finish(), count)
            splits = read_split_files(self._split_files, count, finder)
        split = select_parts(splits, self._options.split_index, self.name)
        return NodeTableSource(
            num_nodes=count + self._added,
            features=None if nodes.features is None else append_rows(nodes.features, self._added),
            labels=None if nodes.labels is None else append_unknown_labels(nodes.labels, self._added),
            train=split[0],
            val=split[1],
            test=split[2],
            class_names=nodes.class_names,
            node_types=nodes.node_types,
            splits=splits if len(splits) > 1 else (),
            node_time=None if nodes.time is None else np.append(nodes.time, np.full(self._added, NO_TIME)),
        )

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges.

        Raises:
            InputError: A broken table, or an edge to a node that the node table does not name.
        """
        return self._edges.read_edges()

    def read_relation_names(self) -> tuple[str, ...]:
        """Return the names of relations that are texts."""
        return self._edges.read_relation_names()

    def read_edge_feature_sizes(self) -> tuple[int, ...]:
        """Return the number of categories of each column of features of edges."""
        return self._edges.read_edge_feature_sizes()

    def has_dates(self) -> bool:
        """Return whether columns of times have dates."""
        return self._clock.has_dates

    def read_edge_columns(self) -> tuple[EdgeFeatureColumn, ...]:
        """Return the names of the columns of features of edges and of their categories."""
        return self._edges.read_edge_columns()

    def read_ids(self) -> NodeIds | None:
        """Return the ids in the node table; None if it has none."""
        if self._nodes.encoder is None:
            return None
        kinds = self._nodes.node_types
        # Ids are found within the range of a type.
        return self._nodes.encoder.finish([*(kind.first for kind in kinds), kinds[-1].last] if kinds else ())

    def read_held_out_links(self) -> HeldOutLinks | None:
        """Return None: a folder with a node table has no links to validate and test on."""
        return None

    def read_progress(self) -> tuple[int, int] | None:
        """Return how many bytes of the edge table were read, and how many there are."""
        return self._edges.read_progress()

    def list_unread(self) -> tuple[str, ...]:
        """Return the names of columns and files that are not read."""
        if self._folder is None:
            return (*self._nodes.unread, *self._edges.list_unread())
        read = {*self._paths, *list_split_files(self._split_files), *(self._folder / name for name in FOLDERS)}
        others = sorted(path.name for path in self._folder.iterdir() if path not in read and path.name[0] != ".")
        return (*self._nodes.unread, *self._edges.list_unread(), *others)

    def describe_origin(self) -> GraphOrigin:
        """Return which column each part comes from."""
        folder = self._folder or Path()
        files = [path.relative_to(folder).as_posix() for path in list_split_files(self._split_files)]
        split = (("split", ", ".join(files[:4]) + (f" and {len(files) - 4} more" if len(files) > 4 else "")),)
        read = (*self._nodes.read, *self._edges.describe_origin().read, *(split if files else ()))
        return GraphOrigin(read=read, unread=self.list_unread())

    @cached_property
    def _nodes(self) -> NodeTable:
        return read_node_table(
            self._tables[0], self._options, scratch=self._scratch, memory_bytes=self._memory, clock=self._clock
        )

    @cached_property
    def _edges(self) -> EdgeTableSource:
        nodes = self._nodes
        options = self._options.select_for_edges()
        if nodes.encoder is None:
            if options.unknown_nodes != "refuse":
                raise InputError(
                    f"{self._paths[0]} has no column of ids",
                    needed="ids, to tell which nodes the node table does not name",
                    got=f"--unknown-nodes {options.unknown_nodes}",
                    repair="leave it out, or add a column id",
                )
            options = replace(options, num_nodes=nodes.num_nodes)
        edges = EdgeTableSource(self._tables[1], options, src_ids=nodes.encoder, clock=self._clock)
        if self._options.time_column and nodes.time is None and edges.times is None:
            raise missing_column_error(self.name, self._options.time_column, [*nodes.unread, *edges.list_unread()])
        if self._scratch is not None and self._memory is not None:
            edges.set_scratch(self._scratch, self._memory)
        return edges

    @cached_property
    def _split_files(self) -> list[Path | dict[str, Path]]:
        kind = parse_split(self._options.split).kind
        if kind not in ("given", "files"):
            return []
        found = [] if self._folder is None else find_split_files(self._folder)
        if kind == "files" and not found:
            raise InputError(
                f"{self.name} has no files of a split",
                needed="train.txt, val.txt and test.txt beside the tables or in split/, or .npz files with masks",
                got="none",
                repair="write them, or draw a split: --split 0.6,0.2,0.2",
            )
        if kind == "given" and found and self._nodes.splits:
            raise InputError(
                f"{self._folder} has two splits",
                needed="a column or files",
                got=f"a column of {self._paths[0].name}, and {list_split_files(found)[0].name}",
                repair="choose: --split files, or --split COLUMN",
            )
        return found


def append_rows(features: Matrix | LazyMatrix, count: int) -> Matrix | LazyMatrix:
    """Return features with some rows of zeros at the end, ``[V + count, D]``."""
    if not count:
        return features
    if isinstance(features, csr_array):
        indptr = np.append(features.indptr, np.full(count, features.indptr[-1]))
        shape = (features.shape[0] + count, features.shape[1])
        return csr_array((features.data, features.indices, indptr), shape=shape)
    return _PaddedRows(features, count)


def append_unknown_labels(labels: NDArray[Any], count: int) -> NDArray[Any]:
    """Return labels with some nodes at the end whose label is unknown; zeros, if there are several labels."""
    if not count:
        return labels
    signed = labels.dtype.kind == "i" and labels.ndim == 1
    made = labels if labels.dtype.kind in "f" or signed or labels.ndim == 2 else labels.astype(np.int64)
    several = labels.ndim == 2 and labels.shape[1] > 1
    unknown = np.nan if labels.dtype.kind == "f" else 0 if several else -1
    return np.concatenate([made, np.full((count, *labels.shape[1:]), unknown, made.dtype)])


@final
class _PaddedRows(LazyMatrix):
    def __init__(self, rows: NDArray[Any] | LazyMatrix, count: int) -> None:
        self._rows = rows
        self._count = count

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._rows) + self._count, int(self._rows.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._rows.dtype

    def read_rows(self, first: int, last: int) -> NDArray[Any]:
        there = np.asarray(self._rows[first:last])
        return np.concatenate([there, np.zeros((last - first - len(there), self.shape[1]), self.dtype)])
