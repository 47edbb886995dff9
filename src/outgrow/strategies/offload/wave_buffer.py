"""Device buffers of source rows and of their gradients.

Letters: ``B`` slots of the buffer, ``W`` elements of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.core.graph_types import RowWidths
from outgrow.core.ledger import Kind
from outgrow.engine.packed_rows import RowPacking
from outgrow.nn.layer import Features, NodeMessages
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.memory_pool import pooled_empty, pooled_empty_rows
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.offload.memory_votes import MemoryVotes
from outgrow.strategies.offload.wave import EVICTED, LOADED, RowList, Wave


class ReadableRows(Protocol):
    """Rows in the HOST tier."""

    @property
    def width(self) -> int:
        """Elements per row."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of the elements."""

    def read_wave(self, row_list: RowList, at_N: Tensor, out_BW: Tensor, wave: int) -> None:
        """Copy the new rows of wave number ``wave`` into ``out[at]``; ``at`` is on the device of ``out``."""


class SourceBuffer:
    """Source rows in their slots. Final.

    Args:
        num_slots: ``B``.
        table: Source of the rows in the HOST tier.
        kind: Ledger category of the rows.
        comm: Communicator.
        widths: Columns that each type of nodes uses; None for all.
        votes: By which workers agree that all is well before they exchange rows; None for no votes.

    Attributes:
        rows: ``[B, W]``; slots that were never used are zero.
    """

    def __init__(
        self,
        num_slots: int,
        table: ReadableRows,
        kind: Kind,
        comm: Comm,
        widths: RowWidths | None = None,
        votes: MemoryVotes | None = None,
    ) -> None:
        self.rows = zero_rows(num_slots, table.width, table.dtype, comm.device)
        self._table = table
        self._kind = kind
        self._comm = comm
        self._widths = widths
        self._votes = votes

    @staticmethod
    def rows_to_load(wave: Wave) -> RowList:
        """Return the rows to load from HOST."""
        return wave.rows_at("loads", LOADED)

    def load_rows(self, wave: Wave, number: int) -> None:
        """Load the new rows from HOST into their slots."""
        loaded = self.rows_to_load(wave)
        self._table.read_wave(loaded, wave.slots_at("loads", LOADED), self.rows, number)
        self._comm.ledger.add_count("rows_loaded", len(loaded.slot))
        kept = (len(wave.loads.slot) - len(loaded.slot)) * self._row_bytes
        self._comm.ledger.add_count("reused_bytes", kept)

    def exchange_rows(self, wave: Wave) -> None:
        """Send new rows to the workers that need them, and store the received ones."""
        if self._comm.size == 1:
            return
        if self._votes is not None:
            self._votes.check()
        # Only new rows: a peer that kept a row from the previous wave still has it.
        sent = select_rows(self.rows, wave.slots_at("sent", LOADED))
        received = _exchange_rows(sent, wave, LOADED, self._kind, self._comm, self._widths)
        self.rows.index_copy_(0, wave.slots_at("remote", LOADED).long(), received)
        self._comm.ledger.add_count("remote_rows", len(received))

    @property
    def _row_bytes(self) -> int:
        return self.rows.shape[1] * self.rows.element_size()


class GradientBuffer:
    """Gradients of source rows, in the slots of their rows. Final.

    Args:
        num_slots: ``B``.
        width: ``W``.
        dtype: Type of the gradients.
        comm: Communicator.
        sharing: Whether gradients of remote rows are sent to their owners.
        widths: Columns that each type of nodes uses; None for all.
        votes: See `SourceBuffer`.
    """

    def __init__(
        self,
        num_slots: int,
        width: int,
        dtype: torch.dtype,
        comm: Comm,
        sharing: bool,
        widths: RowWidths | None = None,
        votes: MemoryVotes | None = None,
    ) -> None:
        self._rows = zero_rows(num_slots, width, dtype, comm.device)
        self._comm = comm
        self._sharing = sharing
        self._widths = widths
        self._votes = votes

    def zero_new_rows(self, wave: Wave) -> None:
        """Zero the slots of new rows."""
        # Each slot still holds the gradient of the evicted row that used it before.
        for at in (wave.slots_at("loads", LOADED), wave.slots_at("remote", LOADED)):
            self._rows.index_fill_(0, at.long(), 0)

    def add_wave_grad(self, grad_BW: Tensor) -> None:
        """Add the gradient ``[B, W]`` of one wave to the buffer."""
        self._rows.add_(grad_BW)

    def add_weighted_sums(self, edges: Edges, weight_EK: Tensor | None, grad_VdKF: Tensor, channels: int) -> None:
        """Add the gradient of a weighted sum over the buffer's rows in one wave; see `WeightedSum`."""
        # Accumulate straight into the buffer: a gradient tensor of its size is never allocated.
        into = torch.unflatten(self._rows, 1, (channels, grad_VdKF.shape[2]))
        WeightedSum.source_gradient(edges, weight_EK, grad_VdKF, channels, into=into)

    def send_remote(self, wave: Wave) -> None:
        """Send gradients of evicted remote rows to their owners, and add the received ones."""
        if self._comm.size == 1 or not self._sharing:
            return
        if self._votes is not None:
            self._votes.check()
        evicted = select_rows(self._rows, wave.slots_at("remote", EVICTED))
        received = _exchange_rows(evicted, wave, EVICTED, Kind.GRADIENTS, self._comm, self._widths)
        counts = wave.rows_at("sent", EVICTED).counts
        slots = wave.slots_at("sent", EVICTED).split_with_sizes(counts)
        # One peer after another: slots repeat between peers, and a fixed order keeps sums reproducible.
        for at, rows in zip(slots, received.split_with_sizes(counts), strict=True):
            self._rows.index_add_(0, at.long(), rows)

    def evicted_rows(self, wave: Wave) -> tuple[RowList, Tensor]:
        """Return the evicted rows and ``[N, W]`` their gradients, contiguous for the copy to HOST."""
        # A copy: the next wave overwrites these slots while the write is still pending.
        return wave.rows_at("loads", EVICTED), select_rows(self._rows, wave.slots_at("loads", EVICTED))


def _exchange_rows(rows_NW: Tensor, wave: Wave, event: int, kind: Kind, comm: Comm, widths: RowWidths | None) -> Tensor:
    """Send loaded rows, or gradients of evicted ones, to the workers of their way; return those of others."""
    sizes = wave.split_sizes_at(event)
    if widths is None:
        return comm.all_to_all(rows_NW, sizes, kind).wait()
    nodes = wave.nodes_at("sent", event), wave.nodes_at("remote", event)
    sent, received = nodes if event == LOADED else nodes[::-1]
    given, taken = RowPacking(widths, sent, sizes.send), RowPacking(widths, received, sizes.receive)
    vector = comm.all_to_all(given.copy_used(rows_NW), SplitSizes(given.sizes, taken.sizes), kind).wait()
    return taken.copy_back(vector)


def select_rows(rows_BW: Tensor, slot_N: Tensor) -> Tensor:
    """Return ``[N, W]``: the rows in some slots."""
    out = pooled_empty((len(slot_N), rows_BW.shape[1]), rows_BW)
    return torch.index_select(rows_BW, 0, slot_N, out=out)


def zero_rows(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return ``[rows, width]`` zeros."""
    return pooled_empty_rows(rows, (width,), torch.empty(0, dtype=dtype, device=device)).zero_()


GradientAdder = Callable[[GradientBuffer], None]
"""Adds the gradient of a wave's source rows to the buffer."""


def no_gradient(gradients: GradientBuffer) -> None:
    """Add nothing, for source rows without a gradient."""


def detached_leaf(rows: Features | None, *, trains: bool) -> Features:
    """Return rows cut from the autograd graph, as a leaf that collects their gradient if it ``trains``."""
    assert rows is not None
    return rows.detach().requires_grad_(trains) if isinstance(rows, Tensor) else rows


def grad_or_zeros(rows: Tensor) -> Tensor:
    """Return the gradient of a leaf; zeros if it has none."""
    return torch.zeros_like(rows) if rows.grad is None else rows.grad


def backward_through(rows: NodeMessages, grad: NodeMessages, *others: tuple[Features, Tensor]) -> None:
    """Run backward from source rows and other outputs, skipping those without a graph."""
    outs = list[Tensor]()
    grads = list[Tensor | None]()
    for out, given in (*zip(rows, grad, strict=True), *others):
        if isinstance(out, Tensor) and out.requires_grad:
            outs.append(out)
            grads.append(given)
    # One call for all outputs, so that the graph they share is traversed once.
    if outs:
        torch.autograd.backward(outs, grads)
