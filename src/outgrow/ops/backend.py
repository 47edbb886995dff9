"""The gate to Numba/Triton, kernel cache, compile lock, GPU dispatch.

Kernel files decorate with `triton_kernel` (parallel loops) or `serial_kernel` (one thread), and take tensors
through `as_numpy`. Nothing is compiled before its first call; what was compiled is kept on disk for the next
process (`kernel_cache.py`). A function of tensors that has a twin in `outgrow.ops.gpu` is decorated with
`twinned`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
import torch
from numba.extending import intrinsic as numba_intrinsic
from numba.extending import overload as numba_overload
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable as mark_once_differentiable

from outgrow.ops.kernel_cache import cache_on_disk, uses_parallel_loops

P = ParamSpec("P")
R = TypeVar("R")


def parallel_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function whose `prange` loops run on all threads. Sums are never reordered.

    With ``OUTGROW_KERNELS=serial`` in the environment they run on one, which takes less time to compile: for
    tests.
    """
    compiled = numba.njit(parallel=uses_parallel_loops(), nogil=True, fastmath={"contract"}, error_model="numpy")
    return cast(Callable[P, R], cache_on_disk(compiled(function)))


def reducing_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """A `triton_kernel` of which the innermost sums may be reordered, by the compiler: always in the same way."""
    compiled = numba.njit(
        parallel=uses_parallel_loops(), nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy"
    )
    return cast(Callable[P, R], cache_on_disk(compiled(function)))


def serial_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that runs on one thread, called by Python, or by kernels where order cannot change its result.

    What a kernel needs besides is `triton_function`.
    """
    compiled = numba.njit(nogil=True, fastmath={"contract"}, error_model="numpy")
    return cast(Callable[P, R], cache_on_disk(compiled(function)))


def device_function(function: Callable[P, R]) -> Callable[P, R]:
    """A part of kernels, written into each of them: for what is called once an edge, and for all that rounds.

    Of a `serial_kernel` function that a kernel calls there are two versions, compiled alone and within the
    kernel. The process that compiles runs one, those that load the other, and their sums may differ in the
    last bit.
    """
    return cast(Callable[P, R], numba.njit(inline="always")(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """An instruction for kernels: ``raise_outside_kernel(context, *types)`` gives its signature and what emits it."""
    return cast(Callable[..., Any], numba_intrinsic(function))


def overload(select: Callable[..., Callable[..., Any]]) -> Callable[..., Any]:
    """A part of kernels, written into each of them, that ``select`` picks by the types of its arguments."""

    def raise_outside_kernel(*values: Any) -> Any:
        raise NotImplementedError(f"{select.__name__} is for kernels")

    raise_outside_kernel.__name__, raise_outside_kernel.__doc__ = select.__name__, select.__doc__
    numba_overload(raise_outside_kernel, inline="always")(select)
    return raise_outside_kernel


prange: Callable[..., Any] = numba.prange


def gpu_dispatch(function: Callable[P, R]) -> Callable[P, R]:
    """Where a tensor among the arguments is on a GPU, call the function of the same name in the module's GPU twin.

    The twin of a module ``outgrow.ops...NAME`` is ``outgrow.ops.gpu.NAME``; it takes the same arguments and
    is imported when needed.
    """

    @functools.wraps(function)
    def dispatch_call(*args: P.args, **kwargs: P.kwargs) -> R:
        if any(_on_gpu(value) for value in (*args, *kwargs.values())):
            name = function.__module__.rpartition(".")[2]
            twin = getattr(importlib.import_module(f"outgrow.ops.gpu.{name}"), function.__name__)
            return cast(R, twin(*args, **kwargs))
        return function(*args, **kwargs)

    return dispatch_call


def _on_gpu(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_cuda


def once_differentiable(backward: Callable[P, R]) -> Callable[P, R]:
    """Mark the backward pass of a fused operation: it cannot be differentiated again, and says so if it is asked to."""
    return cast(Callable[P, R], mark_once_differentiable(backward))


def as_numpy(tensor: Tensor) -> NDArray[Any]:
    """The memory of a CPU tensor as a contiguous NumPy array, without a copy where it is contiguous already."""
    return tensor.detach().contiguous().numpy()


def as_tensor(values: NDArray[Any]) -> Tensor:
    """The memory of an array as a tensor."""
    return torch.from_numpy(values)


def num_threads() -> int:
    """Threads that a parallel kernel uses."""
    return int(numba.get_num_threads())


def threading_layer() -> str:
    """Name of the threading layer that parallel kernels run on, for `outgrow doctor`; ``serial`` where none are."""
    if not uses_parallel_loops():
        return "serial"
    _run_empty_loop(np.zeros(1, dtype=np.int64))
    return str(numba.threading_layer())  # type: ignore[attr-defined]


@parallel_kernel
def _run_empty_loop(out: NDArray[np.int64]) -> None:
    for i in prange(len(out)):
        out[i] = 1
