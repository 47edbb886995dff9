"""Conversion of a source to a store, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array

from outgrow.core.errors import InputError
from outgrow.core.memory_limits import available_bytes
from outgrow.graph.builders.edge_checks import EdgeValidator
from outgrow.graph.builders.edge_order import CscBuilder, EdgeColumns, split_chunk
from outgrow.graph.builders.edge_policies import edge_policy_for
from outgrow.graph.builders.external_sort import ExternalSorter
from outgrow.graph.builders.feature_form import describe_feature_form
from outgrow.graph.builders.node_tables import (
    NodeTables,
    infer_num_nodes,
    iter_dense_blocks,
    iter_sparse_blocks,
    stored_feature_dtype,
    validate_node_tables,
)
from outgrow.graph.builders.validate import validate_held_out_links
from outgrow.graph.readers.source import BlockFeatures, GraphSource, LazySparse
from outgrow.graph.store.arrays import held_out_link_arrays, id_arrays, split_arrays, write_array
from outgrow.graph.store.manifest import HEADER_BYTES, TYPE_FEATURES, TYPE_LABELS, Manifest, TypeLabelEntry
from outgrow.graph.store.writer import StoreWriter, open_store_writer

if TYPE_CHECKING:
    from outgrow.graph.graph import Graph


Progress = Callable[[str, int, int | None], None]
_LEAST_MEMORY = 1 << 10
_TIME_ORDER_BYTES = 64
"""Bytes for each edge that is sorted by time: its time and its position, twice, and those of the sort."""


def convert_to_store(
    source: GraphSource,
    dest: Path,
    *,
    undirected: bool = False,
    memory_bytes: int = 1 << 30,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Graph:
    """Write a source of any size as a store. The result does not depend on ``memory_bytes``.

    Args:
        source: The source to read.
        dest: Directory of the new store.
        undirected: Drop duplicate edges, and add the reverse of each edge that has none (see
            `assemble_graph`).
        memory_bytes: Limit on the arrays of the sort, and half as much again for tables of ids. The interpreter,
            libraries, one chunk of the reader and the tables that the source does not map come on top.
        overwrite: Replace an existing store; it is kept until the new one is complete.
        progress: Called with a phase, the amount done and the total (None while unknown): ``"read"`` and
            ``"sort"`` count edges, ``"features"`` counts nodes. The total of ``"read"`` is an estimate by the bytes of
            the source that were read.

    Returns:
        The store, opened.

    Raises:
        InputError: The source is broken or not a graph, ``dest`` exists, or the disk is full. Nothing is left
            behind.
    """
    build_store(
        source,
        dest,
        undirected=undirected,
        memory_bytes=memory_bytes,
        overwrite=overwrite,
        progress=progress,
        check=partial(_check_split, source),
    )
    from outgrow.graph.store.reader import open_store

    return open_store(dest)


def _check_split(source: GraphSource, folder: Path) -> None:
    # Opening needs tensors; importing them before would take memory from the build.
    from outgrow.graph.given_split import check_given_split
    from outgrow.graph.store.reader import open_store

    check_given_split(
        open_store(folder),
        allow_overlap=source.allows_overlap,
        allow_unseen_relations=source.allows_unseen_relations,
    )


def build_store(
    source: GraphSource,
    dest: Path,
    *,
    undirected: bool,
    memory_bytes: int,
    overwrite: bool,
    progress: Progress | None,
    check: Callable[[Path], None] | None = None,
) -> None:
    """Write a source as a store without opening it, so that no tensor library is imported.

    ``check`` is called with the folder of a complete store that has held-out links, before it is moved into place.
    """
    if memory_bytes < _LEAST_MEMORY:
        raise InputError(
            "too little memory to sort in",
            needed=f"at least {_LEAST_MEMORY} bytes",
            got=f"{memory_bytes}",
            repair="give more; 1 GiB is the default",
        )
    # Buffers are as large as allowed: of more than the machine has they could not be made.
    memory_bytes = max(_LEAST_MEMORY, min(memory_bytes, available_bytes()))
    report = progress or _ignore_progress
    policy = edge_policy_for(undirected, inverse_relations=source.adds_inverse_relations)
    with open_store_writer(dest, overwrite=overwrite) as writer:
        # Tables of ids stay while edges are sorted: beyond this they lie in files.
        source.set_scratch(writer.scratch_dir, memory_bytes // 2)
        tables = source.read_tables()
        known = infer_num_nodes(tables)
        # Checked before the edges if possible: broken tables are reported before hours of reading.
        nodes = None if known is None else validate_node_tables(tables, known)
        validator = EdgeValidator(known, tables.relation_names, tables.edge_feature_sizes)
        with ExternalSorter(writer.scratch_dir, policy, memory_bytes) as sorter:
            for chunk in validator.validate_chunks(source.read_edges()):
                # In pieces: temporary columns must not grow with the chunks of the reader.
                for piece in split_chunk(chunk):
                    sorter.add_edges(policy.make_columns(piece))
                report("read", validator.num_edges, _estimate_edges(source, validator.num_edges))
            ids = source.read_ids()
            validator.complete(source, None if ids is None else len(ids))
            nodes = nodes or validate_node_tables(tables, validator.num_nodes)
            source.warn_of_unread()
            builder = CscBuilder(validator.num_nodes, len(validator.relation_names), policy, validator.feature_form)
            min_edges = sorter.num_edges if policy.keeps_parallel_edges else sorter.num_edges // 2
            # Before the long sort: a disk that is too small is reported now, not after hours.
            writer.require_free_space(_min_store_bytes(nodes, builder, min_edges))
            num_edges = _write_topology(writer, builder, _report_sort_progress(sorter, report))
        num_features = _write_features(writer, nodes, report)
        _write_tables(writer, nodes)
        _write_time_order(writer, nodes, memory_bytes)
        links = source.read_held_out_links()
        validate_held_out_links(links, nodes.num_nodes, len(validator.relation_names))
        for name, values in {**id_arrays(ids), **held_out_link_arrays(links)}.items():
            write_array(writer, name, values)
        writer.finish_store(
            Manifest(
                name=source.name,
                num_nodes=nodes.num_nodes,
                num_edges=num_edges,
                num_features=num_features,
                num_classes=nodes.num_classes,
                # Filled in by `finish_store`, which knows sizes and checksums.
                arrays={},
                class_names=nodes.class_names,
                relation_names=policy.name_relations(validator.relation_names),
                node_types=nodes.node_types,
                num_splits=len(nodes.splits),
                origin=describe_feature_form(source.describe_origin(), nodes.features),
                type_labels=tuple(
                    TypeLabelEntry(name=each.name, num_classes=each.num_classes, class_names=each.class_names)
                    for each in nodes.type_labels
                ),
                edge_feature_sizes=() if validator.feature_form is None else validator.feature_form.feature_sizes,
                edge_columns=validator.feature_columns,
                times_are_dates=validator.times_are_dates,
            )
        )
        if links is not None and check is not None:
            check(writer.scratch_dir.parent)


def _estimate_edges(source: GraphSource, num_edges: int) -> int | None:
    done, total = source.read_progress() or (0, 0)
    return max(num_edges, num_edges * total // done) if done else None


def _report_sort_progress(sorter: ExternalSorter, report: Progress) -> Iterator[EdgeColumns]:
    done = 0
    for edges in sorter.iter_sorted_ranges():
        # Counted after the consumer has written the range: progress then means edges in the store.
        yield edges
        done += len(edges)
        report("sort", done, sorter.num_edges)


def _write_topology(writer: StoreWriter, builder: CscBuilder, ranges: Iterator[EdgeColumns]) -> int:
    indptr = writer.create_array("indptr", np.int64)
    indices = writer.create_array("indices", builder.index_dtype)
    relation = None if builder.relation_dtype is None else writer.create_array("relation", builder.relation_dtype)
    time = None
    form = builder.feature_form
    features = None if form is None else writer.create_array("edge_features", form.dtype, (form.width,))
    weight = None
    indptr.append_rows(np.zeros(1, dtype=np.int64))
    total = 0
    for edges in ranges:
        # Only the edges themselves show whether they have weights; a graph without edges has no such array.
        if weight is None and edges.weight is not None:
            weight = writer.create_array("weight", np.float32)
        if time is None and edges.time is not None:
            time = writer.create_array("edge_time", np.int64)
        for part in builder.compress_edges(edges):
            indptr.append_rows(part.ends)
            indices.append_rows(part.indices)
            if relation is not None and part.relation is not None:
                relation.append_rows(part.relation)
            if weight is not None and part.weight is not None:
                weight.append_rows(part.weight)
            if features is not None and part.features is not None:
                features.append_rows(part.features)
            if time is not None and part.time is not None:
                time.append_rows(part.time)
        total += len(edges)
    # Nodes behind the last edge have no in-edges, but still a row.
    for part in builder.complete_remaining_rows():
        indptr.append_rows(part.ends)
    return total


def _write_features(writer: StoreWriter, nodes: NodeTables, report: Progress) -> int:
    features = nodes.features
    if features is None:
        return 0
    dtype = stored_feature_dtype(features.dtype)
    done = 0
    if isinstance(features, (csr_array, LazySparse)):
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
    elif isinstance(features, BlockFeatures):
        for number, (first, part) in enumerate(features.parts):
            rows = writer.create_array(f"{TYPE_FEATURES}{number}", dtype, (part.shape[1],))
            for dense in iter_dense_blocks(part, first, dtype):
                rows.append_rows(dense)
                done += len(dense)
                report("features", done, nodes.num_nodes)
        # Nodes without features are done too.
        report("features", nodes.num_nodes, nodes.num_nodes)
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
    for number, each in enumerate(nodes.type_labels):
        array = writer.create_array(f"{TYPE_LABELS}{number}", each.labels.dtype, each.labels.shape[1:])
        array.append_rows(each.labels)
    if nodes.time is not None:
        writer.create_array("node_time", np.int64).append_rows(nodes.time)
    for name, part in split_arrays(nodes.split, nodes.splits).items():
        writer.create_array(name, np.int64).append_rows(part)


def _write_time_order(writer: StoreWriter, nodes: NodeTables, memory_bytes: int) -> None:
    edge_time = writer.map_array("edge_time") if writer.has_array("edge_time") else None
    if edge_time is None and nodes.time is None:
        return
    # Only now: it imports the tensor library, whose memory the sort of the edges had.
    from outgrow.ops.sampling.time_order import iterate_time_order, position_dtype

    graph = writer.map_array("indptr"), writer.map_array("indices")
    order = writer.create_array("time_order", position_dtype(len(graph[1])))
    times = writer.create_array("ordered_time", np.int64)
    for part in iterate_time_order(graph, edge_time, nodes.time, max(1, memory_bytes // _TIME_ORDER_BYTES)):
        order.append_rows(part.edges)
        times.append_rows(part.times)


def _min_store_bytes(nodes: NodeTables, builder: CscBuilder, num_edges: int) -> int:
    """Return a lower bound on the bytes of the store."""
    total = HEADER_BYTES + 8 * nodes.num_nodes + builder.index_dtype.itemsize * num_edges
    if builder.feature_form is not None:
        total += num_edges * builder.feature_form.width * builder.feature_form.dtype.itemsize
    if nodes.time is not None:
        # The order of the edges by time, and their times in it.
        total += (4 + 8) * num_edges
    if isinstance(nodes.features, BlockFeatures):
        numbers = sum(int(rows.shape[0]) * int(rows.shape[1]) for _, rows in nodes.features.parts)
        return total + numbers * stored_feature_dtype(nodes.features.dtype).itemsize
    # Sparse features are not counted: merging duplicates may make them smaller.
    if nodes.features is not None and not isinstance(nodes.features, (csr_array, LazySparse)):
        total += nodes.features.shape[0] * nodes.features.shape[1] * stored_feature_dtype(nodes.features.dtype).itemsize
    return total


def _ignore_progress(phase: str, done: int, total: int | None) -> None:
    pass
