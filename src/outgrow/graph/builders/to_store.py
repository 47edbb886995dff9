"""From a source to a store, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array

from outgrow.core.errors import InputError
from outgrow.graph.builders.edge_checks import EdgeValidator
from outgrow.graph.builders.edge_order import CscBuilder, EdgeColumns, edge_policy_for, split_chunk
from outgrow.graph.builders.external_sort import ExternalSorter
from outgrow.graph.builders.node_tables import (
    NodeTables,
    infer_num_nodes,
    iter_dense_blocks,
    iter_sparse_blocks,
    stored_feature_dtype,
    validate_node_tables,
)
from outgrow.graph.readers.source import GraphSource
from outgrow.graph.store.manifest import HEADER_BYTES, Manifest
from outgrow.graph.store.writer import StoreWriter, open_store_writer

if TYPE_CHECKING:
    from outgrow.graph.graph import Graph


Progress = Callable[[str, int, int | None], None]
_LEAST_MEMORY = 1 << 10


def convert_to_store(
    source: GraphSource,
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
        undirected: Drop duplicate edges, and add the reverse of each edge where none goes back (see `assemble_graph`).
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
    source: GraphSource,
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
    tell = progress or _ignore_progress
    rule = edge_policy_for(undirected)
    with open_store_writer(dest, overwrite=overwrite) as writer:
        tables = source.read_tables()
        known = infer_num_nodes(tables)
        nodes = None if known is None else validate_node_tables(tables, known)
        intake = EdgeValidator(known, tables.relation_names)
        with ExternalSorter(writer.scratch_dir, rule, memory_bytes) as spill:
            for chunk in intake.validate_chunks(source.read_edges()):
                for piece in split_chunk(chunk):
                    spill.add_edges(rule.make_columns(piece))
                tell("read", intake.num_edges, None)
            nodes = nodes or validate_node_tables(tables, intake.num_nodes)
            compressor = CscBuilder(intake.num_nodes, len(intake.relation_names), rule)
            least = spill.num_edges if rule.keeps_parallel_edges else spill.num_edges // 2
            writer.require_free_space(_min_store_bytes(nodes, compressor, least))
            num_edges = _write_topology(writer, compressor, _report_sort_progress(spill, tell))
        num_features = _write_features(writer, nodes, tell)
        _write_tables(writer, nodes)
        writer.finish_store(
            Manifest(
                name=source.name,
                num_nodes=nodes.num_nodes,
                num_edges=num_edges,
                num_features=num_features,
                num_classes=nodes.num_classes,
                arrays={},
                class_names=nodes.class_names,
                relation_names=rule.name_relations(intake.relation_names),
                node_types=nodes.node_types,
            )
        )


def _report_sort_progress(sorter: ExternalSorter, report: Progress) -> Iterator[EdgeColumns]:
    done = 0
    for edges in sorter.iter_sorted_ranges():
        yield edges
        done += len(edges)
        report("sort", done, sorter.num_edges)


def _write_topology(writer: StoreWriter, builder: CscBuilder, ranges: Iterator[EdgeColumns]) -> int:
    indptr = writer.create_array("indptr", np.int64)
    indices = writer.create_array("indices", builder.index_dtype)
    relation = None if builder.relation_dtype is None else writer.create_array("relation", builder.relation_dtype)
    weight = None
    indptr.append_rows(np.zeros(1, dtype=np.int64))
    total = 0
    for edges in ranges:
        if weight is None and edges.weight is not None:
            weight = writer.create_array("weight", np.float32)
        for part in builder.compress_edges(edges):
            indptr.append_rows(part.ends)
            indices.append_rows(part.indices)
            if relation is not None and part.relation is not None:
                relation.append_rows(part.relation)
            if weight is not None and part.weight is not None:
                weight.append_rows(part.weight)
        total += len(edges)
    for part in builder.complete_remaining_rows():
        indptr.append_rows(part.ends)
    return total


def _write_features(writer: StoreWriter, nodes: NodeTables, report: Progress) -> int:
    features = nodes.features
    if features is None:
        return 0
    dtype = stored_feature_dtype(features.dtype)
    done = 0
    if isinstance(features, csr_array):
        ends = writer.create_array("feature_indptr", np.int64)
        indices = writer.create_array("feature_indices", np.int32)
        values = writer.create_array("feature_values", dtype)
        ends.append_rows(np.zeros(1, dtype=np.int64))
        for block in iter_sparse_blocks(features):
            ends.append_rows(block.ends)
            indices.append_rows(block.indices)
            values.append_rows(block.values)
            done += len(block.ends)
            report("features", done, nodes.num_nodes)
    else:
        rows = writer.create_array("features", dtype, (features.shape[1],))
        for dense in iter_dense_blocks(features):
            rows.append_rows(dense)
            done += len(dense)
            report("features", done, nodes.num_nodes)
    return int(features.shape[1])


def _write_tables(writer: StoreWriter, nodes: NodeTables) -> None:
    if nodes.labels is not None:
        writer.create_array("labels", nodes.labels.dtype, nodes.labels.shape[1:]).append_rows(nodes.labels)
    for name, ids in zip(("train", "val", "test"), nodes.split, strict=True):
        writer.create_array(name, np.int64).append_rows(ids)


def _min_store_bytes(nodes: NodeTables, builder: CscBuilder, num_edges: int) -> int:
    """Bytes that the store takes at the least."""
    total = HEADER_BYTES + 8 * nodes.num_nodes + builder.index_dtype.itemsize * num_edges
    if nodes.features is not None and not isinstance(nodes.features, csr_array):
        total += nodes.features.shape[0] * nodes.features.shape[1] * stored_feature_dtype(nodes.features.dtype).itemsize
    return total


def _ignore_progress(phase: str, done: int, total: int | None) -> None:
    pass
