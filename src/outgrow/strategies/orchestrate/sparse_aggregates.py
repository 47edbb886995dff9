"""Sums of sparse raw features, for `reuse=aggregate`: dense and as wide as features, so only where they are few."""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.errors import InputError
from outgrow.nn.layer import Features, Layer, NodeMessages
from outgrow.nn.model import Model
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.sparse import SparseRows, sum_sparse_rows

MAX_BYTES = 1 << 30
"""Bytes of the sums of a worker's hot nodes at most; memory holds those of two super-batches."""


def sums_sparse_rows(bottom: Layer) -> bool:
    """Whether a layer sums its input with weights of the graph, without parameters."""
    return bottom.has_static_aggregate and isinstance(bottom.conv.aggregation, WeightedSum)


def aggregate_sparse_rows(layer: Layer, block: Block, x_src: SparseRows) -> Tensor:
    """Return ``[Vd, 1, D]``: the dense aggregate of sparse rows, in host memory.

    Args:
        layer: A layer for which `sums_sparse_rows` is true.
        block: Edges from ``Vs`` sources to ``Vd`` destinations.
        x_src: ``[Vs, D]`` features of the sources.
    """
    # Weights of edges take the type of rows and read none of their columns.
    source = NodeMessages(x_src.new_zeros(len(x_src), 1, 0), None)
    weight_EK = layer.conv.edge_weight(block, source, NodeMessages(None, None))
    edges = block.edges
    out = torch.empty(edges.num_dst, x_src.num_columns, dtype=x_src.dtype)
    sum_sparse_rows(edges.indptr, edges.indices, None if weight_EK is None else weight_EK[:, 0], x_src, out)
    return out[:, None]


def validate_sparse_aggregates(model: Model, bottom: Layer, features: Features) -> None:
    """Check that aggregates of sparse features can be reused.

    Raises:
        InputError: Features are of several matrices, one for each type of nodes; or the layer does not sum them.
    """
    if isinstance(features, SparseRows) and sums_sparse_rows(bottom):
        return
    raise InputError(
        "aggregates of these features cannot be reused",
        needed="features in columns that all nodes share, dense; or sparse, before a layer that sums them",
        got=f"{type(features).__name__} of {features.shape[1]} columns, {type(model.layers_list()[0].conv).__name__}",
        repair="choose reuse=embedding",
    )


def validate_sparse_aggregate_bytes(num_hot: int, features: SparseRows, dtype: torch.dtype) -> None:
    """Check that the sums of all hot nodes of a worker are within `MAX_BYTES`.

    Raises:
        InputError: They are not.
    """
    num_bytes = num_hot * features.num_columns * dtype.itemsize
    if num_bytes > MAX_BYTES:
        most = MAX_BYTES // (features.num_columns * dtype.itemsize)
        raise InputError(
            "aggregates of sparse features are dense, and too large to be reused",
            needed=f"at most {MAX_BYTES:,} bytes on a worker: {most:,} hot nodes",
            got=f"{num_bytes:,} bytes for {num_hot:,} hot nodes of {features.num_columns:,} columns",
            repair="give a smaller hot_ratio, or choose reuse=embedding",
        )
