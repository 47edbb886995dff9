"""Fixed random features of node types that have none, in columns of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from outgrow.graph.graph import Graph
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.sparse import SparseRows


def with_random_columns(graph: Graph, width: int) -> Graph:
    """Return a graph whose types without features have fixed random ones in columns of their own."""
    features = graph.features
    assert features is not None
    assert not isinstance(features, torch.Tensor)
    draw = torch.Generator().manual_seed(0)
    drawn = {
        kind.name: torch.randn(kind.last - kind.first, width, generator=draw) / width**0.5
        for kind in graph.node_types
        if not kind.num_columns
    }
    kinds = tuple(replace(kind, num_columns=kind.num_columns or width) for kind in graph.node_types)
    if isinstance(features, BlockRows):
        given = iter(features.blocks)
        blocks = tuple(drawn[kind.name] if kind.name in drawn else next(given) for kind in graph.node_types)
        ranges = tuple(slice(kind.first, kind.last) for kind in kinds)
        rows: Any = BlockRows(blocks=blocks, rows=ranges, num_rows=graph.num_nodes)
    else:
        rows = _with_columns(features, graph, drawn, width)
    return replace(graph, features=rows, node_types=kinds)


def _with_columns(features: SparseRows, graph: Graph, drawn: dict[str, torch.Tensor], width: int) -> SparseRows:
    sizes = features.indptr.diff()
    first_new = first_old = 0
    indices, values = [], []
    for kind in graph.node_types:
        count = kind.last - kind.first
        low, high = int(features.indptr[kind.first]), int(features.indptr[kind.last])
        if kind.name in drawn:
            sizes[kind.first : kind.last] = width
            indices.append((first_new + torch.arange(width, dtype=torch.int32)).repeat(count))
            values.append(drawn[kind.name].reshape(-1).to(features.dtype))
        else:
            indices.append(features.indices[low:high] + (first_new - first_old))
            values.append(features.values[low:high])
            first_old += kind.num_columns
        first_new += kind.num_columns or width
    ends = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return SparseRows(indptr=ends, indices=torch.cat(indices), values=torch.cat(values), num_columns=first_new)
