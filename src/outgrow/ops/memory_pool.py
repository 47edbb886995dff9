"""Pooled tensors for large results and for sampler arrays; cache-line rows.

The system clears every page that it hands out, and large tensors go back to it as soon as they are freed: on
a CPU that costs as much as the element-wise passes over them. An epoch of full graphs asks for the same sizes
as the one before; mini-batches ask for about the same, so sizes are rounded up. Pages that nobody touches
cost nothing.

The system clears every page that it hands out, and arrays of some 100 KB and more go back to it when they are
freed.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import defaultdict, deque
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from outgrow.ops.backend import as_numpy
from outgrow.ops.kernels.numerics import kernel_view

_LARGE_BYTES = 1 << 19
_SLACK = 1.25
"""How much larger than asked for what is lent may be: it was made for a batch that was a little larger."""
LINE = 16
"""Columns of float32 in a cache line."""
LARGE_ROWS = 4096


class _BufferPool:
    """Buffers by size. Idle and lent ones are together never more than the most that was lent at once, and spare."""

    def __init__(self) -> None:
        self.idle: dict[int, list[Tensor]] = defaultdict(list)
        self.order: list[int] = []
        self.idle_bytes = self.allocated_bytes = self.peak_bytes = 0
        self.slack = 0.0
        self.lock = threading.Lock()
        self.freed: deque[Tensor] = deque()
        """What came back, at any moment and in any thread; taken in when the pool is used next."""

    def allocate(self, size: int) -> NDArray[np.uint8]:
        """``[size]`` bytes or some more, back in the pool once nothing uses their memory any more."""
        with self.lock:
            self._reclaim_freed()
            fit = min((idle for idle, bases in self.idle.items() if bases and size <= idle <= _SLACK * size), default=0)
            lent = self.allocated_bytes + (fit or size)
            if fit:
                base = self.idle[fit].pop(0)
                self.order.remove(fit)
                self.idle_bytes -= fit
            else:
                self._trim_idle(max(int((1 + self.slack) * self.peak_bytes), lent) - lent)
                base = torch.empty(size, dtype=torch.uint8)
            self.allocated_bytes, self.peak_bytes = lent, max(self.peak_bytes, lent)
        lease: NDArray[np.uint8] = base.numpy()
        weakref.finalize(lease, self.freed.append, base).atexit = False
        return lease

    def release_idle(self) -> None:
        """Free what is idle, forget how much was lent, and keep nothing to spare."""
        with self.lock:
            self._reclaim_freed()
            self._trim_idle(0)
            self.peak_bytes, self.slack = self.allocated_bytes, 0.0

    def collect_freed(self) -> None:
        """Take in what came back."""
        with self.lock:
            self._reclaim_freed()

    def _reclaim_freed(self) -> None:
        while self.freed:
            base = self.freed.popleft()
            size = len(base)
            self.allocated_bytes -= size
            self.idle[size].append(base)
            self.order.append(size)
            self.idle_bytes += size

    def _trim_idle(self, most: int) -> None:
        """Free what has been idle longest until no more than ``most`` bytes are idle."""
        while self.idle_bytes > most:
            oldest = self.order.pop(0)
            del self.idle[oldest][0]
            self.idle_bytes -= oldest


_POOL = _BufferPool()


def release_idle_memory() -> None:
    """Give idle memory back to the system."""
    _POOL.release_idle()


def reserve_slack(share: float) -> None:
    """Until `release_idle_memory`, keep so much idle memory besides what was lent at most: for steps of varying sizes."""
    _POOL.slack = share


def idle_bytes() -> int:
    """Memory that is kept for results to come."""
    _POOL.collect_freed()
    return _POOL.idle_bytes


def pooled_empty(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An uninitialised contiguous tensor on the device of ``like``, of its type unless given."""
    dtype = dtype or like.dtype
    size = math.prod(shape) * dtype.itemsize
    if like.device.type != "cpu" or size < _LARGE_BYTES:
        return torch.empty(shape, dtype=dtype, device=like.device)
    return _allocate_strided(shape, math.prod(shape[1:]), dtype)


def pad_to_cache_line(columns: int, rows: int) -> int:
    """``columns``, or up to a sixteenth more of them, so that each of many rows fills whole cache lines."""
    padded = -(-columns // LINE) * LINE
    return padded if rows >= LARGE_ROWS and 16 * (padded - columns) <= columns else columns


def pooled_empty_rows(rows: int, shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Uninitialised ``[rows, *shape]``; on a CPU each row may begin at a cache line, with unused columns after it."""
    columns = math.prod(shape)
    stride = pad_to_cache_line(columns, rows) if like.device.type == "cpu" else columns
    dtype = dtype or like.dtype
    if stride == columns:
        return pooled_empty((rows, *shape), like, dtype)
    if rows * stride * dtype.itemsize < _LARGE_BYTES:
        return torch.unflatten(torch.empty(rows, stride, dtype=dtype)[:, :columns], 1, shape)
    return _allocate_strided((rows, *shape), stride, dtype)


def _allocate_strided(shape: tuple[int, ...], row: int, dtype: torch.dtype) -> Tensor:
    """A tensor of this shape in lent memory, of which each row takes ``row`` elements.

    It is no view of another tensor, so that autograd may add other gradients to it in place.
    """
    memory = torch.frombuffer(_POOL.allocate(_round_up_size(shape[0] * row * dtype.itemsize)), dtype=dtype)
    return memory.as_strided_(shape, (row, *(math.prod(shape[axis + 1 :]) for axis in range(1, len(shape)))))


def _round_up_size(size: int) -> int:
    """``size`` or up to an eighth more; there are eight sizes between a number and its double."""
    step = 1 << max(3, size.bit_length() - 4)
    return -(-size // step) * step


def with_padding(x_NF: Tensor) -> Tensor:
    """``[N, S]``: rows with the unused columns behind them, of which the values mean nothing; ``x`` itself if none."""
    rows, columns = x_NF.shape
    stride = pad_to_cache_line(columns, rows)
    if stride == columns:  # and do not ask for the storage: a tensor that was asked for it is never added to in place
        return x_NF
    needed = x_NF.storage_offset() + rows * stride
    fits = x_NF.stride() == (stride, 1) and x_NF.untyped_storage().nbytes() >= needed * x_NF.element_size()
    return x_NF.as_strided((rows, stride), (stride, 1)) if fits else x_NF


def as_output_rows(out: Tensor) -> NDArray[Any]:
    """`as_input_rows` of a tensor that a kernel writes: an own one, as `empty` and `pooled_empty_rows` give it.

    Raises:
        ValueError: It is laid out otherwise, so that a copy would be written.
    """
    flat = as_input_rows(out)
    if out.numel() and flat.ctypes.data != out.data_ptr():
        raise ValueError(f"a result must lie in rows, got shape {list(out.shape)} with strides {list(out.stride())}")
    return flat


def as_input_rows(x: Tensor) -> NDArray[Any]:
    """``[N, S]`` array of rows ``[N, C, F]``, ``S >= C * F``: their own memory where it is laid out so, else a copy.

    Half precision comes as bits.
    """
    x_NF = kernel_view(x.detach()).flatten(1)
    return as_numpy(with_padding(x_NF))


_LARGE_ARRAY_BYTES = 1 << 16


class ArrayPool:
    """Lends arrays; may be asked by several threads at once. What is idle is freed with it."""

    def __init__(self) -> None:
        self._idle: defaultdict[int, deque[Tensor]] = defaultdict(deque)
        """Pieces by their size, a power of 2: no two batches want quite the same."""

    def empty_array(self, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """``[count]``, uninitialised."""
        num_bytes = count * np.dtype(dtype).itemsize
        if num_bytes < _LARGE_ARRAY_BYTES:
            return np.empty(count, dtype=dtype)
        size = 1 << (num_bytes - 1).bit_length()
        idle = self._idle[size]
        try:
            piece = idle.pop()
        except IndexError:
            piece = torch.empty(size, dtype=torch.uint8)
        lease = piece.numpy()
        weakref.finalize(lease, idle.append, piece).atexit = False
        return lease[:num_bytes].view(dtype)
