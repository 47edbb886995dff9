"""Partitions of nodes into parts, and optionally of parts into chunks; contiguous ranges of about equal cost."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.errors import InputError

_MOST_PARTS = 1 << 31


@dataclass(frozen=True, kw_only=True, eq=False)
class Partition:
    """The part of each of ``V`` nodes; make one with `Partition.from_assignment`.

    Attributes:
        part: ``[V]`` int16, or int32 for many parts; ``0 <= part < num_parts``.
        num_parts: Number of parts.
        chunk: ``[V]`` int16 or int32, the chunk of each node within its part; None if parts are not cut into
            chunks.
        num_chunks: Number of chunks of each part.
    """

    part: Tensor
    num_parts: int
    chunk: Tensor | None = None
    num_chunks: int = 1

    @classmethod
    def from_assignment(
        cls,
        part: Tensor,
        num_parts: int,
        *,
        allow_empty: bool = False,
        chunk: Tensor | None = None,
        num_chunks: int = 1,
    ) -> Partition:
        """Make a partition from part numbers, and check them.

        Args:
            part: ``[V]``, any integer type.
            num_parts: Number of parts.
            allow_empty: Whether a part may own no node.
            chunk: ``[V]``, any integer type; None if parts are not cut. Chunks may be empty.
            num_chunks: Number of chunks of each part.

        Raises:
            InputError: A chunk is missing, a number is out of range, or a part is empty.
        """
        made = cls(
            part=_as_narrow_dtype("part", part, num_parts),
            num_parts=num_parts,
            chunk=None if chunk is None else _as_narrow_dtype("chunk", chunk, num_chunks),
            num_chunks=num_chunks,
        )
        if made.chunk is not None and len(made.chunk) != len(part):
            raise _partition_error(f"a chunk for each of {len(part):,} nodes", f"{len(made.chunk):,} chunks")
        empty = torch.nonzero(made.part_sizes == 0).flatten()
        if len(empty) and not allow_empty:
            raise _partition_error(
                "at least one node in every part", f"none in part {int(empty[0])}, {len(empty)} such parts"
            )
        return made

    @property
    def num_nodes(self) -> int:
        """``V``."""
        return len(self.part)

    @cached_property
    def part_sizes(self) -> Tensor:
        """``[num_parts]`` int64: number of nodes in each part."""
        return torch.bincount(self.part, minlength=self.num_parts)

    def nodes_of_part(self, part: int) -> Tensor:
        """Return ``[n]`` int64: the nodes of a part, ascending."""
        first = self._part_ends[part]
        last = self._part_ends[part + 1]
        return self._nodes_by_part[first:last]

    @cached_property
    def chunks_as_parts(self) -> Partition:
        """The partition with each chunk as a part: chunk ``c`` of part ``p`` is ``p * num_chunks + c``."""
        if self.chunk is None:
            return self
        flat = self.part.long() * self.num_chunks + self.chunk
        return Partition.from_assignment(flat, self.num_parts * self.num_chunks, allow_empty=True)

    @cached_property
    def _nodes_by_part(self) -> Tensor:
        # One stable sort for all parts: ids stay ascending within each.
        return torch.from_numpy(np.argsort(self.part.numpy(), kind="stable"))

    @cached_property
    def _part_ends(self) -> list[int]:
        return [0, *self.part_sizes.cumsum(0).tolist()]


def _as_narrow_dtype(what: str, values: Tensor, count: int) -> Tensor:
    """Convert numbers to int16 or int32, if all are at least 0 and below ``count``."""
    if values.dim() != 1 or values.dtype.is_floating_point or values.dtype in (torch.bool, torch.complex64):
        raise _partition_error(
            f"a {what} for each node, [V] whole numbers", f"{values.dtype} of shape {list(values.shape)}"
        )
    if not 1 <= count < _MOST_PARTS:
        raise _partition_error(f"1 to {_MOST_PARTS - 1:,} {what}s", f"{count:,}")
    if len(values) and (int(values.min()) < 0 or int(values.max()) >= count):
        raise _partition_error(f"{what}s 0 to {count - 1:,}", f"{what}s {int(values.min()):,} to {int(values.max()):,}")
    # Narrow numbers: every worker keeps the part of every node in memory.
    return values.to(torch.int16 if count <= 1 << 15 else torch.int32)


def _partition_error(needed: str, got: str) -> InputError:
    return InputError(
        "this is no partition of the nodes", needed=needed, got=got, repair="correct the partition, or choose a method"
    )


def balanced_range_ends(cost_before: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Return ``[count + 1]``: the ends of ``count`` non-empty ranges of items, with costs as equal as possible.

    A range costs at most its even share plus the cost of one item.

    Args:
        cost_before: ``[N + 1]``, ascending; the total cost of the items before each item, then of all items.
        count: 1 to ``N``.
    """
    num_items = len(cost_before) - 1
    assert 1 <= count <= num_items
    first = int(cost_before[0])
    total = int(cost_before[-1] - cost_before[0])
    # Python integers: the product of a cost and a range number may exceed 64 bits.
    target = np.array([first + total * i // count for i in range(count + 1)], dtype=np.int64)
    above = np.searchsorted(cost_before, target)
    below = np.maximum(above - 1, 0)
    nearer = target - cost_before[below] < cost_before[above] - target
    ends = np.where(nearer, below, above)
    steps = np.arange(count + 1)
    ends[0] = 0
    ends[-1] = num_items
    # Ends that rise by at least 1: one heavy item would otherwise leave empty ranges behind it.
    ends = np.maximum.accumulate(ends - steps) + steps
    # From the other side: enough items must remain for the ranges that follow.
    return np.minimum(ends, num_items - count + steps)


def range_of_each(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``[N]``: the range of each item, given the ends of the ranges."""
    return np.repeat(np.arange(len(ends) - 1), np.diff(ends))
