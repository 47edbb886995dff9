"""Exchange between whole rows of own nodes and column slices of all nodes.

*Split* gives every worker its columns of the rows of all nodes; *gather* gives every worker the whole rows of
its own nodes. Both are an all-to-all, and each is the other's backward. Of ``sum_i rows_i * D`` numbers each
sends ``sum_i rows_i * (D - D_i)``: all but those that stay with their worker. Ai et al.: NeutronTP, PVLDB
18(2), 2024, section 3.1.

Letters: ``n`` own nodes, ``V`` all nodes, ``C`` channels, ``F`` columns, ``f`` those of the worker's slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.ops.backend import once_differentiable
from outgrow.ops.memory_pool import pooled_empty
from outgrow.ops.subgraph import are_consecutive
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.comm import Comm, ExchangeHandle

ColumnRanges = Sequence[tuple[int, int]]
"""First and last column (plus 1) of each worker."""


def column_ranges(columns: int, workers: int) -> ColumnRanges:
    """Divide columns evenly: slices differ by at most one column, and some are empty if columns are few."""
    ends = [columns * worker // workers for worker in range(workers + 1)]
    return list(pairwise(ends))


def slice_split_sizes(nodes: Sequence[int], rank: int, channels: int, ranges: ColumnRanges) -> SplitSizes:
    """Return how many numbers a split sends to and receives from each worker; a gather reverses it.

    Args:
        nodes: Number of whole rows of each worker.
        rank: Rank of the worker.
        channels: ``C``.
        ranges: Columns of each worker.
    """
    first, last = ranges[rank]
    send = tuple(nodes[rank] * channels * (end - begin) for begin, end in ranges)
    return SplitSizes(send, tuple(count * channels * (last - first) for count in nodes))


class RowPermutation(NamedTuple):
    """The permutation between rows in the order of workers and rows in the order of nodes.

    Attributes:
        node: ``[V]`` int64, the node of each row by worker.
        row: ``[V]`` int64, the row by worker of each node.
    """

    node: Tensor
    row: Tensor


class PendingSlices(NamedTuple):
    """A split in progress.

    Attributes:
        arrival: Handle of the exchange.
        shape: ``(V, C, f)``.
        permutation: Order in which rows come in; None for that of nodes.
        device: Device of the result.
    """

    arrival: ExchangeHandle
    shape: tuple[int, int, int]
    permutation: RowPermutation | None
    device: torch.device

    def wait(self) -> Tensor:
        """Wait for the slices and return them in the order of nodes, ``[V, C, f]``."""
        rows = self.arrival.wait().view(self.shape)
        rows = rows if self.permutation is None else _permute_rows(rows, self.permutation.row, self.permutation.node)
        return rows.to(self.device)


class ColumnExchange:
    """Splits and gathers of rows. All workers make and call it together, in the same order. Final.

    Whole rows are on ``row_device``, slices on the worker's device.

    Args:
        comm: Communicator of the workers.
        own: ``[n]`` int64, the nodes of this worker; all nodes belong to one worker each.
        row_device: Device of whole rows, from which they are sent; None for the worker's device.
    """

    def __init__(self, comm: Comm, own: Tensor, row_device: torch.device | None = None) -> None:
        self.comm = comm
        self.row_device = row_device or comm.device
        first = int(own[0]) if len(own) else -1
        # If every worker owns a range and the ranges follow each other, exchanged rows are in node order
        # already.
        ranges = comm.all_gather_object((first, len(own), are_consecutive(own)))
        self.num_owned = [count for _, count, _ in ranges]
        before = [sum(self.num_owned[:rank]) for rank in range(comm.size)]
        in_order = all(
            together and (not count or begin == place)
            for (begin, count, together), place in zip(ranges, before, strict=True)
        )
        self.permutation = None if in_order else self._make_permutation(own)

    def _make_permutation(self, own: Tensor) -> RowPermutation:
        # Both directions are kept, since the gradient of one is a gather by the other and needs no scatter.
        node = self._all_gather(own[:, None], Kind.IDS)[:, 0]
        row = torch.empty_like(node)
        row[node] = torch.arange(len(node))
        return RowPermutation(node.to(self.row_device), row.to(self.row_device))

    def local_columns(self, columns: int) -> tuple[int, int]:
        """Return the first and last column (plus 1) of this worker's slice."""
        return column_ranges(columns, self.comm.size)[self.comm.rank]

    def to_slices(self, rows_nCF: Tensor, kind: Kind) -> PendingSlices:
        """Start sending own rows; the handle gives the worker's columns of all nodes. Differentiable."""
        _, channels, columns = rows_nCF.shape
        cut = column_ranges(columns, self.comm.size)
        rank = self.comm.rank
        first, last = cut[rank]
        shape = sum(self.num_owned), channels, last - first
        route = slice_split_sizes(self.num_owned, rank, channels, cut)
        return PendingSlices(
            self.comm.all_to_all(_split_autograd(rows_nCF, cut), route, kind), shape, self.permutation, self.comm.device
        )

    def to_rows(self, slices_VCf: Tensor, columns: int, kind: Kind) -> Tensor:
        """Return whole rows of the own nodes, ``[n, C, F]``. Differentiable.

        Args:
            slices_VCf: The worker's columns of all nodes.
            columns: ``F``.
            kind: Kind of the rows, for the ledger.
        """
        channels = slices_VCf.shape[1]
        rank = self.comm.rank
        cut = column_ranges(columns, self.comm.size)
        route = slice_split_sizes(self.num_owned, rank, channels, cut).reverse
        slices_VCf = slices_VCf.to(self.row_device)
        # The exchange sends ranges of rows, so those of each owner must lie together.
        if self.permutation is not None:
            slices_VCf = _permute_rows(slices_VCf, self.permutation.node, self.permutation.row)
        flat = self.comm.all_to_all(slices_VCf.reshape(-1), route, kind).wait()
        return _merge_autograd(flat, (self.num_owned[rank], channels, columns), cut)

    def all_gather_rows(self, rows_nK: Tensor, kind: Kind) -> Tensor:
        """Return narrow rows of all nodes, ``[V, K]``.

        Differentiable: gradients are summed in the order of the workers.
        """
        rows = self._all_gather(rows_nK.to(self.row_device), kind)
        rows = rows if self.permutation is None else _permute_rows(rows, self.permutation.row, self.permutation.node)
        return rows.to(self.comm.device)

    def _all_gather(self, rows_nK: Tensor, kind: Kind) -> Tensor:
        size = self.comm.size
        own = len(rows_nK)
        if size == 1:
            return rows_nK
        # An all-to-all of copies: its backward keeps the workers' gradients apart, and that of ``expand``
        # adds them up in the order of the workers.
        copies = rows_nK.expand(size, *rows_nK.shape).flatten(0, 1)
        return self.comm.all_to_all(copies, SplitSizes((own,) * size, tuple(self.num_owned)), kind).wait()


def _permute_rows(rows: Tensor, to: Tensor, back: Tensor) -> Tensor:
    """Return rows in the order ``to``, a permutation with the inverse ``back``."""
    return _PermuteRows.apply(rows, to, back)  # type: ignore[no-any-return, no-untyped-call]


def _split_autograd(rows_nCF: Tensor, ranges: ColumnRanges) -> Tensor:
    if len(ranges) == 1:
        return rows_nCF.reshape(-1)
    # A custom function, since autograd of slicing and concatenating would copy the rows once more.
    return _SplitSlices.apply(rows_nCF, ranges)  # type: ignore[no-any-return, no-untyped-call]


def _merge_autograd(flat: Tensor, shape: tuple[int, int, int], ranges: ColumnRanges) -> Tensor:
    if len(ranges) == 1:
        return flat.view(shape)
    return _MergeSlices.apply(flat, shape, ranges)  # type: ignore[no-any-return, no-untyped-call]


def _slice_views(flat: Tensor, shape: Sequence[int], ranges: ColumnRanges) -> list[Tensor]:
    """Return views of the slices of ``[n, C, F]`` rows, which are stored one after the other."""
    own, channels, _ = shape
    sizes = [own * channels * (end - begin) for begin, end in ranges]
    pairs = zip(torch.split(flat, sizes), ranges, strict=True)
    return [piece.view(own, channels, end - begin) for piece, (begin, end) in pairs]


def split_slices(rows_nCF: Tensor, ranges: ColumnRanges) -> Tensor:
    """Return the slices of all workers, one after the other, ``[n * C * F]``."""
    flat = pooled_empty((rows_nCF.numel(),), rows_nCF)
    for piece, (begin, end) in zip(_slice_views(flat, rows_nCF.shape, ranges), ranges, strict=True):
        piece.copy_(rows_nCF[:, :, begin:end])
    return flat


def merge_slices(flat: Tensor, shape: tuple[int, int, int], ranges: ColumnRanges) -> Tensor:
    """Return rows, ``[n, C, F]``, from slices that are stored one after the other."""
    rows_nCF = pooled_empty(shape, flat)
    for piece, (begin, end) in zip(_slice_views(flat, shape, ranges), ranges, strict=True):
        rows_nCF[:, :, begin:end] = piece
    return rows_nCF


class _PermuteRows(torch.autograd.Function):
    """Reorder rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, to: Tensor, back: Tensor) -> Tensor:
        ctx.back = back
        return rows.index_select(0, to)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.index_select(0, ctx.back), None, None


class _SplitSlices(torch.autograd.Function):
    """Convert rows into the slices of all workers, one after the other."""

    @staticmethod
    def forward(ctx: Any, rows_nCF: Tensor, cut: ColumnRanges) -> Tensor:
        ctx.shape = tuple(rows_nCF.shape)
        ctx.cut = cut
        return split_slices(rows_nCF, cut)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return merge_slices(grad, ctx.shape, ctx.cut), None


class _MergeSlices(torch.autograd.Function):
    """Convert the slices of all workers, one after the other, into rows."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, shape: tuple[int, int, int], cut: ColumnRanges) -> Tensor:
        ctx.cut = cut
        return merge_slices(flat, shape, cut)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_nCF: Tensor) -> tuple[Tensor, None, None]:
        return split_slices(grad_nCF, ctx.cut), None, None
