"""Sources whose split is drawn, or chosen among several, by the options of tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.graph_schema import EdgeFeatureColumn
from outgrow.graph.builders.node_tables import infer_num_nodes
from outgrow.graph.graph import GraphOrigin
from outgrow.graph.link_split import HeldOutLinks
from outgrow.graph.node_ids import NodeIds
from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource
from outgrow.graph.readers.splits import (
    Parts,
    SplitRequest,
    draw_split,
    empty_split_error,
    parse_split,
    select_parts,
    splits_of_masks,
)
from outgrow.graph.readers.tables.options import TableOptions

SPLIT_OPTIONS = ("split", "split_seed", "split_index")
"""Names of the options of tables that apply to any source of labelled nodes."""


def apply_split_options(source: GraphSource, options: TableOptions | None) -> GraphSource:
    """Return a source with the split that options ask for: the source itself, if they ask for none.

    Raises:
        InputError: A split by a column or by files, which only tables have.
    """
    if options is None or not any(name in SPLIT_OPTIONS for name in options.list_given()):
        return source
    request = parse_split(options.split, options.split_seed)
    if request.kind not in ("given", "shares"):
        raise InputError(
            f"{source.name} has no node table to split by",
            needed="shares, such as 0.6,0.2,0.2",
            got=f"split {options.split!r}",
            repair="draw a split, or give a folder with nodes.csv and edges.csv",
        )
    return SplitSource(source, options)


@final
class SplitSource(GraphSource):
    """A source with another split of its nodes.

    Args:
        source: The source.
        options: Its ``split``, shares to draw it by, ``split_seed`` and ``split_index`` apply.
    """

    def __init__(self, source: GraphSource, options: TableOptions) -> None:
        self._source = source
        self._options = options

    @property
    def name(self) -> str:
        """Name of the source."""
        return self._source.name

    def read_tables(self) -> NodeTableSource:
        """Return the tables of the source, with the split that was asked for.

        Raises:
            InputError: There is no split of this number; or nothing tells which nodes there are.
        """
        tables = self._source.read_tables()
        request = parse_split(self._options.split, self._options.split_seed)
        if request.kind == "shares":
            count = infer_num_nodes(tables)
            if count is None:
                raise InputError(
                    f"{self.name} tells nothing of its nodes to split them by",
                    needed="labels or features",
                    got="edges alone",
                    repair="give a folder with nodes.csv and edges.csv; links are split by val_links and test_links",
                )
            drawn = _draw_split(tables, count, request)
            if not any(part is not None and len(part) for part in drawn):
                raise empty_split_error(f"a split {self._options.split} of {self.name}")
            return with_splits(tables, (drawn,), self._options.split_index, self.name)
        given = (tables.train, tables.val, tables.test)
        splits = tables.splits or (() if all(part is None for part in given) else (given,))
        return with_splits(tables, splits, self._options.split_index, self.name)

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield the edges of the source."""
        return self._source.read_edges()

    def read_relation_names(self) -> tuple[str, ...]:
        """Return those of the source."""
        return self._source.read_relation_names()

    def read_edge_feature_sizes(self) -> tuple[int, ...]:
        """Return those of the source."""
        return self._source.read_edge_feature_sizes()

    def read_edge_columns(self) -> tuple[EdgeFeatureColumn, ...]:
        """Return the names of the columns of features of edges and of their categories."""
        return self._source.read_edge_columns()

    def has_dates(self) -> bool:
        """Return what the source says of times."""
        return self._source.has_dates()

    def read_ids(self) -> NodeIds | None:
        """Return those of the source."""
        return self._source.read_ids()

    def read_held_out_links(self) -> HeldOutLinks | None:
        """Return those of the source."""
        return self._source.read_held_out_links()

    def set_scratch(self, folder: Path, memory_bytes: int) -> None:
        """Pass it on to the source."""
        self._source.set_scratch(folder, memory_bytes)

    def read_progress(self) -> tuple[int, int] | None:
        """Return how much of the source was read, and how much there is."""
        return self._source.read_progress()

    def describe_origin(self) -> GraphOrigin:
        """Return what was read, and what the split was drawn by."""
        origin = self._source.describe_origin()
        how = self._options.split or f"number {self._options.split_index}"
        read = tuple(each for each in origin.read if each[0] != "split")
        return replace(origin, read=(*read, ("split", how)))

    def list_unread(self) -> tuple[str, ...]:
        """Return what the source does not read."""
        return self._source.list_unread()


def _draw_split(tables: NodeTableSource, count: int, request: SplitRequest) -> Parts:
    """Draw a split of all nodes; of types with labels of their own, one of the nodes of each."""
    if not tables.type_labels:
        labels = None if tables.labels is None else np.asarray(tables.labels)
        return draw_split(labels, np.arange(count), request)
    first_nodes = {kind.name: kind.first for kind in tables.node_types}
    parts = []
    for each in tables.type_labels:
        first, own = first_nodes[each.name], np.asarray(each.labels)
        drawn = draw_split(own, np.arange(first, first + len(own)), request)
        parts.append([part + first for part in drawn if part is not None])
    train, val, test = (np.concatenate(each) for each in zip(*parts, strict=True))
    return train, val, test


def with_splits(
    tables: NodeTableSource, splits: tuple[Parts, ...], index: int = 0, where: str = "the graph"
) -> NodeTableSource:
    """Return tables with some splits, of which one is chosen.

    Raises:
        InputError: There is no split of this number.
    """
    train, val, test = select_parts(splits, index, where)
    return replace(tables, train=train, val=val, test=test, splits=splits if len(splits) > 1 else ())


def with_mask_tables(tables: NodeTableSource, masks: Mapping[str, NDArray[Any] | None], where: str) -> NodeTableSource:
    """Return tables with the splits of masks or ids, of which the first is chosen.

    Args:
        tables: The tables.
        masks: Mask ``[V]``, masks ``[V, K]`` or ``[K, V]``, or ids of each of ``train``, ``val`` and ``test``.
        where: Name of the masks in errors.

    Raises:
        InputError: See `splits_of_masks`.
    """
    given = [mask for mask in masks.values() if mask is not None]
    count = infer_num_nodes(tables)
    if not any(mask.ndim == 2 for mask in given):
        return replace(tables, train=masks.get("train"), val=masks.get("val"), test=masks.get("test"))
    count = max(max(mask.shape) for mask in given if mask.ndim == 2) if count is None else count
    return with_splits(tables, splits_of_masks(masks, count, where))
