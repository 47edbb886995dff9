"""Block rows: dense features that types of nodes have in columns of their own, and their product with a weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from outgrow.ops.linear import affine
from outgrow.ops.memory_pool import pooled_empty
from outgrow.ops.row_slots import Slot, scatter_slots
from outgrow.ops.rows.gather import gather_rows

RowSet = Tensor | slice


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockRows:
    """Constant ``[V, D]`` matrix of dense blocks: a row has numbers in the columns of one block, or is empty.

    Columns of blocks follow one another. The matrix of a graph is block-diagonal, with a block for each node type that
    has features, at most 255; batches have its rows in any order, and the same blocks, some of them without rows.

    Attributes:
        blocks: ``[n, d]`` floating of each block, of one type and on one device.
        rows: Rows of each block: a range, or ``[n]`` int64, ascending. No row is in two blocks.
        num_rows: ``V``.
    """

    blocks: tuple[Tensor, ...]
    rows: tuple[RowSet, ...]
    num_rows: int

    def __len__(self) -> int:
        return self.num_rows

    @property
    def columns(self) -> list[tuple[int, int]]:
        """The first column of each block, and the column after its last one."""
        return list(pairwise(accumulate((block.shape[1] for block in self.blocks), initial=0)))

    @property
    def shape(self) -> tuple[int, int]:
        """``(V, D)``."""
        return self.num_rows, sum(block.shape[1] for block in self.blocks)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the numbers."""
        return self.blocks[0].dtype

    @property
    def device(self) -> torch.device:
        """Device of the blocks."""
        return self.blocks[0].device

    @property
    def nbytes(self) -> int:
        """Size of the blocks in bytes."""
        return sum(block.nbytes for block in self.blocks)

    @property
    def num_values(self) -> int:
        """Number of stored numbers."""
        return sum(block.numel() for block in self.blocks)

    def keep(self) -> BlockRows:
        """Return the matrix itself: nothing is derived of it."""
        return self

    def new_zeros(self, *shape: int) -> Tensor:
        """Return zeros of the type and on the device of the numbers."""
        return self.blocks[0].new_zeros(*shape)

    def to(self, where: torch.dtype | torch.device) -> BlockRows:
        """Return the same matrix with numbers of another type, or on another device."""
        moved = replace(self, blocks=tuple(block.to(where) for block in self.blocks))
        if isinstance(where, torch.dtype):
            return moved
        return replace(moved, rows=tuple(rows.to(where) if isinstance(rows, Tensor) else rows for rows in self.rows))

    def with_blocks(self, blocks: Sequence[Tensor]) -> BlockRows:
        """Return another matrix with the same rows and columns."""
        return replace(self, blocks=tuple(blocks))

    def slice_rows(self, first: int, last: int) -> BlockRows:
        """Return rows ``first`` to ``last - 1``, without copying numbers."""
        parts = [_slice_block(block, rows, first, last) for block, rows in zip(self.blocks, self.rows, strict=True)]
        return BlockRows(
            blocks=tuple(block for block, _ in parts), rows=tuple(rows for _, rows in parts), num_rows=last - first
        )

    def index_rows(self, rows: Tensor) -> BlockRows:
        """Return these rows, ``[n]`` int64, in the given order."""
        blocks, places = [], []
        for block, own in zip(self.blocks, self.rows, strict=True):
            place, row = _find_rows(own, rows, self.num_rows)
            out = pooled_empty((len(row), block.shape[1]), block, block.dtype)
            gather_rows(block, row, out, None)
            blocks.append(out)
            places.append(as_range(place))
        return BlockRows(blocks=tuple(blocks), rows=tuple(places), num_rows=len(rows))

    def select_part(self, rows: RowSet, first: int, last: int) -> Tensor | BlockRows:
        """Return columns ``first`` to ``last - 1``, those of whole blocks, of rows that have no numbers in others.

        Args:
            rows: A range, or ``[n]`` int64, ascending.
            first: First column.
            last: Last column, plus 1.

        Returns:
            ``[n, last - first]`` where the columns are those of one block and all rows are its own; not copied if the
            block has no others.
        """
        kept = [number for number, (low, high) in enumerate(self.columns) if first <= low and high <= last]
        assert last - first == sum(self.blocks[number].shape[1] for number in kept)
        if len(kept) == 1 and _are_equal(self.rows[kept[0]], rows):
            return self.blocks[kept[0]]
        part = self.index_rows(rows) if isinstance(rows, Tensor) else self.slice_rows(rows.start, rows.stop)
        if not kept:
            return self.new_zeros(len(part), 0)
        if len(kept) == 1 and len(part.blocks[kept[0]]) == len(part):
            return part.blocks[kept[0]]
        return replace(part, blocks=tuple(part.blocks[n] for n in kept), rows=tuple(part.rows[n] for n in kept))

    def to_dense(self) -> Tensor:
        """Return ``[V, D]``."""
        out = self.new_zeros(*self.shape)
        for block, rows, (first, last) in zip(self.blocks, self.rows, self.columns, strict=True):
            out[rows, first:last] = block
        return out

    def __matmul__(self, weight_DO: Tensor) -> Tensor:
        """Return ``[V, O]``: the product with a dense ``[D, O]``, one for each block; differentiable in the weight."""
        weights = weight_DO.split_with_sizes([block.shape[1] for block in self.blocks])
        products = [
            affine((block.to(weight.dtype), weight)) for block, weight in zip(self.blocks, weights, strict=True)
        ]
        width = weight_DO.shape[1]
        return scatter_slots(products, [Slot(rows, 0, width) for rows in self.rows], (len(self), width))


def join_block_rows(parts: Sequence[BlockRows], places: Sequence[Tensor | None], num_rows: int) -> BlockRows:
    """Return the rows of several matrices of the same columns, in one.

    Args:
        parts: At least one matrix.
        places: ``[n]`` int64 of each: where its rows are to lie, no place twice; None for all in order.
        num_rows: ``V`` of the result.
    """
    if len(parts) == 1 and places[0] is None:
        return parts[0]
    blocks, rows = [], []
    for number, block in enumerate(parts[0].blocks):
        numbers = torch.cat([part.blocks[number] for part in parts])
        of_parts = [
            row_numbers(part.rows[number]) if place is None else place[part.rows[number]]
            for part, place in zip(parts, places, strict=True)
        ]
        at, order = torch.cat([each.to(block.device) for each in of_parts]).sort()
        blocks.append(numbers[order])
        rows.append(as_range(at))
    return BlockRows(blocks=tuple(blocks), rows=tuple(rows), num_rows=num_rows)


def row_numbers(rows: RowSet) -> Tensor:
    """Return ``[n]`` int64: the rows of a block."""
    return rows if isinstance(rows, Tensor) else torch.arange(rows.start, rows.stop)


def _slice_block(block: Tensor, rows: RowSet, first: int, last: int) -> tuple[Tensor, RowSet]:
    if isinstance(rows, Tensor):
        low, high = torch.searchsorted(rows, rows.new_tensor([first, last])).tolist()
        return block[low:high], rows[low:high] - first
    low, high = max(rows.start, first), min(rows.stop, last)
    if low >= high:
        return block[:0], slice(0, 0)
    return block[low - rows.start : high - rows.start], slice(low - first, high - first)


def _find_rows(own: RowSet, wanted: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return the places of the rows of a block among those wanted, ascending, and which rows of the block they are."""
    if isinstance(own, slice):
        place = ((wanted >= own.start) & (wanted < own.stop)).nonzero()[:, 0]
        return place, wanted[place] - own.start
    table = own.new_full((num_rows,), -1)
    table[own] = torch.arange(len(own), device=own.device)
    found = table[wanted]
    place = (found >= 0).nonzero()[:, 0]
    return place, found[place]


def as_range(rows: Tensor) -> RowSet:
    """Return ascending rows as a range where they are one: nothing has to be looked up by it."""
    if not len(rows):
        return slice(0, 0)
    first, last = rows[[0, -1]].tolist()
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


def _are_equal(own: RowSet, rows: RowSet) -> bool:
    if isinstance(own, Tensor):
        return isinstance(rows, Tensor) and torch.equal(own, rows)
    return own == (as_range(rows) if isinstance(rows, Tensor) else rows)
