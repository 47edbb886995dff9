"""A store with more edges and nodes behind its own, as a source: what `outgrow append` writes as a new store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.graph_schema import EdgeFeatureColumn
from outgrow.graph.graph import Graph, GraphOrigin
from outgrow.graph.inverse_relations import list_forward_relations
from outgrow.graph.link_split import HeldOutLinks
from outgrow.graph.node_ids import NodeIds
from outgrow.graph.readers.appended_rows import (
    append_features,
    append_labels,
    append_splits,
    append_times,
    fit_edge_features,
    refuse_times,
)
from outgrow.graph.readers.source import EdgeChunk, GraphSource, Ids, NodeTableSource
from outgrow.graph.readers.stored_edges import read_stored_edges
from outgrow.graph.readers.tables.edge_table import EdgeTableSource
from outgrow.graph.readers.tables.id_encoder import IdEncoder
from outgrow.graph.readers.tables.node_table import NodeTable, read_node_table
from outgrow.graph.readers.tables.options import NODE_AND_EDGE_OPTIONS, TableOptions
from outgrow.graph.readers.tables.time_columns import DATES, NUMBERS, Clock

APPEND_OPTIONS = ("columns", *NODE_AND_EDGE_OPTIONS, "inverse_relations")
"""Names of the options of tables that apply."""
_CHUNK = 1 << 18
_SHOWN = 3


@final
class AppendedSource(GraphSource):
    """Source of a graph of one node type, followed by the rows of tables.

    Nodes of the graph keep their numbers and ids. New nodes follow in the order of their tables; edges name nodes by
    their ids, or by their numbers if the graph keeps no ids. Relations, classes, columns and categories of edges are
    found by their names. Features of edges in bfloat16 become float32.

    Args:
        graph: The graph, mapped from its store.
        edges: Tables of new edges.
        nodes: Tables of new nodes.
        options: Those of `APPEND_OPTIONS` apply.
        reverses: Whether reverse edges are added to what this source yields, by ``undirected`` or
            ``inverse_relations``. Those that relations tell from others are then left out of it.

    Raises:
        InputError: A graph or a choice that cannot be appended to.
    """

    def __init__(
        self,
        graph: Graph,
        edges: Sequence[Path],
        nodes: Sequence[Path],
        options: TableOptions | None = None,
        *,
        reverses: bool = False,
    ) -> None:
        self._graph = graph
        self._paths = tuple(edges), tuple(nodes)
        self._options = options or TableOptions()
        self.adds_inverse_relations = self._options.inverse_relations
        # The split is that of the graph, which was checked when it was read.
        self.allows_overlap = self.allows_unseen_relations = True
        self._names = graph.relation_names
        if reverses or self.adds_inverse_relations:
            self._names = list_forward_relations(graph.relation_names)
        self._scratch: Path | None = None
        self._memory: int | None = None
        self._edge_origins = dict[Path, GraphOrigin]()
        # Of another kind new times could not be compared with those of the graph.
        self._clock = Clock(DATES if graph.topology.times_are_dates else NUMBERS, graph.name)
        _refuse_types(graph)
        refuse_times(graph, self._options.time_column)
        if self._options.categorical == "onehot":
            raise InputError(
                "categories of new nodes cannot be one-hot",
                needed="numbers, or --categorical hash, which gives a text the same columns each time",
                got="--categorical onehot",
                repair="convert all of the tables together: the store does not keep which column is which category",
            )

    @property
    def name(self) -> str:
        """Name of the graph."""
        return self._graph.name

    def set_scratch(self, folder: Path, memory_bytes: int) -> None:
        """Say where ids and features may lie that exceed the memory."""
        self._scratch, self._memory = folder, memory_bytes

    def read_tables(self) -> NodeTableSource:
        """Return the tables of the graph with the rows of new nodes.

        Raises:
            InputError: A table that does not fit the graph, or names a node that it has.
        """
        graph = self._graph
        tables = self._new_nodes
        encoder = self._encoder
        num_nodes = graph.num_nodes + sum(table.num_nodes for table in tables)
        if encoder is not None and self._options.unknown_nodes == "add":
            # The number of nodes must be known before the tables are checked.
            for _ in self._read_new_edges():
                pass
            num_nodes = len(encoder)
        split, splits = append_splits(graph, tables)
        return NodeTableSource(
            num_nodes=num_nodes,
            features=append_features(graph, tables, num_nodes),
            labels=append_labels(graph, tables, num_nodes),
            train=split[0],
            val=split[1],
            test=split[2],
            class_names=graph.class_names,
            relation_names=self._names,
            splits=splits,
            edge_feature_sizes=graph.topology.feature_sizes,
            node_time=append_times(graph, tables, num_nodes),
        )

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield the edges of the graph, then those of the tables.

        Raises:
            InputError: A broken table, an edge to an unknown node or of an unknown relation.
        """
        kept = len(self._names)
        for chunk in read_stored_edges(self._graph.topology):
            # Inverse edges are added again, beside those of new edges.
            if chunk.relation is None or kept == len(self._graph.relation_names):
                yield chunk
            else:
                yield _select_edges(chunk, chunk.relation < kept)
        yield from self._read_new_edges()

    def read_edge_columns(self) -> tuple[EdgeFeatureColumn, ...]:
        """Return those of the graph."""
        return self._graph.topology.feature_columns

    def has_dates(self) -> bool:
        """Return whether the times of the graph are dates."""
        return self._clock.has_dates

    def read_ids(self) -> NodeIds | None:
        """Return the ids of all nodes; None if the graph keeps none."""
        return None if self._encoder is None else self._encoder.finish()

    def read_held_out_links(self) -> HeldOutLinks | None:
        """Return the links of the graph to validate and test on."""
        return self._graph.held_out_links

    def describe_origin(self) -> GraphOrigin:
        """Return what the graph was made of, and what was appended last."""
        given = [*(table.read for table in self._new_nodes), *(each.read for each in self._edge_origins.values())]
        # What was appended before is left out: a store may be appended to every day.
        before = [pair for pair in self._graph.origin.read if not pair[0].startswith("appended ")]
        read = (*before, *((f"appended {what}", where) for pairs in given for what, where in pairs))
        return GraphOrigin(read=read, unread=tuple(dict.fromkeys((*self._graph.origin.unread, *self.list_unread()))))

    def list_unread(self) -> tuple[str, ...]:
        """Return the names of columns of the tables that are not read."""
        tables = [*(table.unread for table in self._new_nodes), *(each.unread for each in self._edge_origins.values())]
        return tuple(dict.fromkeys(name for names in tables for name in names))

    @cached_property
    def _new_nodes(self) -> list[NodeTable]:
        tables = []
        for path in self._paths[1]:
            options, clock = self._options, self._clock
            table = read_node_table(path, options, scratch=self._scratch, memory_bytes=self._memory, clock=clock)
            if table.node_types:
                raise InputError(
                    f"{path} has types of nodes, and the graph has none",
                    needed="nodes of one type",
                    got=", ".join(kind.name for kind in table.node_types[:_SHOWN]),
                    repair="leave the column of types out",
                )
            tables.append(table)
        return tables

    @cached_property
    def _encoder(self) -> IdEncoder | None:
        """Encoder of the ids of all nodes but those that only edges name; None if nodes have no ids."""
        given = self._graph.ids
        count = self._graph.num_nodes
        if given is None:
            for path, table in zip(self._paths[1], self._new_nodes, strict=True):
                if table.encoder is not None:
                    _require_numbers(path, table.encoder.finish(), count)
                count += table.num_nodes
            return None
        encoder = IdEncoder(self._scratch, self._memory)
        for first in range(0, count, _CHUNK):
            encoder.encode(given.take_arrow(np.arange(first, min(count, first + _CHUNK))))
        for path, table in zip(self._paths[1], self._new_nodes, strict=True):
            if table.encoder is None:
                raise InputError(
                    f"{path} has no column of ids",
                    needed="an id of every node, since the nodes of the graph have ids",
                    got=f"nodes such as {given[0]!r} in the graph",
                    repair="add a column id",
                )
            _add_ids(encoder, table.encoder.finish(), path, are_text=given.are_text)
        return encoder

    def _read_new_edges(self) -> Iterator[EdgeChunk]:
        options = self._options.select_for_edges()
        if self._encoder is None:
            total = self._graph.num_nodes + sum(table.num_nodes for table in self._new_nodes)
            if options.unknown_nodes != "refuse":
                raise InputError(
                    "the nodes of the graph have no ids",
                    needed="ids, to tell which nodes the graph does not have",
                    got=f"--unknown-nodes {options.unknown_nodes}",
                    repair="leave it out, and give a node table of the new nodes",
                )
            options = replace(options, num_nodes=total)
        for path in self._paths[0]:
            # A table without times is refused below, as one without weights is.
            source = EdgeTableSource(path, options, src_ids=self._encoder, clock=self._clock)
            if self._scratch is not None and self._memory is not None:
                source.set_scratch(self._scratch, self._memory)
            for chunk in source.read_edges():
                if self._encoder is None and source.read_ids() is not None:
                    raise InputError(
                        f"{path} names nodes by texts, and the nodes of the graph have no ids",
                        needed=f"the numbers of nodes, from 0 to {self._graph.num_nodes - 1} and on for new ones",
                        got="texts",
                        repair="number the nodes, or convert all of the tables together",
                    )
                yield self._fit_edges(chunk, source, path)
            self._edge_origins[path] = source.describe_origin()
            if self._graph.ids is not None and self._encoder is not None:
                _require_kind(self._encoder, self._graph.ids, path)

    def _fit_edges(self, chunk: EdgeChunk, source: GraphSource, path: Path) -> EdgeChunk:
        topology = self._graph.topology
        if not topology.num_edges and not any(source.read_edge_feature_sizes()):
            return chunk
        for what, old, new, option in (
            ("relations", topology.relation, chunk.relation, "--columns relation="),
            ("weights", topology.weight, chunk.weight, "--columns weight="),
            ("features", topology.edge_features, chunk.features, "--edge-features "),
            ("times", topology.edge_time, chunk.time, "--time-column "),
        ):
            if (old is None) != (new is None):
                have, lack = ("the graph", str(path)) if new is None else (str(path), "the graph")
                none = f"leave {option}out" if option.endswith(" ") else f"{option}_"
                raise InputError(
                    f"edges have {what} in {have}, and none in {lack}",
                    needed=f"{what} of all edges, or of none",
                    got=f"{path}",
                    repair=f"name the column: {option}COLUMN" if new is None else none,
                )
        chunk = chunk._replace(features=fit_edge_features(topology, chunk.features, source.read_edge_columns(), path))
        if chunk.relation is None:
            return chunk
        names = source.read_relation_names()
        return chunk._replace(relation=self._number_relations(chunk.relation, names, path))

    def _number_relations(self, relation: NDArray[Any], names: tuple[str, ...], path: Path) -> Ids:
        """Return the relations of the graph of the same names; without names, numbers are names."""
        place = {name: number for number, name in enumerate(self._names)}
        given, inverse = np.unique(relation, return_inverse=True)
        called = [names[number] if names else str(number) for number in given.tolist()]
        if new := [name for name in called if name not in place]:
            shown = ", ".join(self._names[:20]) + (", ..." if len(self._names) > 20 else "")
            raise InputError(
                f"{path} has relations that the graph does not have",
                needed=f"relations among {shown}: a trained model has parameters for each",
                got=", ".join(repr(name) for name in new[:_SHOWN]) + (", ..." if len(new) > _SHOWN else ""),
                repair="leave these edges out, or convert all of the tables together and train anew",
            )
        numbers: Ids = np.array([place[name] for name in called], np.int64)[inverse.reshape(-1)]
        return numbers


def _select_edges(chunk: EdgeChunk, kept: NDArray[np.bool_]) -> EdgeChunk:
    return EdgeChunk(*(None if column is None else column[kept] for column in chunk))  # type: ignore[arg-type]


def _refuse_types(graph: Graph) -> None:
    if graph.node_types:
        raise InputError(
            f"{graph.name} has several types of nodes, and cannot be appended to",
            needed="a graph of one node type",
            got=f"types {', '.join(kind.name for kind in graph.node_types[:_SHOWN])}",
            repair="convert all of the tables together: new nodes of a type would take the numbers of the next one",
        )


def _require_numbers(path: Path, ids: NodeIds, first: int) -> None:
    expected = np.arange(first, first + len(ids))
    if ids.values is None or not np.array_equal(ids.values.numpy(), expected):
        raise InputError(
            f"{path} has ids, and the nodes of the graph have none",
            needed=f"no column of ids, or the numbers from {first} on, in order",
            got=f"ids such as {ids[0]!r}",
            repair="leave the column out, or convert all of the tables together",
        )


def _require_kind(encoder: IdEncoder, ids: NodeIds, path: Path) -> None:
    # An encoder of integers turns all of them into texts once a text comes.
    if encoder.are_text != ids.are_text:
        raise _text_ids_error(path, "names of new nodes that are texts")


def _text_ids_error(path: Path, got: str) -> InputError:
    return InputError(
        f"{path} has ids that are texts, and those of the graph are integers",
        needed="integers",
        got=got,
        repair="give the new nodes integers, or convert all of the tables together",
    )


def _add_ids(encoder: IdEncoder, ids: NodeIds, path: Path, *, are_text: bool) -> None:
    if ids.are_text and not are_text:
        raise _text_ids_error(path, f"ids such as {ids[0]!r}")
    known = 0
    first = list[str]()
    for at in range(0, len(ids), _CHUNK):
        some = ids.take_arrow(np.arange(at, min(len(ids), at + _CHUNK)))
        there = np.flatnonzero(encoder.find(some) >= 0)
        known += len(there)
        first += [str(some[int(row)]) for row in there[: _SHOWN - len(first)]]
        if not known:
            encoder.encode(some)
    if known:
        raise InputError(
            f"{path} has rows for nodes that are there already",
            needed="rows for new nodes: what a graph has of its nodes is not changed",
            got=f"{known:,} of {len(ids):,} ids are known, such as {', '.join(map(repr, first))}",
            repair="drop these rows, or convert all of the tables together",
        )
