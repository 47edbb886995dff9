"""The one gate to compiled kernels: Numba on the CPU.

Kernel files decorate with `kernel` (parallel loops) or `sequential` (one thread), and take tensors through `array`.
Nothing is compiled before its first call; what was compiled is kept on disk for the next process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function whose `prange` loops run on all threads. Sums are never reordered."""
    compiled = numba.njit(parallel=True, cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
    return cast(Callable[P, R], compiled(function))


def reducing_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """A `kernel` of which the innermost sums may be reordered, by the compiler: always in the same way."""
    compiled = numba.njit(parallel=True, cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
    return cast(Callable[P, R], compiled(function))


def sequential(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that runs on one thread, called by Python or by kernels."""
    compiled = numba.njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
    return cast(Callable[P, R], compiled(function))


prange: Callable[..., Any] = numba.prange


def array(tensor: Tensor) -> NDArray[Any]:
    """The memory of a CPU tensor as a contiguous NumPy array, without a copy where it is contiguous already."""
    return tensor.detach().contiguous().numpy()


def tensor(values: NDArray[Any]) -> Tensor:
    """The memory of an array as a tensor."""
    return torch.from_numpy(values)


def num_threads() -> int:
    """Threads that a parallel kernel uses."""
    return int(numba.get_num_threads())


def threading_layer() -> str:
    """Name of the threading layer that parallel kernels run on, for `outgrow doctor`."""
    _touch(np.zeros(1, dtype=np.int64))
    return str(numba.threading_layer())  # type: ignore[attr-defined]


@kernel
def _touch(out: NDArray[np.int64]) -> None:
    for i in prange(len(out)):
        out[i] = 1
