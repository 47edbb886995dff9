"""Matrices assembled from rows of several sources, and the exchange of rows; dense or sparse."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.core.memory_limits import available_bytes
from outgrow.engine.features.stored_rows import StoredRows
from outgrow.nn.layer import Features
from outgrow.ops.block_rows import BlockRows, as_range, join_block_rows
from outgrow.ops.memory_pool import pooled_empty
from outgrow.ops.owned_rows import NodeFeatures, OwnedRows, held_rows
from outgrow.ops.rows.gather import gather_rows
from outgrow.ops.sparse import SparseRows
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.comm import Comm, ExchangeHandle
from outgrow.runtime.storage.row_file import IoPool, open_npy_rows

RowSource = NodeFeatures | StoredRows
"""Where rows of nodes are read from."""


_CACHED_SHARE = 0.5
"""Share of the memory that is left up to which a mapped file of features stays in it."""


def choose_row_source(
    features: NodeFeatures, file: Path | None, io_pool: Callable[[], IoPool], limit: int | None = None
) -> RowSource:
    """Return features as batches read them: in coalesced runs from their file if they are large beside memory.

    Otherwise they are read where they lie, mapped or not: a file that memory holds is read once.

    Args:
        features: ``[V, D]`` of all nodes, or of those of a part.
        file: The .npy file from which dense rows are mapped; None if there is none.
        io_pool: Returns the threads that read.
        limit: Limit on the memory of the worker, in bytes; None for what there is.
    """
    if file is None or not isinstance(held_rows(features), Tensor):
        return features
    memory = available_bytes() if limit is None else min(limit, available_bytes())
    if features.nbytes <= _CACHED_SHARE * memory:
        return features
    nodes, num_rows = (features.nodes, len(features)) if isinstance(features, OwnedRows) else (None, None)
    return StoredRows(open_npy_rows(io_pool(), file), nodes, num_rows)


def has_all_rows(rows: RowSource) -> bool:
    """Whether rows of all nodes can be read from here, and not of some nodes alone."""
    return not isinstance(rows, OwnedRows) and (not isinstance(rows, StoredRows) or rows.nodes is None)


class MatrixBuilder(ABC):
    """A matrix under construction."""

    @abstractmethod
    def write_rows(self, rows: RowSource, at: Tensor | None, to: Tensor | None) -> None:
        """Write rows ``at`` of a matrix to rows ``to`` of this one; None stands for all in order."""

    @abstractmethod
    def build_matrix(self) -> Features:
        """Return the matrix, once all rows are written; call it once: the builder no longer holds it."""


class DenseMatrixBuilder(MatrixBuilder):
    """A dense matrix under construction. Final.

    Args:
        num_rows: Number of rows.
        like: ``[V, D]`` matrix that rows come from.
        dtype: Type of the result.
    """

    def __init__(self, num_rows: int, like: Tensor | StoredRows, dtype: torch.dtype) -> None:
        self.out = pooled_empty((num_rows, like.shape[1]), torch.empty(0, device=like.device), dtype)

    def write_rows(self, rows: RowSource, at: Tensor | None, to: Tensor | None) -> None:
        """Write rows of a matrix to rows of this one."""
        if isinstance(rows, StoredRows):
            assert at is not None
            rows.read_nodes(at, self.out, to)
            return
        rows, at = _locate_rows(rows, at)
        assert isinstance(rows, Tensor)
        gather_rows(rows, at, self.out, to)

    def build_matrix(self) -> Features:
        """Return the matrix."""
        # Requests outlive their rows, which must be freed as soon as a batch is computed.
        matrix = self.out
        del self.out
        return matrix


class SparseMatrixBuilder(MatrixBuilder):
    """A sparse matrix under construction. Final.

    Args:
        dtype: Type of its values.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.parts: list[SparseRows] = []
        self.positions: list[Tensor | None] = []

    def write_rows(self, rows: RowSource, at: Tensor | None, to: Tensor | None) -> None:
        """Write rows of a matrix to rows of this one."""
        rows, at = _locate_rows(rows, at)
        assert isinstance(rows, SparseRows)
        self.parts.append((rows if at is None else rows.index_rows(at)).to(self.dtype))
        self.positions.append(to)

    def build_matrix(self) -> Features:
        """Return the matrix."""
        # Sizes of sparse rows differ, so parts are concatenated first and put in order at the end.
        first, *others = self.parts
        # A single part in order is the matrix already.
        if not others and self.positions[0] is None:
            return first
        sizes = [part.indptr[1:] - part.indptr[:-1] for part in self.parts]
        whole = SparseRows(
            indptr=torch.cat([first.indptr[:1], *sizes]).cumsum(0),
            indices=torch.cat([part.indices for part in self.parts]),
            values=torch.cat([part.values for part in self.parts]),
            num_columns=first.num_columns,
        )
        places = [
            torch.arange(len(part), device=part.device) if to is None else to
            for part, to in zip(self.parts, self.positions, strict=True)
        ]
        return whole.index_rows(torch.cat(places).argsort())


class BlockMatrixBuilder(MatrixBuilder):
    """A matrix of blocks under construction. Final.

    Args:
        num_rows: Number of rows.
        dtype: Type of its numbers.
    """

    def __init__(self, num_rows: int, dtype: torch.dtype) -> None:
        self.num_rows = num_rows
        self.dtype = dtype
        self.parts: list[BlockRows] = []
        self.positions: list[Tensor | None] = []

    def write_rows(self, rows: RowSource, at: Tensor | None, to: Tensor | None) -> None:
        """Write rows of a matrix to rows of this one."""
        rows, at = _locate_rows(rows, at)
        assert isinstance(rows, BlockRows)
        self.parts.append((rows if at is None else rows.index_rows(at)).to(self.dtype))
        self.positions.append(to)

    def build_matrix(self) -> Features:
        """Return the matrix."""
        # How many rows a block has is known once all are there.
        matrix = join_block_rows(self.parts, self.positions, self.num_rows)
        del self.parts
        return matrix


def make_matrix_builder(num_rows: int, like: RowSource, dtype: torch.dtype) -> MatrixBuilder:
    """Return a builder for rows of a matrix, dense, sparse or of blocks like it."""
    like = like.rows if isinstance(like, OwnedRows) else like
    if isinstance(like, SparseRows):
        return SparseMatrixBuilder(dtype)
    return (
        BlockMatrixBuilder(num_rows, dtype)
        if isinstance(like, BlockRows)
        else DenseMatrixBuilder(num_rows, like, dtype)
    )


def _locate_rows(rows: RowSource, at: Tensor | None) -> tuple[RowSource, Tensor | None]:
    """Return the matrix that has some rows, and where in it they are."""
    if not isinstance(rows, OwnedRows):
        return rows, at
    return rows.rows, rows.locate(torch.arange(len(rows)) if at is None else at)


class AwaitableFeatures(Protocol):
    """Rows that are being received."""

    def wait(self) -> Features:
        """Wait for the rows and return them, ``[R, D]``, ordered by sender."""


def send_features(comm: Comm, rows: Features, split_sizes: SplitSizes, kind: Kind) -> AwaitableFeatures:
    """Send rows of some kind to other workers. All workers together, all of them with the same form.

    For sparse rows, their sizes are exchanged first and waited for; for rows of blocks, their blocks, a byte for each.
    """
    if isinstance(rows, SparseRows):
        return _PendingSparseRows(comm, rows, split_sizes, kind)
    if isinstance(rows, BlockRows):
        return _PendingBlockRows(comm, rows, split_sizes, kind)
    return comm.all_to_all(rows, split_sizes, kind)


class _PendingSparseRows:
    def __init__(self, comm: Comm, rows: SparseRows, split_sizes: SplitSizes, kind: Kind) -> None:
        own_sizes = rows.indptr[1:] - rows.indptr[:-1]
        # Receivers must know the number of values before they can allocate them.
        received_sizes = comm.all_to_all(own_sizes, split_sizes, kind).wait()
        self.sizes = received_sizes
        self.num_columns = rows.num_columns
        values = SplitSizes(
            _sum_by_peer(own_sizes, split_sizes.send), _sum_by_peer(received_sizes, split_sizes.receive)
        )
        self.parts: tuple[ExchangeHandle, ...] = tuple(
            comm.all_to_all(part, values, kind) for part in (rows.indices, rows.values)
        )

    def wait(self) -> SparseRows:
        indices, values = (part.wait() for part in self.parts)
        indptr = torch.cat([self.sizes.new_zeros(1), self.sizes.cumsum(0)])
        return SparseRows(indptr=indptr, indices=indices, values=values, num_columns=self.num_columns)


class _PendingBlockRows:
    def __init__(self, comm: Comm, rows: BlockRows, split_sizes: SplitSizes, kind: Kind) -> None:
        # Of each row its block, from 1; 0 for an empty row.
        own = torch.zeros(len(rows), dtype=torch.uint8, device=rows.device)
        for number, of_block in enumerate(rows.rows, start=1):
            own[of_block] = number
        received = comm.all_to_all(own, split_sizes, kind).wait()
        self.rows = [(received == number).nonzero()[:, 0] for number in range(1, len(rows.blocks) + 1)]
        self.num_rows = len(received)
        # Rows are in the order of the peers, and those of a block ascend.
        self.parts: list[ExchangeHandle] = []
        for number, block in enumerate(rows.blocks, start=1):
            counts = [
                _sum_by_peer((given == number).long(), sizes)
                for given, sizes in ((own, split_sizes.send), (received, split_sizes.receive))
            ]
            self.parts.append(comm.all_to_all(block, SplitSizes(*counts), kind))

    def wait(self) -> BlockRows:
        blocks = tuple(part.wait() for part in self.parts)
        return BlockRows(blocks=blocks, rows=tuple(map(as_range, self.rows)), num_rows=self.num_rows)


def _sum_by_peer(sizes: Tensor, counts: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(part.sum()) for part in torch.split(sizes, list(counts)))
