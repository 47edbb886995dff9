"""Pools of memory for large results and for the arrays of the sampler; rows padded to cache lines.

The system clears every page that it hands out, and large allocations go back to it as soon as they are freed:
on a CPU that costs as much as the element-wise passes over them. Full-graph epochs allocate the same sizes
again and again; mini-batches allocate similar ones, so sizes are rounded up. Pages that are never touched
take no memory.
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
"""Largest ratio of a buffer to the request: buffers of slightly larger batches are reused."""
LINE = 16
"""Columns of float32 in a cache line."""
LARGE_ROWS = 4096


class _BufferPool:
    """Buffers by size. Idle plus allocated bytes never exceed the peak of allocated bytes, plus the slack."""

    def __init__(self) -> None:
        self.idle: dict[int, list[Tensor]] = defaultdict(list)
        self.order: list[int] = []
        self.idle_bytes = self.allocated_bytes = self.peak_bytes = 0
        self.slack = 0.0
        self.lock = threading.Lock()
        self.freed: deque[Tensor] = deque()
        """Buffers returned by finalisers, in any thread at any moment; collected when the pool is used."""

    def allocate(self, size: int) -> NDArray[np.uint8]:
        """Return ``[size]`` bytes or a few more, which come back to the pool once nothing uses them."""
        with self.lock:
            self._reclaim_freed()
            # The smallest buffer that fits, since larger ones may fit a later request better.
            fit = min((idle for idle, bases in self.idle.items() if bases and size <= idle <= _SLACK * size), default=0)
            allocated = self.allocated_bytes + (fit or size)
            if fit:
                base = self.idle[fit].pop(0)
                self.order.remove(fit)
                self.idle_bytes -= fit
            else:
                # Free idle buffers before allocating, so that the pool never holds more than its peak at
                # once.
                self._trim_idle(max(int((1 + self.slack) * self.peak_bytes), allocated) - allocated)
                base = torch.empty(size, dtype=torch.uint8)
            self.allocated_bytes = allocated
            self.peak_bytes = max(self.peak_bytes, allocated)
        # Tensors made of this array keep it alive; when the last of them dies, its buffer comes back. The
        # garbage collector may run the finaliser while this thread holds the lock, so it only appends, which
        # needs no lock.
        array: NDArray[np.uint8] = base.numpy()
        weakref.finalize(array, self.freed.append, base).atexit = False
        return array

    def release_idle(self) -> None:
        """Free all idle buffers, and reset the peak and the slack."""
        with self.lock:
            self._reclaim_freed()
            self._trim_idle(0)
            self.peak_bytes = self.allocated_bytes
            self.slack = 0.0

    def collect_freed(self) -> None:
        """Make the buffers that have been freed available again."""
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
        """Free the buffers that have been idle longest until at most ``most`` bytes are idle."""
        while self.idle_bytes > most:
            oldest = self.order.pop(0)
            del self.idle[oldest][0]
            self.idle_bytes -= oldest


_POOL = _BufferPool()


def release_idle_memory() -> None:
    """Return idle memory to the system."""
    _POOL.release_idle()


def reserve_slack(share: float) -> None:
    """Keep this share of the peak as additional idle memory, for steps of varying sizes.

    Holds until `release_idle_memory`.
    """
    _POOL.slack = share


def idle_bytes() -> int:
    """Return the bytes that are kept for later results."""
    _POOL.collect_freed()
    return _POOL.idle_bytes


def pooled_empty(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return an uninitialised contiguous tensor on the device of ``like``, of its type unless given."""
    dtype = dtype or like.dtype
    size = math.prod(shape) * dtype.itemsize
    if like.device.type != "cpu" or size < _LARGE_BYTES:
        return torch.empty(shape, dtype=dtype, device=like.device)
    return _allocate_strided(shape, math.prod(shape[1:]), dtype)


def pad_to_cache_line(columns: int, rows: int) -> int:
    """Return ``columns``, or up to a sixteenth more, so that each of many rows fills whole cache lines."""
    # Few rows fit the cache in any layout, and on narrow rows the padding would cost more traffic than it
    # saves.
    padded = -(-columns // LINE) * LINE
    return padded if rows >= LARGE_ROWS and 16 * (padded - columns) <= columns else columns


def pooled_empty_rows(rows: int, shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return an uninitialised ``[rows, *shape]``.

    On a CPU each row may begin at a cache line, with unused columns behind it.
    """
    columns = math.prod(shape)
    stride = pad_to_cache_line(columns, rows) if like.device.type == "cpu" else columns
    dtype = dtype or like.dtype
    if stride == columns:
        return pooled_empty((rows, *shape), like, dtype)
    if rows * stride * dtype.itemsize < _LARGE_BYTES:
        return torch.unflatten(torch.empty(rows, stride, dtype=dtype)[:, :columns], 1, shape)
    return _allocate_strided((rows, *shape), stride, dtype)


def _allocate_strided(shape: tuple[int, ...], row: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor of this shape in pooled memory, whose rows begin ``row`` elements apart.

    It is not a view of another tensor, so that autograd may add other gradients to it in place.
    """
    memory = torch.frombuffer(_POOL.allocate(_round_up_size(shape[0] * row * dtype.itemsize)), dtype=dtype)
    return memory.as_strided_(shape, (row, *(math.prod(shape[axis + 1 :]) for axis in range(1, len(shape)))))


def _round_up_size(size: int) -> int:
    """Return ``size`` or up to an eighth more; there are eight sizes from a number to its double."""
    step = 1 << max(3, size.bit_length() - 4)
    return -(-size // step) * step


def with_padding(x_NF: Tensor) -> Tensor:
    """Return ``[N, S]``: rows with their padding, of undefined values; ``x`` itself if it has none."""
    rows, columns = x_NF.shape
    stride = pad_to_cache_line(columns, rows)
    # Return before reading the storage: autograd never adds in place to a tensor whose storage was
    # accessed.
    if stride == columns:
        return x_NF
    # A slice of rows shares the storage of its base: the last row must have its padding inside as well.
    needed = x_NF.storage_offset() + rows * stride
    fits = x_NF.stride() == (stride, 1) and x_NF.untyped_storage().nbytes() >= needed * x_NF.element_size()
    return x_NF.as_strided((rows, stride), (stride, 1)) if fits else x_NF


def as_output_rows(out: Tensor) -> NDArray[Any]:
    """Return the rows of a contiguous or pooled tensor as an array for a kernel to write, without a copy.

    Raises:
        ValueError: The layout would require a copy, and the kernel would write that.
    """
    flat = as_input_rows(out)
    if out.numel() and flat.ctypes.data != out.data_ptr():
        raise ValueError(f"a result must lie in rows, got shape {list(out.shape)} with strides {list(out.stride())}")
    return flat


def as_input_rows(x: Tensor) -> NDArray[Any]:
    """Return rows ``[N, C, F]`` as an array ``[N, S]``, ``S >= C * F``; a copy only if the layout needs it.

    Half precision is returned as bits.
    """
    x_NF = kernel_view(x.detach()).flatten(1)
    return as_numpy(with_padding(x_NF))


_LARGE_ARRAY_BYTES = 1 << 16


class ArrayPool:
    """Pool of uninitialised arrays for several threads. Idle memory is freed together with the pool."""

    def __init__(self) -> None:
        self._idle: defaultdict[int, deque[Tensor]] = defaultdict(deque)
        """Idle buffers by size, a power of 2, since no two batches need exactly the same size."""

    def empty_array(self, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return an uninitialised ``[count]`` array."""
        num_bytes = count * np.dtype(dtype).itemsize
        if num_bytes < _LARGE_ARRAY_BYTES:
            return np.empty(count, dtype=dtype)
        size = 1 << (num_bytes - 1).bit_length()
        idle = self._idle[size]
        # Appending to and popping from a deque are atomic, so threads need no lock, only to expect an empty
        # one.
        try:
            buffer = idle.pop()
        except IndexError:
            buffer = torch.empty(size, dtype=torch.uint8)
        array = buffer.numpy()
        weakref.finalize(array, idle.append, buffer).atexit = False
        return array[:num_bytes].view(dtype)
