"""Memory for the arrays of batches, used again once nothing refers to them: a batch does not pay for fresh pages.

The system clears every page that it hands out, and arrays of some 100 KB and more go back to it when they are freed.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

_LARGE_ARRAY_BYTES = 1 << 16


class Memory:
    """Lends arrays; may be asked by several threads at once. What is idle is freed with it."""

    def __init__(self) -> None:
        self._idle: defaultdict[int, deque[Tensor]] = defaultdict(deque)
        """Pieces by their size, a power of 2: no two batches want quite the same."""

    def empty(self, count: int, dtype: DTypeLike) -> NDArray[Any]:
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
