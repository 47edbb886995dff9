"""Rows of several node types in one vector, without the columns that a type does not use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from outgrow.core.graph_types import RowWidths
from outgrow.ops.backend import once_differentiable
from outgrow.ops.memory_pool import pooled_empty


class RowPacking:
    """Places of the used columns of some rows in a vector: by worker, then by type. Final.

    Args:
        widths: Used columns of each type.
        nodes_N: ``[N]`` int64, the node of each row, ordered by worker.
        counts: Number of rows of each worker.

    Attributes:
        sizes: Numbers of each worker in the vector.
    """

    def __init__(self, widths: RowWidths, nodes_N: Tensor, counts: Sequence[int]) -> None:
        num_types = len(widths.borders) - 1
        peer = torch.repeat_interleave(torch.tensor(counts, dtype=torch.int64), output_size=len(nodes_N))
        inner = torch.tensor(widths.borders[1:-1], dtype=torch.int64)
        group = peer * num_types + torch.bucketize(nodes_N.cpu(), inner, right=True)
        rows = torch.bincount(group, minlength=len(counts) * num_types).view(len(counts), num_types)
        used = torch.tensor([sum(each[kind] for _, each in widths.parts) for kind in range(num_types)])
        self.sizes: tuple[int, ...] = tuple((rows * used).sum(1).tolist())
        self._groups = [(kind, count) for each in rows.tolist() for kind, count in enumerate(each)]
        self._widths = widths
        self._columns = sum(width for width, _ in widths.parts)
        # Rows of a worker ascend by node, and so by type, unless they were asked for in another order.
        order = group.argsort(stable=True)
        self._order = None if bool((group[1:] >= group[:-1]).all()) else order

    def pack(self, rows_NW: Tensor) -> Tensor:
        """Return ``[S]``: the used columns of ``[N, W]`` rows. Differentiable."""
        return _Pack.apply(rows_NW, self)  # type: ignore[no-any-return, no-untyped-call]

    def unpack(self, vector_S: Tensor) -> Tensor:
        """Return ``[N, W]`` rows with zeros in the columns that are not used. Differentiable."""
        return _Unpack.apply(vector_S, self)  # type: ignore[no-any-return, no-untyped-call]

    def copy_used(self, rows_NW: Tensor) -> Tensor:
        """See `pack`; without a gradient."""
        ordered = rows_NW if self._order is None else rows_NW.index_select(0, self._order.to(rows_NW.device))
        out = pooled_empty((sum(self.sizes),), rows_NW)
        for rows, columns, place in self._pieces(out):
            place.copy_(ordered[rows, columns])
        return out

    def copy_back(self, vector_S: Tensor) -> Tensor:
        """See `unpack`; without a gradient."""
        out = vector_S.new_zeros(sum(count for _, count in self._groups), self._columns)
        for rows, columns, place in self._pieces(vector_S):
            out[rows, columns] = place
        if self._order is None:
            return out
        return torch.empty_like(out).index_copy_(0, self._order.to(out.device), out)

    def _pieces(self, vector_S: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield the rows and columns of each piece, and its numbers in the vector."""
        row = at = 0
        for kind, count in self._groups:
            used = [(width, each[kind]) for width, each in self._widths.parts]
            total = sum(each for _, each in used)
            group = vector_S[at : at + count * total].view(count, total)
            column = first = 0
            for width, columns in used:
                if count and columns:
                    yield (
                        slice(row, row + count),
                        slice(column, column + columns),
                        group[:, first : first + columns],
                    )
                column, first = column + width, first + columns
            row, at = row + count, at + count * total


class _Pack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_NW: Tensor, packing: RowPacking) -> Tensor:
        ctx.packing = packing
        return packing.copy_used(rows_NW)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_S: Tensor) -> tuple[Tensor, None]:
        return ctx.packing.copy_back(grad_S), None


class _Unpack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vector_S: Tensor, packing: RowPacking) -> Tensor:
        ctx.packing = packing
        return packing.copy_back(vector_S)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NW: Tensor) -> tuple[Tensor, None]:
        return ctx.packing.copy_used(grad_NW), None
