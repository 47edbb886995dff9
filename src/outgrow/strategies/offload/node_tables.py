"""Rows in the HOST tier that lie by node: features, and what layers make, where others or a GPU read it there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from outgrow.core.ledger import Kind, Link
from outgrow.engine.features.inputs import cast_features, keeps_half
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.ops.memory_pool import pooled_empty
from outgrow.ops.rows.gather import via_host
from outgrow.runtime.distributed.comm import Comm, SingleProcessComm
from outgrow.runtime.storage.row_storage import RowStorage
from outgrow.runtime.system.device import to_host
from outgrow.strategies.offload.wave import RowList

_CLEARED_BYTES = 1 << 20
_ON_CPU = torch.empty(0)


class NodeRows:
    """Rows of nodes, of this worker and, where nothing is shared, of others, which then read and write each other's.

    Args:
        by_owner: The rows of workers.
        kind: What they are.
        comm: The line to the other workers.
    """

    def __init__(self, by_owner: Mapping[int, RowStorage], kind: Kind, comm: Comm) -> None:
        self._by_owner = by_owner
        self._own = by_owner[comm.rank]
        self._kind = kind
        self._ledger = comm.ledger
        self._device = comm.device

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return self._own.width

    @property
    def dtype(self) -> torch.dtype:
        """Type of the values."""
        return self._own.dtype

    def read_wave(self, row_list: RowList, at_N: Tensor, out_BW: Tensor, wave: int) -> None:
        """Rows, to their places."""
        row, places = (part.split_with_sizes(row_list.counts) for part in (row_list.row.to(self._own.device), at_N))
        for owner, count in enumerate(row_list.counts):
            if not count:
                continue
            read = partial(self._by_owner[owner].read_rows, row[owner])
            if self._own.device == self._device:
                read(out_BW, places[owner])
            else:
                via_host(read, out_BW, places[owner])
        self._count_bytes(Link.HOST_TO_DEVICE, len(row_list.row))

    def read_range(self, first: int, last: int) -> Tensor:
        """``[last - first, W]``: a range of own rows."""
        out = pooled_empty((last - first, self.width), torch.empty(0, device=self._own.device), self.dtype)
        self._own.read_range(first, last, out)
        self._count_bytes(Link.HOST_TO_DEVICE, last - first)
        return out.to(self._device)

    def write_rows(self, first: int, rows_NW: Tensor) -> None:
        """Own rows from ``first`` on."""
        self._own.write_range(first, rows_NW if self._own.device == self._device else to_host(rows_NW))
        self._count_bytes(Link.DEVICE_TO_HOST, len(rows_NW))

    def add_rows(self, row_list: RowList, values_NW: Tensor, owner: int) -> None:
        """Add to rows of one worker: in memory, as they come from the device side by side."""
        self._by_owner[owner].add_rows(row_list.row, to_host(values_NW), torch.arange(len(values_NW)))
        self._count_bytes(Link.DEVICE_TO_HOST, len(values_NW))

    def clear_rows(self) -> None:
        """Set all own rows to zero."""
        step = max(1, _CLEARED_BYTES // max(1, self.width * self.dtype.itemsize))
        zeros = torch.zeros(min(step, self._own.num_rows), self.width, dtype=self.dtype)
        for first in range(0, self._own.num_rows, step):
            self._own.write_range(first, zeros[: self._own.num_rows - first])

    def close(self) -> None:
        """Close all files."""
        for rows in self._by_owner.values():
            rows.close()

    def _count_bytes(self, link: Link, rows: int) -> None:
        self._ledger.add_bytes(link, self._kind, rows * self.width * self.dtype.itemsize)


class FeatureRows:
    """Raw features, as the graph has them. Final.

    Args:
        model: What will be computed.
        features: ``[V, D]`` of all nodes.
        rows: The same in the HOST tier; None for sparse ones and blocks, which are read where they lie.
        own: ``[n]`` int64, the own nodes.
        comm: The line to the other workers.
    """

    def __init__(self, model: Model, features: Features, rows: RowStorage | None, own: Tensor, comm: Comm) -> None:
        self._model = model
        self._features = features
        self._rows = rows
        self._own = own
        self._ledger = comm.ledger
        self._device = comm.device
        self.width = features.shape[1]
        self.dtype = features.dtype if keeps_half(model, features) else model.dtype

    def read_wave(self, row_list: RowList, at_N: Tensor, out_BW: Tensor, wave: int) -> None:
        """Rows, to their places."""
        assert self._rows is not None
        places = at_N.split_with_sizes(row_list.counts)
        for owner in range(len(row_list.counts)):  # those of one worker are ascending
            part = row_list.of_owner(owner)
            via_host(partial(self._read_nodes, part.node), out_BW, places[owner])

    def read_range(self, first: int, last: int) -> Features:
        """``[last - first, D]``: a range of own rows, of the type that the model computes with."""
        nodes = self._own[first:last]
        if self._rows is None:
            assert not isinstance(self._features, Tensor)
            found = self._features.index_rows(nodes)
            self._ledger.add_bytes(Link.HOST_TO_DEVICE, Kind.FEATURES, found.nbytes)
            return cast_features(self._model, found).to(self._device)
        out = pooled_empty((last - first, self.width), _ON_CPU, self.dtype)
        self._read_nodes(nodes, out, torch.arange(last - first))
        return out.to(self._device)

    def without_ledger(self) -> FeatureRows:
        """The same rows, in memory and not counted, to copy them within the HOST tier."""
        return FeatureRows(self._model, self._features, self._rows, self._own, SingleProcessComm())

    def close(self) -> None:
        """Close the file."""
        if self._rows is not None:
            self._rows.close()

    def _read_nodes(self, nodes: Tensor, out_MW: Tensor, to: Tensor) -> None:
        rows = self._rows
        assert rows is not None
        if rows.dtype.itemsize > self.dtype.itemsize:  # rounding is not for the threads that read
            wide = torch.empty(len(nodes), self.width, dtype=rows.dtype)
            rows.read_rows(nodes, wide, torch.arange(len(nodes)))
            out_MW.index_copy_(0, to.long(), wide.to(self.dtype))
        else:
            rows.read_rows(nodes, out_MW, to)
        self._ledger.add_bytes(Link.HOST_TO_DEVICE, Kind.FEATURES, len(nodes) * self.width * rows.dtype.itemsize)
