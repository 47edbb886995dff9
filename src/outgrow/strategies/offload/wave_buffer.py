"""Device buffer of source rows and of their gradients.

Letters: ``B`` places of the buffer, ``W`` numbers in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.core.ledger import Kind
from outgrow.nn.layer import Features, NodeMessages
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.memory_pool import pooled_empty, pooled_empty_rows
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.offload.wave import EVICTED, LOADED, RowList, Wave


class ReadableRows(Protocol):
    """Rows in the HOST tier."""

    @property
    def width(self) -> int:
        """Numbers in a row."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the numbers."""

    def read_wave(self, row_list: RowList, at_N: Tensor, out_BW: Tensor, wave: int) -> None:
        """``out[at] =`` rows of the wave of a number; ``at`` is on the device of ``out``."""


class SourceBuffer:
    """Rows of sources, at their places. Final.

    Args:
        num_slots: ``B``.
        table: Where rows come from.
        kind: What they are.
        comm: The line to the other workers.

    Attributes:
        rows: ``[B, W]``; places that no row has taken yet are zero.
    """

    def __init__(self, num_slots: int, table: ReadableRows, kind: Kind, comm: Comm) -> None:
        self.rows = zero_rows(num_slots, table.width, table.dtype, comm.device)
        self._table = table
        self._kind = kind
        self._comm = comm

    @staticmethod
    def rows_to_load(wave: Wave) -> RowList:
        """The rows that come from HOST."""
        return wave.rows_at("loads", LOADED)

    def load_rows(self, wave: Wave, number: int) -> None:
        """Bring the rows from HOST that arrive."""
        arriving = self.rows_to_load(wave)
        self._table.read_wave(arriving, wave.slots_at("loads", LOADED), self.rows, number)
        self._comm.ledger.add_count("rows_loaded", len(arriving.slot))
        kept = (len(wave.loads.slot) - len(arriving.slot)) * self._row_bytes
        self._comm.ledger.add_count("reused_bytes", kept)

    def exchange_rows(self, wave: Wave) -> None:
        """Send rows that arrive at others, and take in theirs."""
        if self._comm.size == 1:
            return
        sent = select_rows(self.rows, wave.slots_at("sent", LOADED))
        came = self._comm.all_to_all(sent, wave.split_sizes_at(LOADED), self._kind).wait()
        self.rows.index_copy_(0, wave.slots_at("remote", LOADED).long(), came)
        self._comm.ledger.add_count("remote_rows", len(came))

    @property
    def _row_bytes(self) -> int:
        return self.rows.shape[1] * self.rows.element_size()


class GradientBuffer:
    """Gradients of sources, at the places of their rows. Final.

    Args:
        places: ``B``.
        width: ``W``.
        dtype: Of the gradients.
        comm: The line to the other workers.
        sharing: Whether gradients of rows of others go to them.
    """

    def __init__(self, num_slots: int, width: int, dtype: torch.dtype, comm: Comm, *, sharing: bool) -> None:
        self._rows = zero_rows(num_slots, width, dtype, comm.device)
        self._comm = comm
        self._sharing = sharing

    def zero_new_rows(self, wave: Wave) -> None:
        """Rows that arrive have no gradient yet."""
        for at in (wave.slots_at("loads", LOADED), wave.slots_at("remote", LOADED)):
            self._rows.index_fill_(0, at.long(), 0)

    def add_wave_grad(self, grad_BW: Tensor) -> None:
        """Add the gradient of the buffer's rows in one wave."""
        self._rows.add_(grad_BW)

    def add_weighted_sums(self, edges: Edges, weight_EK: Tensor | None, grad_VdKF: Tensor, channels: int) -> None:
        """Add the gradient of the buffer's rows in one wave, of which weighted sums were made: see `WeightedSum`."""
        into = torch.unflatten(self._rows, 1, (channels, grad_VdKF.shape[2]))
        WeightedSum.source_gradient(edges, weight_EK, grad_VdKF, channels, into=into)

    def send_remote(self, wave: Wave) -> None:
        """Send gradients of others' rows that leave to these, and add theirs, worker by worker."""
        if self._comm.size == 1 or not self._sharing:
            return
        leaving = select_rows(self._rows, wave.slots_at("remote", EVICTED))
        came = self._comm.all_to_all(leaving, wave.split_sizes_at(EVICTED), Kind.GRADIENTS).wait()
        counts = wave.rows_at("sent", EVICTED).counts
        places = wave.slots_at("sent", EVICTED).split_with_sizes(counts)
        for at, rows in zip(places, came.split_with_sizes(counts), strict=True):
            self._rows.index_add_(0, at.long(), rows)

    def evicted_rows(self, wave: Wave) -> tuple[RowList, Tensor]:
        """The rows that go to HOST, and ``[N, W]`` their gradients side by side: so they leave the device."""
        return wave.rows_at("loads", EVICTED), select_rows(self._rows, wave.slots_at("loads", EVICTED))


def select_rows(rows_BW: Tensor, slot_N: Tensor) -> Tensor:
    """``[N, W]``: the rows at some places."""
    out = pooled_empty((len(slot_N), rows_BW.shape[1]), rows_BW)
    return torch.index_select(rows_BW, 0, slot_N, out=out)


def zero_rows(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``[rows, width]`` zeros."""
    return pooled_empty_rows(rows, (width,), torch.empty(0, dtype=dtype, device=device)).zero_()


GradientAdder = Callable[[GradientBuffer], None]
"""Adds the gradient of a wave's source rows to those at their places."""


def no_gradient(gradients: GradientBuffer) -> None:
    """Source rows that have no gradient."""


def detached_leaf(rows: Features | None, *, trains: bool) -> Features:
    """Rows at which a gradient ends."""
    assert rows is not None
    return rows.detach().requires_grad_(trains) if isinstance(rows, Tensor) else rows


def grad_or_zeros(rows: Tensor) -> Tensor:
    """The gradient that ended at rows; zeros if none did."""
    return torch.zeros_like(rows) if rows.grad is None else rows.grad


def backward_through(rows: NodeMessages, grad: NodeMessages, *others: tuple[Features, Tensor]) -> None:
    """Backward from rows of sources and from other results, where they depend on anything."""
    outs = list[Tensor]()
    grads = list[Tensor | None]()
    for out, given in (*zip(rows, grad, strict=True), *others):
        if isinstance(out, Tensor) and out.requires_grad:
            outs.append(out)
            grads.append(given)
    if outs:
        torch.autograd.backward(outs, grads)
