"""From a source to a store, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array

from outgrow.core.errors import InputError
from outgrow.graph.builders.edge_checks import Intake
from outgrow.graph.builders.edge_order import Columns, Compressor, pieces, rule_of
from outgrow.graph.builders.external_sort import Spill
from outgrow.graph.builders.node_tables import (
    Nodes,
    checked_nodes,
    dense_blocks,
    feature_dtype,
    implied_num_nodes,
    sparse_blocks,
)
from outgrow.graph.readers.source import Source
from outgrow.graph.store.manifest import HEADER_BYTES, Manifest
from outgrow.graph.store.writer import StoreWriter, writing

if TYPE_CHECKING:
    from outgrow.graph.graph import Graph


Progress = Callable[[str, int, int | None], None]
_LEAST_MEMORY = 1 << 10


def convert(
    source: Source,
    dest: Path,
    *,
    undirected: bool = False,
    memory_bytes: int = 1 << 30,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Graph:
    """Write a source as a store, however large it is. The same store comes out for any memory.

    Args:
        source: What to read.
        dest: Directory that the store will be.
        undirected: Drop duplicate edges, and add the reverse of each edge where none goes back (see `assemble`).
        memory_bytes: Most that the arrays of the sort may take. Interpreter, libraries and one chunk of the reader
            come on top, and as much of the tables of the source as it does not map.
        overwrite: Replace a store that is there; it stays until the new one is complete.
        progress: Called with a phase, what is done of it, and its total (None while unknown): ``"read"`` counts edges,
            ``"sort"`` edges, ``"features"`` nodes.

    Returns:
        The store, opened.

    Raises:
        InputError: The source is broken or no graph, something is at ``dest``, or the disk is full. Nothing is left
            behind.
    """
    build_store(
        source,
        dest,
        undirected=undirected,
        memory_bytes=memory_bytes,
        overwrite=overwrite,
        progress=progress,
    )
    # Opening needs tensors; importing them before would take memory from the build.
    from outgrow.graph.store.reader import open_store

    return open_store(dest)


def build_store(
    source: Source,
    dest: Path,
    *,
    undirected: bool,
    memory_bytes: int,
    overwrite: bool,
    progress: Progress | None,
) -> None:
    """`convert` without opening the store: imports no tensor library."""
    if memory_bytes < _LEAST_MEMORY:
        raise InputError(
            "too little memory to sort in",
            needed=f"at least {_LEAST_MEMORY} bytes",
            got=f"{memory_bytes}",
            repair="give more; 1 GiB is the default",
        )
    tell = progress or _silent
    rule = rule_of(undirected)
    with writing(dest, overwrite=overwrite) as writer:
        tables = source.tables()
        known = implied_num_nodes(tables)
        nodes = None if known is None else checked_nodes(tables, known)
        intake = Intake(known, tables.relation_names)
        with Spill(writer.scratch, rule, memory_bytes) as spill:
            for chunk in intake.check(source.edges()):
                for piece in pieces(chunk):
                    spill.add(rule.columns(piece))
                tell("read", intake.num_edges, None)
            nodes = nodes or checked_nodes(tables, intake.num_nodes)
            compressor = Compressor(intake.num_nodes, len(intake.relation_names), rule)
            least = spill.num_edges if rule.keeps_parallel else spill.num_edges // 2
            writer.need(_least_bytes(nodes, compressor, least))
            num_edges = _write_topology(writer, compressor, _told(spill, tell))
        num_features = _write_features(writer, nodes, tell)
        _write_tables(writer, nodes)
        writer.finish(
            Manifest(
                name=source.name,
                num_nodes=nodes.num_nodes,
                num_edges=num_edges,
                num_features=num_features,
                num_classes=nodes.num_classes,
                arrays={},
                class_names=nodes.class_names,
                relation_names=rule.relations(intake.relation_names),
                node_types=nodes.node_types,
            )
        )


def _told(spill: Spill, tell: Progress) -> Iterator[Columns]:
    done = 0
    for edges in spill.ranges():
        yield edges
        done += len(edges)
        tell("sort", done, spill.num_edges)


def _write_topology(writer: StoreWriter, compressor: Compressor, ranges: Iterator[Columns]) -> int:
    indptr, indices = writer.array("indptr", np.int64), writer.array("indices", compressor.index_dtype)
    relation = None if compressor.relation_dtype is None else writer.array("relation", compressor.relation_dtype)
    weight = None
    indptr.append(np.zeros(1, dtype=np.int64))
    total = 0
    for edges in ranges:
        if weight is None and edges.weight is not None:
            weight = writer.array("weight", np.float32)
        for part in compressor.pieces(edges):
            indptr.append(part.ends)
            indices.append(part.indices)
            if relation is not None and part.relation is not None:
                relation.append(part.relation)
            if weight is not None and part.weight is not None:
                weight.append(part.weight)
        total += len(edges)
    for part in compressor.rest():
        indptr.append(part.ends)
    return total


def _write_features(writer: StoreWriter, nodes: Nodes, tell: Progress) -> int:
    features = nodes.features
    if features is None:
        return 0
    dtype, done = feature_dtype(features.dtype), 0
    if isinstance(features, csr_array):
        ends, indices = writer.array("feature_indptr", np.int64), writer.array("feature_indices", np.int32)
        values = writer.array("feature_values", dtype)
        ends.append(np.zeros(1, dtype=np.int64))
        for block in sparse_blocks(features):
            ends.append(block.ends)
            indices.append(block.indices)
            values.append(block.values)
            done += len(block.ends)
            tell("features", done, nodes.num_nodes)
    else:
        rows = writer.array("features", dtype, (features.shape[1],))
        for dense in dense_blocks(features):
            rows.append(dense)
            done += len(dense)
            tell("features", done, nodes.num_nodes)
    return int(features.shape[1])


def _write_tables(writer: StoreWriter, nodes: Nodes) -> None:
    if nodes.labels is not None:
        writer.array("labels", nodes.labels.dtype, nodes.labels.shape[1:]).append(nodes.labels)
    for name, ids in zip(("train", "val", "test"), nodes.split, strict=True):
        writer.array(name, np.int64).append(ids)


def _least_bytes(nodes: Nodes, compressor: Compressor, num_edges: int) -> int:
    """Bytes that the store takes at the least."""
    total = HEADER_BYTES + 8 * nodes.num_nodes + compressor.index_dtype.itemsize * num_edges
    if nodes.features is not None and not isinstance(nodes.features, csr_array):
        total += nodes.features.shape[0] * nodes.features.shape[1] * feature_dtype(nodes.features.dtype).itemsize
    return total


def _silent(phase: str, done: int, total: int | None) -> None:
    pass
