"""Slots: parts of the rows and of the second axis of a tensor, gathered and scattered together.

A table of rows holds what several modules read or write: each has a slot, some of the rows and a range of the second
axis. Letters: ``N`` rows of the table, ``S`` length of its second axis, ``n`` and ``s`` those of a slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outgrow.ops.backend import once_differentiable
from outgrow.ops.memory_pool import pooled_empty


class Slot(NamedTuple):
    """A part of a table.

    Attributes:
        rows: ``[n]`` int64 distinct rows, or a range of rows.
        first: First place of the second axis.
        last: Last place, plus 1.
    """

    rows: Tensor | slice
    first: int
    last: int


def gather_slots(table_NS: Tensor, slots: Sequence[Slot]) -> tuple[Tensor, ...]:
    """Return the part ``[n, s, ...]`` of each slot; slots may overlap. Differentiable.

    Args:
        table_NS: ``[N, S, ...]``.
        slots: The slots.
    """
    return _Gather.apply(table_NS, tuple(slots)) if slots else ()  # type: ignore[no-untyped-call]


def scatter_slots(
    parts: Sequence[Tensor], slots: Sequence[Slot], shape: tuple[int, ...], like: Tensor | None = None
) -> Tensor:
    """Return a table with the parts in their slots, which must not overlap, and zeros elsewhere. Differentiable.

    Args:
        parts: ``[n, s, ...]`` of each slot.
        slots: The slots.
        shape: ``(N, S, ...)``.
        like: Tensor of the type and on the device of the result; None for those of the parts.
    """
    kind = parts[0] if like is None else like
    if len(parts) == 1 and parts[0].dtype == kind.dtype and covers_table(slots, shape):
        return parts[0].reshape(shape)
    return _Scatter.apply(tuple(slots), shape, kind.dtype, kind.device, *parts)  # type: ignore[no-any-return, no-untyped-call]


def covers_table(slots: Sequence[Slot], shape: Sequence[int]) -> bool:
    """Whether ranges of whole rows, in ascending order, make up a table of this shape."""
    end = 0
    for rows, first, last in slots:
        if not isinstance(rows, slice) or (rows.start, first, last) != (end, 0, shape[1]):
            return False
        end = rows.stop
    return end == shape[0]


def make_table(slots: Sequence[Slot], shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a table to write slots into: of zeros, unless the slots make up all of it."""
    if covers_table(slots, shape):
        return pooled_empty(shape, like, dtype)
    return like.new_zeros(shape, dtype=dtype)


def keep_in_graph(result: Tensor, inputs: Iterable[Tensor | None], *, used: bool) -> Tensor:
    """Return a result that autograd knows to depend on its inputs, also where it has no number of them.

    Exchanges between workers run backward on all of them or on none, so whether a result has a gradient must not
    depend on which rows a worker has. The inputs get zeros.

    Args:
        result: The result.
        inputs: What it depends on elsewhere.
        used: Whether it has been computed from all that came from other workers.
    """
    wanted = [each for each in inputs if each is not None and each.requires_grad]
    if not wanted or (used and result.requires_grad):
        return result
    return _Keep.apply(result, *wanted)  # type: ignore[no-any-return, no-untyped-call]


class _Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, result: Tensor, *inputs: Tensor) -> Tensor:
        ctx.kinds = [(each.shape, each.dtype, each.device) for each in inputs]
        return result.view_as(result)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        zeros = (torch.zeros((), dtype=dtype, device=device).expand(shape) for shape, dtype, device in ctx.kinds)
        return grad, *zeros


def _read_slot(table_NS: Tensor, slot: Slot) -> Tensor:
    part = table_NS[:, slot.first : slot.last]
    return part[slot.rows] if isinstance(slot.rows, slice) else part.index_select(0, slot.rows)


def _write_slot(table_NS: Tensor, slot: Slot, value: Tensor) -> None:
    part = table_NS[:, slot.first : slot.last]
    if isinstance(slot.rows, slice):
        part[slot.rows] = value
    else:
        part.index_copy_(0, slot.rows, value)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table_NS: Tensor, slots: tuple[Slot, ...]) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.slots, ctx.shape = slots, table_NS.shape
        # Copies of ranges too: autograd takes no views of an input from several outputs.
        return tuple(
            _read_slot(table_NS, slot).clone(memory_format=torch.contiguous_format)
            if isinstance(slot.rows, slice)
            else _read_slot(table_NS, slot)
            for slot in slots
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        given = [(slot, grad) for slot, grad in zip(ctx.slots, grads, strict=True) if grad is not None]
        if not given:
            return None, None
        slots = [slot for slot, _ in given]
        out = make_table(slots, tuple(ctx.shape), given[0][1])
        if covers_table(slots, ctx.shape):
            for slot, grad in given:
                _write_slot(out, slot, grad)
            return out, None
        for slot, grad in given:
            # One slot after another: a row that several of them read gets its sum in their order.
            _write_slot(out, slot, _read_slot(out, slot) + grad)
        return out, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        slots: tuple[Slot, ...],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        *parts: Tensor,
    ) -> Tensor:
        ctx.slots = slots
        out = make_table(slots, shape, torch.empty(0, dtype=dtype, device=device))
        for slot, part in zip(slots, parts, strict=True):
            _write_slot(out, slot, part.to(dtype))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NS: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[4:]
        return (
            None,
            None,
            None,
            None,
            *(
                _read_slot(grad_NS, slot).contiguous() if wants else None
                for slot, wants in zip(ctx.slots, wanted, strict=True)
            ),
        )
