"""Rows put together from several places, and rows on their way between workers; dense or sparse."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.nn.layer import Features
from outgrow.ops.memory_pool import empty
from outgrow.ops.rows.gather import take_rows
from outgrow.ops.sparse import SparseRows
from outgrow.runtime.distributed.async_exchange import Route
from outgrow.runtime.distributed.comm import Arrival, Comm


class Draft(ABC):
    """A matrix that is being written."""

    @abstractmethod
    def put(self, rows: Features, at: Tensor | None, to: Tensor | None) -> None:
        """Write rows ``at`` of a matrix to rows ``to`` of this one; None stands for all in order."""

    @abstractmethod
    def done(self) -> Features:
        """The matrix, once all of its rows are written."""


class DenseDraft(Draft):
    """A dense matrix. Final.

    Args:
        num_rows: Rows of it.
        like: ``[V, D]`` that rows come from.
        dtype: Its type.
    """

    def __init__(self, num_rows: int, like: Tensor, dtype: torch.dtype) -> None:
        self.out = empty((num_rows, like.shape[1]), like, dtype)

    def put(self, rows: Features, at: Tensor | None, to: Tensor | None) -> None:
        """See `Draft.put`."""
        assert isinstance(rows, Tensor)
        take_rows(rows, at, self.out, to)

    def done(self) -> Features:
        """See `Draft.done`."""
        return self.out


class SparseDraft(Draft):
    """A sparse matrix. Final.

    Args:
        dtype: Type of its values.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.parts: list[SparseRows] = []
        self.places: list[Tensor | None] = []

    def put(self, rows: Features, at: Tensor | None, to: Tensor | None) -> None:
        """See `Draft.put`."""
        assert isinstance(rows, SparseRows)
        self.parts.append((rows if at is None else rows.take(at)).to(self.dtype))
        self.places.append(to)

    def done(self) -> Features:
        """See `Draft.done`."""
        first, *others = self.parts
        if not others and self.places[0] is None:
            return first
        sizes = [part.indptr[1:] - part.indptr[:-1] for part in self.parts]
        whole = SparseRows(
            indptr=torch.cat([first.indptr[:1], *sizes]).cumsum(0),
            indices=torch.cat([part.indices for part in self.parts]),
            values=torch.cat([part.values for part in self.parts]),
            num_columns=first.num_columns,
        )
        places = [
            torch.arange(len(part)) if to is None else to for part, to in zip(self.parts, self.places, strict=True)
        ]
        return whole.take(torch.cat(places).argsort())


def draft_of(num_rows: int, like: Features, dtype: torch.dtype) -> Draft:
    """A new matrix of rows of another, dense or sparse as that is."""
    return SparseDraft(dtype) if isinstance(like, SparseRows) else DenseDraft(num_rows, like, dtype)


class FeaturesArrival(Protocol):
    """Rows under way, dense or sparse."""

    def wait(self) -> Features:
        """``[R, D]``: the rows, those of worker 0 first."""


def send_features(comm: Comm, rows: Features, route: Route) -> FeaturesArrival:
    """Send rows to their workers. All workers together, all dense or all sparse.

    Of sparse rows their sizes go ahead, and are waited for.
    """
    return _SparseArrival(comm, rows, route) if isinstance(rows, SparseRows) else comm.rows(rows, route, Kind.FEATURES)


class _SparseArrival:
    def __init__(self, comm: Comm, rows: SparseRows, route: Route) -> None:
        mine = rows.indptr[1:] - rows.indptr[:-1]
        theirs = comm.rows(mine, route, Kind.FEATURES).wait()
        self.sizes, self.num_columns = theirs, rows.num_columns
        values = Route(_sums(mine, route.send), _sums(theirs, route.receive))
        self.parts: tuple[Arrival, ...] = tuple(
            comm.rows(part, values, Kind.FEATURES) for part in (rows.indices, rows.values)
        )

    def wait(self) -> SparseRows:
        indices, values = (part.wait() for part in self.parts)
        indptr = torch.cat([self.sizes.new_zeros(1), self.sizes.cumsum(0)])
        return SparseRows(indptr=indptr, indices=indices, values=values, num_columns=self.num_columns)


def _sums(sizes: Tensor, counts: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(part.sum()) for part in torch.split(sizes, list(counts)))
