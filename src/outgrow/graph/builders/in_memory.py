"""A graph from a source, in memory."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from outgrow.graph.builders.edge_checks import EdgeValidator
from outgrow.graph.builders.edge_order import (
    CscBuilder,
    EdgeColumns,
    EdgePolicy,
    sort_columns,
    split_chunk,
)
from outgrow.graph.builders.edge_policies import edge_policy_for
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
from outgrow.graph.given_split import check_given_split
from outgrow.graph.graph import Graph, Split
from outgrow.graph.readers.source import BlockFeatures, GraphSource, Ids, LazyMatrix, LazySparse
from outgrow.graph.topology import Topology
from outgrow.graph.type_labels import TypeLabels
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.sparse import PartialRows, SparseRows


def assemble_graph(source: GraphSource, *, undirected: bool = False) -> Graph:
    """Read a graph into memory and check it.

    Args:
        source: What to read.
        undirected: Drop duplicate edges, and add the reverse of each edge where none goes back. The reverse
            of an edge of relation ``r`` out of ``R`` has relation ``r + R`` (``NAME^-1``), the same
            weight and the same features.

    Returns:
        The graph. Rows are sorted by source, then relation, then the order of input.

    Raises:
        InputError: The source is broken, or what it holds is not a graph.
    """
    tables = source.read_tables()
    rule = edge_policy_for(undirected, inverse_relations=source.adds_inverse_relations)
    known = infer_num_nodes(tables)
    nodes = None if known is None else validate_node_tables(tables, known)
    intake = EdgeValidator(known, tables.relation_names, tables.edge_feature_sizes)
    columns = [
        rule.make_columns(piece)
        for chunk in intake.validate_chunks(source.read_edges())
        for piece in split_chunk(chunk)
    ]
    ids = source.read_ids()
    intake.complete(source, None if ids is None else len(ids))
    nodes = nodes or validate_node_tables(tables, intake.num_nodes)
    source.warn_of_unread()
    topology = _build_topology(columns, intake, rule, nodes.time)
    relation_names = intake.relation_names
    graph = Graph(
        name=source.name,
        topology=topology,
        features=_build_features(nodes),
        labels=None if nodes.labels is None else torch.from_numpy(nodes.labels),
        split=_make_split(nodes.split),
        num_classes=nodes.num_classes,
        class_names=nodes.class_names,
        relation_names=rule.name_relations(relation_names),
        node_types=nodes.node_types,
        ids=ids,
        splits=tuple(_make_split(parts) for parts in nodes.splits),
        type_labels=tuple(
            TypeLabels(
                name=each.name,
                labels=torch.from_numpy(each.labels),
                num_classes=each.num_classes,
                class_names=each.class_names,
            )
            for each in nodes.type_labels
        ),
        held_out_links=validate_held_out_links(source.read_held_out_links(), nodes.num_nodes, len(relation_names)),
        origin=describe_feature_form(source.describe_origin(), nodes.features),
    )
    check_given_split(graph, allow_overlap=source.allows_overlap, allow_unseen_relations=source.allows_unseen_relations)
    return graph


def _make_split(parts: tuple[Ids, Ids, Ids]) -> Split:
    return Split(**dict(zip(("train", "val", "test"), map(torch.from_numpy, parts), strict=True)))


def _build_topology(
    parts: list[EdgeColumns], validator: EdgeValidator, policy: EdgePolicy, node_time: Ids | None
) -> Topology:
    edges = policy.resolve_duplicates(sort_columns(_concat_columns(parts)))
    compressor = CscBuilder(validator.num_nodes, len(validator.relation_names), policy, validator.feature_form)
    indptr = np.zeros(validator.num_nodes + 1, dtype=np.int64)
    indices = np.empty(len(edges), dtype=compressor.index_dtype)
    relation = None if compressor.relation_dtype is None else np.empty(len(edges), dtype=compressor.relation_dtype)
    form = validator.feature_form
    features = None if form is None else np.empty((len(edges), form.width), form.dtype)
    row = edge = 0
    for part in chain(compressor.compress_edges(edges), compressor.complete_remaining_rows()):
        indptr[row + 1 : row + 1 + len(part.ends)] = part.ends
        indices[edge : edge + len(part.indices)] = part.indices
        if relation is not None and part.relation is not None:
            relation[edge : edge + len(part.indices)] = part.relation
        if features is not None and part.features is not None:
            features[edge : edge + len(part.indices)] = part.features
        row = row + len(part.ends)
        edge = edge + len(part.indices)
    return Topology(
        indptr=torch.from_numpy(indptr),
        indices=torch.from_numpy(indices),
        relation=None if relation is None else torch.from_numpy(relation),
        weight=None if edges.weight is None else torch.from_numpy(edges.weight.copy()),
        edge_features=None if features is None else torch.from_numpy(features),
        feature_sizes=() if form is None else form.feature_sizes,
        feature_columns=validator.feature_columns,
        edge_time=None if edges.time is None else torch.from_numpy(edges.time.copy()),
        node_time=None if node_time is None else torch.from_numpy(node_time),
        times_are_dates=validator.times_are_dates,
    )


def _concat_columns(parts: list[EdgeColumns]) -> EdgeColumns:
    if not parts:
        return EdgeColumns(np.empty(0, dtype=np.uint64))
    rank = parts[0].rank
    weight = parts[0].weight
    features, time = parts[0].features, parts[0].time
    return EdgeColumns(
        np.concatenate([part.key for part in parts]),
        None if rank is None else np.concatenate([part.rank for part in parts if part.rank is not None]),
        None if weight is None else np.concatenate([part.weight for part in parts if part.weight is not None]),
        None if features is None else np.concatenate([part.features for part in parts if part.features is not None]),
        None if time is None else np.concatenate([part.time for part in parts if part.time is not None]),
    )


def _build_features(nodes: NodeTables) -> torch.Tensor | PartialRows | None:
    if nodes.features is None:
        return None
    if isinstance(nodes.features, (csr_array, LazySparse)):
        return _read_sparse(nodes.features)
    dtype = stored_feature_dtype(nodes.features.dtype)
    if isinstance(nodes.features, BlockFeatures):
        return BlockRows(
            blocks=tuple(torch.from_numpy(_read_dense(rows, dtype, first)) for first, rows in nodes.features.parts),
            rows=tuple(slice(first, first + len(rows)) for first, rows in nodes.features.parts),
            num_rows=nodes.num_nodes,
        )
    return torch.from_numpy(_read_dense(nodes.features, dtype))


def _read_dense(features: NDArray[Any] | LazyMatrix, dtype: np.dtype[Any], first_node: int = 0) -> NDArray[Any]:
    out = np.empty(features.shape, dtype=dtype)
    row = 0
    for block in iter_dense_blocks(features, first_node, dtype):
        out[row : row + len(block)] = block
        row += len(block)
    return out


def _read_sparse(features: csr_array | LazySparse) -> SparseRows:
    blocks = list(iter_sparse_blocks(features))
    start = np.zeros(1, dtype=np.int64)
    none = np.empty(0, dtype=stored_feature_dtype(features.dtype))
    return SparseRows(
        indptr=torch.from_numpy(np.concatenate([start, *(block.ends for block in blocks)])),
        indices=torch.from_numpy(np.concatenate([none.astype(np.int32), *(block.indices for block in blocks)])),
        values=torch.from_numpy(np.concatenate([none, *(block.values for block in blocks)])),
        num_columns=features.shape[1],
    )
