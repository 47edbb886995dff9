"""A graph from a source, in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from outgrow.graph.builders.edge_checks import Intake
from outgrow.graph.builders.edge_order import Columns, Compressor, EdgeRule, pieces, rule_of, sorted_columns
from outgrow.graph.builders.node_tables import (
    Nodes,
    checked_nodes,
    dense_blocks,
    feature_dtype,
    implied_num_nodes,
    sparse_blocks,
)
from outgrow.graph.graph import Graph, Split
from outgrow.graph.readers.source import LazyRows, Source
from outgrow.graph.topology import Topology
from outgrow.ops.sparse import SparseRows


def assemble(source: Source, *, undirected: bool = False) -> Graph:
    """Read a graph into memory and check it.

    Args:
        source: What to read.
        undirected: Drop duplicate edges, and add the reverse of each edge where none goes back. The reverse of an
            edge of relation ``r`` out of ``R`` has relation ``r + R`` (``NAME^-1``) and the same weight.

    Returns:
        The graph. Rows are sorted by source, then relation, then the order of input.

    Raises:
        InputError: The source is broken, or what it holds is not a graph.
    """
    tables, rule = source.tables(), rule_of(undirected)
    known = implied_num_nodes(tables)
    nodes = None if known is None else checked_nodes(tables, known)
    intake = Intake(known, tables.relation_names)
    columns = [rule.columns(piece) for chunk in intake.check(source.edges()) for piece in pieces(chunk)]
    nodes = nodes or checked_nodes(tables, intake.num_nodes)
    topology = _topology(columns, intake, rule)
    return Graph(
        name=source.name,
        topology=topology,
        features=_features(nodes),
        labels=None if nodes.labels is None else torch.from_numpy(nodes.labels),
        split=Split(**dict(zip(("train", "val", "test"), map(torch.from_numpy, nodes.split), strict=True))),
        num_classes=nodes.num_classes,
        class_names=nodes.class_names,
        relation_names=rule.relations(intake.relation_names),
        node_types=nodes.node_types,
    )


def _topology(parts: list[Columns], intake: Intake, rule: EdgeRule) -> Topology:
    edges = rule.settle(sorted_columns(_joined(parts)))
    compressor = Compressor(intake.num_nodes, len(intake.relation_names), rule)
    indptr = np.zeros(intake.num_nodes + 1, dtype=np.int64)
    indices = np.empty(len(edges), dtype=compressor.index_dtype)
    relation = None if compressor.relation_dtype is None else np.empty(len(edges), dtype=compressor.relation_dtype)
    row = edge = 0
    for part in (*compressor.pieces(edges), *compressor.rest()):
        indptr[row + 1 : row + 1 + len(part.ends)] = part.ends
        indices[edge : edge + len(part.indices)] = part.indices
        if relation is not None and part.relation is not None:
            relation[edge : edge + len(part.indices)] = part.relation
        row, edge = row + len(part.ends), edge + len(part.indices)
    return Topology(
        indptr=torch.from_numpy(indptr),
        indices=torch.from_numpy(indices),
        relation=None if relation is None else torch.from_numpy(relation),
        weight=None if edges.weight is None else torch.from_numpy(edges.weight.copy()),
    )


def _joined(parts: list[Columns]) -> Columns:
    if not parts:
        return Columns(np.empty(0, dtype=np.uint64))
    rank, weight = parts[0].rank, parts[0].weight
    return Columns(
        np.concatenate([part.key for part in parts]),
        None if rank is None else np.concatenate([part.rank for part in parts if part.rank is not None]),
        None if weight is None else np.concatenate([part.weight for part in parts if part.weight is not None]),
    )


def _features(nodes: Nodes) -> torch.Tensor | SparseRows | None:
    if nodes.features is None:
        return None
    if isinstance(nodes.features, csr_array):
        return _sparse(nodes.features)
    return torch.from_numpy(_dense(nodes.features))


def _dense(features: NDArray[Any] | LazyRows) -> NDArray[Any]:
    out, row = np.empty(features.shape, dtype=feature_dtype(features.dtype)), 0
    for block in dense_blocks(features):
        out[row : row + len(block)] = block
        row += len(block)
    return out


def _sparse(features: csr_array) -> SparseRows:
    blocks = list(sparse_blocks(features))
    start = np.zeros(1, dtype=np.int64)
    none = np.empty(0, dtype=feature_dtype(features.dtype))
    return SparseRows(
        indptr=torch.from_numpy(np.concatenate([start, *(block.ends for block in blocks)])),
        indices=torch.from_numpy(np.concatenate([none.astype(np.int32), *(block.indices for block in blocks)])),
        values=torch.from_numpy(np.concatenate([none, *(block.values for block in blocks)])),
        num_columns=features.shape[1],
    )
