"""Rows of a worker's own nodes in mapped files: its features, and what autograd saves for the backward pass.

Then a worker holds the rows of one layer at a time. The system caches as much of the files as fits into memory.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from outgrow.engine.features.inputs import cast_features
from outgrow.engine.shard import GraphShard
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.ops.sparse import index_rows
from outgrow.strategies.tensor.mapped_graph import MappedGraph

_LEAST_BYTES = 1 << 18
"""Smaller tensors stay in memory: a file for each would cost more than it saves."""
_COPIED_ROWS = 1 << 14


def own_features(
    model: Model, shard: GraphShard, features: Features, device: torch.device, mapped_graph: MappedGraph | None
) -> Features:
    """Return the features of a worker's own nodes as its model reads them, in a file if rows are in files.

    Args:
        model: The model.
        shard: Gives the nodes that the worker owns.
        features: ``[V, D]``, as the graph stores them.
        device: Device of whole rows.
        mapped_graph: The files; None for memory.
    """
    if mapped_graph is None or not mapped_graph.maps_rows or not isinstance(features, Tensor):
        return cast_features(model, shard.select_owned(features)).to(device)
    own = shard.owned_nodes
    out = mapped_graph.allocate((len(own), *features.shape[1:]), cast_features(model, features[:0]).dtype)
    for first in range(0, len(own), _COPIED_ROWS):
        rows = cast_features(model, index_rows(features, own[first : first + _COPIED_ROWS]))
        assert isinstance(rows, Tensor)
        out[first : first + len(rows)] = rows
    return out


def save_rows_in_files(mapped_graph: MappedGraph | None) -> AbstractContextManager[object]:
    """Context of a forward pass whose rows autograd saves in files; in memory if there are no files of rows."""
    if mapped_graph is None or not mapped_graph.maps_rows:
        return nullcontext()
    files = mapped_graph

    def pack(saved: Tensor) -> Tensor:
        # Parameters are read by all layers, and what is in a file already needs no other.
        if saved.nbytes < _LEAST_BYTES or (saved.is_leaf and saved.requires_grad) or files.holds(saved):
            return saved
        return _copy_with_strides(saved, files)

    return torch.autograd.graph.saved_tensors_hooks(pack, _unpack)


def _unpack(saved: Tensor) -> Tensor:
    return saved


def _copy_with_strides(rows: Tensor, files: MappedGraph) -> Tensor:
    """Return a copy in a file. Padding between rows, which kernels rely on, is there too, and zero."""
    strides = rows.stride()
    if rows.dim() < 2 or strides[0] <= rows[:1].numel() or not rows[:1].is_contiguous():
        return files.allocate(tuple(rows.shape), rows.dtype).copy_(rows)
    whole = files.allocate((len(rows) * strides[0],), rows.dtype)
    return whole.as_strided(rows.shape, strides).copy_(rows)
