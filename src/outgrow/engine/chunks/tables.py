"""Rows in the HOST tier that lie by node: features, and what layers make where workers read those of others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outgrow.core.ledger import Ledger
from outgrow.core.types import Kind, Link
from outgrow.engine.chunks.wave import Held
from outgrow.engine.inputs import features_for, stay_half
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.ops.buffers import empty
from outgrow.ops.sparse import SparseRows
from outgrow.runtime.host_rows import HostRows

_CLEARED_BYTES = 1 << 20
_ON_CPU = torch.empty(0)


class Table:
    """Rows that layers make, in scratch files that all workers read and write: where nothing is shared. Final.

    Args:
        by_owner: The rows of each worker.
        rank: The worker.
        kind: What they are.
        ledger: Where bytes are counted.
    """

    def __init__(self, by_owner: Sequence[HostRows], rank: int, kind: Kind, ledger: Ledger) -> None:
        self._by_owner, self._own, self._kind, self._ledger = by_owner, by_owner[rank], kind, ledger

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return self._own.width

    @property
    def dtype(self) -> torch.dtype:
        """Of the numbers."""
        return self._own.dtype

    def read(self, held: Held, out_BW: Tensor, wave: int) -> None:
        """Rows, to their places."""
        for owner, rows in enumerate(self._by_owner):
            if owner < len(held.counts) and held.counts[owner]:
                part = held.of(owner)
                rows.read(part.row, out_BW, part.at)
        self._count(Link.HOST_TO_DEVICE, len(held.row))

    def piece(self, first: int, last: int) -> Tensor:
        """``[last - first, W]``: a range of own rows."""
        out = empty((last - first, self.width), _ON_CPU, self.dtype)
        self._own.read_range(first, last, out)
        self._count(Link.HOST_TO_DEVICE, last - first)
        return out

    def write(self, first: int, rows_NW: Tensor) -> None:
        """Own rows from ``first`` on."""
        self._own.write_range(first, rows_NW)
        self._count(Link.DEVICE_TO_HOST, len(rows_NW))

    def add(self, held: Held, values_NW: Tensor, owner: int) -> None:
        """Add to rows of one worker."""
        self._by_owner[owner].add(held.row, values_NW, torch.arange(len(values_NW)))
        self._count(Link.DEVICE_TO_HOST, len(values_NW))

    def clear(self) -> None:
        """Set all own rows to zero."""
        step = max(1, _CLEARED_BYTES // max(1, self.width * self.dtype.itemsize))
        zeros = torch.zeros(min(step, self._own.num_rows), self.width, dtype=self.dtype)
        for first in range(0, self._own.num_rows, step):
            self._own.write_range(first, zeros[: self._own.num_rows - first])

    def close(self) -> None:
        """Close all files."""
        for rows in self._by_owner:
            rows.close()

    def _count(self, link: Link, rows: int) -> None:
        self._ledger.move(link, self._kind, rows * self.width * self.dtype.itemsize)


class FeatureTable:
    """Raw features, as the graph has them. Final.

    Args:
        model: What will be computed.
        features: ``[V, D]`` of all nodes.
        rows: The same in the HOST tier; None for sparse ones, which are read where they lie.
        own: ``[n]`` int64, the own nodes.
        ledger: Where bytes are counted.
    """

    def __init__(self, model: Model, features: Features, rows: HostRows | None, own: Tensor, ledger: Ledger) -> None:
        self._model, self._features, self._rows, self._own, self._ledger = model, features, rows, own, ledger
        self.width = features.shape[1]
        self.dtype = features.dtype if stay_half(model, features) else next(model.parameters()).dtype

    def read(self, held: Held, out_BW: Tensor, wave: int) -> None:
        """Rows, to their places."""
        assert self._rows is not None
        for owner in range(len(held.counts)):  # those of one worker are ascending
            part = held.of(owner)
            self._take(part.node, out_BW, part.at)

    def piece(self, first: int, last: int) -> Features:
        """``[last - first, D]``: a range of own rows, of the type that the model computes with."""
        nodes = self._own[first:last]
        if self._rows is None:
            assert isinstance(self._features, SparseRows)
            found = self._features.take(nodes)
            num_bytes = found.values.nbytes + found.indices.nbytes + found.indptr.nbytes
            self._ledger.move(Link.HOST_TO_DEVICE, Kind.FEATURES, num_bytes)
            return features_for(self._model, found)
        out = empty((last - first, self.width), _ON_CPU, self.dtype)
        self._take(nodes, out, torch.arange(last - first))
        return out

    def close(self) -> None:
        """Close the file."""
        if self._rows is not None:
            self._rows.close()

    def _take(self, nodes: Tensor, out_MW: Tensor, to: Tensor) -> None:
        rows = self._rows
        assert rows is not None
        if rows.dtype.itemsize > self.dtype.itemsize:  # rounding is not for the threads that read
            wide = torch.empty(len(nodes), self.width, dtype=rows.dtype)
            rows.read(nodes, wide, torch.arange(len(nodes)))
            out_MW.index_copy_(0, to.long(), wide.to(self.dtype))
        else:
            rows.read(nodes, out_MW, to)
        self._ledger.move(Link.HOST_TO_DEVICE, Kind.FEATURES, len(nodes) * self.width * rows.dtype.itemsize)
