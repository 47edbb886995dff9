"""Rows of a worker's own nodes in mapped files: its features, and what autograd saves for the backward pass.

Then a worker holds the rows of one layer at a time. The system caches as much of the files as fits into memory. Beside
a GPU the features stay on it, and what is saved is copied to the files and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.features.inputs import cast_features
from outgrow.engine.shard import GraphShard
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.ops.sparse import index_rows
from outgrow.runtime.system.device import CPU
from outgrow.strategies.tensor.device_copies import DeviceCopies
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
    in_files = mapped_graph is not None and mapped_graph.maps_rows and device == CPU
    if mapped_graph is None or not in_files or not isinstance(features, Tensor):
        return cast_features(model, shard.select_owned(features)).to(device)
    own = shard.owned_nodes
    out = mapped_graph.allocate((len(own), *features.shape[1:]), cast_features(model, features[:0]).dtype)
    for first in range(0, len(own), _COPIED_ROWS):
        rows = cast_features(model, index_rows(features, own[first : first + _COPIED_ROWS]))
        assert isinstance(rows, Tensor)
        out[first : first + len(rows)] = rows
    return out


def save_rows_in_files(
    mapped_graph: MappedGraph | None, constants: Sequence[Tensor], copies: DeviceCopies
) -> AbstractContextManager[object]:
    """Context of a forward pass whose rows autograd saves in files; in memory if there are no files of rows.

    Args:
        mapped_graph: The files; None for memory.
        constants: Tensors that are held in any case, and so need no copy.
        copies: Copies rows from a GPU, and back.
    """
    if mapped_graph is None or not mapped_graph.maps_rows:
        return nullcontext()
    files = mapped_graph
    # What has no numbers has the address 0.
    held = {each.untyped_storage().data_ptr() for each in constants} - {0}

    def pack(saved: Tensor) -> Tensor | _FiledRows:
        # Parameters are read by all layers, and what is in a file already needs no other.
        if saved.nbytes < _LEAST_BYTES or (saved.is_leaf and saved.requires_grad) or files.holds(saved):
            return saved
        if saved.untyped_storage().data_ptr() in held:
            return saved
        return _copy_with_strides(saved, files, copies)

    def unpack(saved: Tensor | _FiledRows) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        numbers = copies.move_rows(saved.numbers, saved.device, Kind.ACTIVATIONS)
        return numbers.as_strided(saved.shape, saved.strides)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


class _FiledRows(NamedTuple):
    """Rows that are in a file: its numbers, shape and strides of the rows, and the device that they are read on."""

    numbers: Tensor
    shape: torch.Size
    strides: tuple[int, ...]
    device: torch.device


def _copy_with_strides(rows: Tensor, files: MappedGraph, copies: DeviceCopies) -> _FiledRows:
    """Return a copy in a file. Padding between rows, which kernels of a CPU rely on, is there too, and zero."""
    strides = rows.stride()
    if rows.device != CPU or rows.dim() < 2 or strides[0] <= rows[:1].numel() or not rows[:1].is_contiguous():
        strides = torch.empty(rows.shape, device="meta").stride()
        count = rows.numel()
    else:
        count = len(rows) * strides[0]
    numbers = files.allocate((count,), rows.dtype)
    numbers.as_strided(rows.shape, strides).copy_(copies.move_rows(rows, CPU, Kind.ACTIVATIONS))
    return _FiledRows(numbers, rows.shape, strides, rows.device)
