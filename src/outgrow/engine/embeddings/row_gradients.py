"""Gradients of embedding rows between updates: of all rows (whole graphs), or of those that batches touched."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from outgrow.engine.embeddings.row_sections import RowSection

RowBlock = tuple[slice | Tensor, Tensor]
"""Numbers of some rows, and their gradients ``[n, F]``."""


class RowGradients(Protocol):
    """Gradients of own rows, summed since the last update."""

    def add(self, rows_N: Tensor, grad_NF: Tensor) -> None:
        """Add gradients of rows, in any order; those of row -1 are dropped."""

    def scale_new(self, factor: float) -> None:
        """Multiply what was added since the last call with a factor."""

    def blocks(self, num_rows: int, size: int, *, all_rows: bool) -> Iterator[RowBlock]:
        """Yield blocks of rows and their gradients, ascending; of all rows, or of those with a gradient."""

    def clear(self) -> None:
        """Forget all gradients."""

    def close(self) -> None:
        """Release what gradients are kept in."""


def squared_norm(gradients: RowGradients, num_rows: int, size: int) -> float:
    """Return the sum of the squares of all gradients."""
    return math.fsum(
        grad.double().square().sum().item() for _, grad in gradients.blocks(num_rows, size, all_rows=False)
    )


class DenseGradients:
    """Gradients of all rows, in a section. Each row usually gets one gradient between updates. Final.

    Args:
        section: What they are kept in.
        drops_zeros: Whether rows whose gradients are all zeros count as rows without one: a backward pass over a whole
            graph gives zeros to all nodes that the loss does not depend on.
    """

    def __init__(self, section: RowSection, *, drops_zeros: bool) -> None:
        self._section = section
        self._drops_zeros = drops_zeros
        # A section is not set to zeros after an update: what is not marked counts as zeros.
        self._written = torch.zeros(section.num_rows, dtype=torch.bool)

    def add(self, rows_N: Tensor, grad_NF: Tensor) -> None:
        """Add gradients of rows."""
        if is_row_range(rows_N):
            first = int(rows_N[0])
            here = slice(first, first + len(rows_N))
            marks = mark_nonzero(grad_NF) if self._drops_zeros else torch.ones(len(grad_NF), dtype=torch.bool)
            if not marks.any():
                return
            if self._written[here].any():
                grad_NF = grad_NF + self._read(here)
            self._section.write_range(first, grad_NF)
            self._written[here] |= marks
            return
        rows, grads = sum_by_row(rows_N, grad_NF)
        if self._drops_zeros:
            rows, grads = drop_zeros(rows, grads)
        before = self._section.read_rows(rows)
        before[(~self._written[rows]).to(before.device)] = 0
        self._section.write_rows(rows, before.add_(grads))
        self._written[rows] = True

    def scale_new(self, factor: float) -> None:
        """Refuse: a whole graph has one batch for each update."""
        raise NotImplementedError("gradients of all rows are not accumulated over batches")

    def blocks(self, num_rows: int, size: int, *, all_rows: bool) -> Iterator[RowBlock]:
        """Yield ranges of rows and their gradients."""
        for first in range(0, num_rows, size):
            here = slice(first, min(first + size, num_rows))
            written = self._written[here]
            if all_rows or written.all():
                yield here, self._read(here)
            elif written.any():
                rows = written.nonzero()[:, 0] + first
                yield rows, self._section.read_rows(rows)

    def clear(self) -> None:
        """Forget all gradients."""
        self._written.zero_()

    def close(self) -> None:
        """Release the section."""
        self._section.close()

    def _read(self, here: slice) -> Tensor:
        grad = self._section.read_range(here.start, here.stop)
        written = self._written[here]
        return grad if written.all() else torch.where(written.to(grad.device)[:, None], grad, torch.zeros_like(grad))


class SparseGradients:
    """Gradients of the rows that steps looked up. Final.

    Args:
        columns: Width of a row.
        dtype: Type of its numbers.
        device: Where they are.
        drops_zeros: See `DenseGradients`.
    """

    def __init__(self, columns: int, dtype: torch.dtype, device: torch.device, *, drops_zeros: bool) -> None:
        self._drops_zeros = drops_zeros
        self._none = torch.zeros(0, columns, dtype=dtype, device=device)
        self._added: list[tuple[Tensor, Tensor]] = []
        self._num_scaled = 0

    def add(self, rows_N: Tensor, grad_NF: Tensor) -> None:
        """Add gradients of rows."""
        rows, grads = sum_by_row(rows_N, grad_NF)
        if self._drops_zeros:
            rows, grads = drop_zeros(rows, grads)
        # Kept until the update: what was given may be a view of memory that others write to before.
        self._added.append((rows, grads.clone() if grads is grad_NF else grads))

    def scale_new(self, factor: float) -> None:
        """Multiply what was added since the last call with a factor."""
        for _, grad in self._added[self._num_scaled :]:
            grad.mul_(factor)
        self._num_scaled = len(self._added)

    def blocks(self, num_rows: int, size: int, *, all_rows: bool) -> Iterator[RowBlock]:
        """Yield some rows and their gradients."""
        rows, grads = self._merge_added()
        if not all_rows:
            for part, grad in zip(torch.split(rows, size), torch.split(grads, size), strict=True):
                if len(part):
                    yield part, grad
            return
        for first in range(0, num_rows, size):
            last = min(first + size, num_rows)
            low, high = torch.searchsorted(rows, torch.tensor([first, last])).tolist()
            grad = grads.new_zeros(last - first, grads.shape[1])
            grad[(rows[low:high] - first).to(grad.device)] = grads[low:high]
            yield slice(first, last), grad

    def clear(self) -> None:
        """Forget all gradients."""
        self._added = []
        self._num_scaled = 0

    def close(self) -> None:
        """Forget all gradients."""
        self.clear()

    def _merge_added(self) -> tuple[Tensor, Tensor]:
        if len(self._added) != 1:
            none = torch.zeros(0, dtype=torch.int64), self._none
            parts = self._added or [none]
            self._added = [sum_by_row(torch.cat([rows for rows, _ in parts]), torch.cat([g for _, g in parts]))]
            self._num_scaled = min(self._num_scaled, 1)
        return self._added[0]


def sum_by_row(rows_N: Tensor, grad_NF: Tensor) -> tuple[Tensor, Tensor]:
    """Return distinct rows, ascending, and the sums of their gradients, added in the given order; -1 is dropped.

    Of rows that ascend already the gradients are returned as they are, without a copy.
    """
    rows = rows_N.cpu()
    if are_ascending_rows(rows):
        return rows, grad_NF
    if rows.numel() and int(rows.min()) < 0:
        known = rows >= 0
        rows, grad_NF = rows[known], grad_NF[known.to(grad_NF.device)]
    distinct, positions = torch.unique(rows, return_inverse=True)
    if len(distinct) == len(rows):
        # Each row once: a permutation, of which there is nothing to add.
        out = torch.empty_like(grad_NF)
        out[positions.to(out.device)] = grad_NF
        return distinct, out
    out = grad_NF.new_zeros(len(distinct), grad_NF.shape[1])
    return distinct, out.index_add_(0, positions.to(out.device), grad_NF)


def mark_nonzero(grad_NF: Tensor) -> Tensor:
    """Return ``[N]`` bool, in host memory: which gradients have a number other than zero."""
    return grad_NF.any(1).cpu()


def drop_zeros(rows_N: Tensor, grad_NF: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows whose gradient is not all zeros, and these gradients."""
    marks = mark_nonzero(grad_NF)
    return (rows_N, grad_NF) if marks.all() else (rows_N[marks], grad_NF[marks.to(grad_NF.device)])


def are_ascending_rows(rows_N: Tensor) -> bool:
    """Whether rows are at least one, none of them -1, each above the one before."""
    return len(rows_N) > 0 and int(rows_N[0]) >= 0 and bool((rows_N.diff() > 0).all())


def is_row_range(rows_N: Tensor) -> bool:
    """Whether rows are at least one, none of them -1, each the one after the one before."""
    if not len(rows_N) or int(rows_N[0]) < 0 or int(rows_N[-1]) - int(rows_N[0]) + 1 != len(rows_N):
        return False
    return bool((rows_N.diff() == 1).all())
