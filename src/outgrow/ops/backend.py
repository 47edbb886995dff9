"""Compilation of kernels with Numba, dispatch to the GPU kernels, views of tensors as arrays.

Kernel files decorate with `parallel_kernel` (parallel loops) or `serial_kernel` (one thread), and take
tensors through `as_numpy`. Nothing is compiled before its first call; compiled code is kept on disk for later
processes (`kernel_cache.py`). A function of tensors with a GPU counterpart in `outgrow.ops.gpu` is decorated
with `gpu_dispatch`.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
import torch
from numba.core.dispatcher import Dispatcher
from numba.extending import intrinsic as numba_intrinsic
from numba.extending import overload as numba_overload
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable as mark_once_differentiable

from outgrow.ops import gpu_runner
from outgrow.ops.compile_processes import CompileRequest, KernelName, compile_processes
from outgrow.ops.kernel_cache import AUTO, PARALLEL, SERIAL, cache_on_disk, is_stored, loop_mode

TINY_BYTES = 1 << 19
"""Size of the largest array of a kernel that always runs on one thread: threads would take as long to begin."""
SMALL_BYTES = 1 << 20
"""The same if the form for all threads is not on disk: a millisecond of work or two."""
MEDIUM_BYTES = 64 << 20
"""Size of the largest array of a kernel that runs on one thread while other processes compile the form for all."""

P = ParamSpec("P")
R = TypeVar("R")


def parallel_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function whose `prange` loops run on all threads. Sums are never reordered.

    See `LoopKernel` for small arrays, and `kernel_cache.loop_mode` for what the environment says.
    """
    return _compile_loops(function, {"contract"})


def reducing_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a `parallel_kernel` whose innermost sums the compiler may reorder, always in the same way."""
    return _compile_loops(function, {"contract", "reassoc"})


def _compile_loops(function: Callable[P, R], fastmath: set[str]) -> Callable[P, R]:
    def compile_for(in_parallel: bool) -> Callable[P, R]:
        compiled = numba.njit(parallel=in_parallel, nogil=True, fastmath=fastmath, error_model="numpy")
        return cast(Callable[P, R], cache_on_disk(compiled(function)))

    return cast(Callable[P, R], LoopKernel(function, compile_for))


class LoopKernel:
    """A kernel with `prange` loops in two forms: for all threads, and for one, which compiles in half the time.

    Tiny arrays take the second, and all arrays in a process with one thread; so do small ones where the first is not on
    disk: threads would gain no time worth the compilation. Once arrays were large, all take the first, for which the
    second stands in while other processes compile it. Results are the same. Final.

    Args:
        function: The function.
        compile_for: Returns it compiled, for all threads or for one.

    Attributes:
        name: What finds the kernel in another process; None for one that is not the library's.
    """

    def __init__(self, function: Callable[..., Any], compile_for: Callable[[bool], Callable[..., Any]]) -> None:
        functools.update_wrapper(self, function)
        self.in_parallel, self.in_series = compile_for(True), compile_for(False)
        self._had_large_arrays = False
        self._stays_serial = False
        is_found = function.__qualname__ == function.__name__ and function.__module__.startswith("outgrow.")
        self.name = KernelName(function.__module__, function.__name__) if is_found else None
        if isinstance(self.in_parallel, Dispatcher):
            _wrap_compile(self, self.in_parallel)

    def __call__(self, *args: Any) -> Any:
        """Run the form that suits the arguments."""
        global _has_run_kernels
        _has_run_kernels = True
        largest = _largest_bytes(args)
        if not self._had_large_arrays or _forked_with_threads:
            if _runs_serially(largest, SMALL_BYTES if self._stays_serial else TINY_BYTES):
                return self.in_series(*args)
            self._had_large_arrays = loop_mode() == AUTO and largest > SMALL_BYTES
        token = _array_bytes.set(largest)
        try:
            return self.in_parallel(*args)
        except _CompiledElsewhere:
            return self.in_series(*args)
        finally:
            _array_bytes.reset(token)

    def run_if_compiled(self, other: Callable[[], Any], *args: Any) -> Any:
        """Run the form for all threads, or ``other``, which writes the same, until another process has compiled it."""
        if loop_mode() != AUTO or _forked_with_threads or _most_threads() == 1:
            return other()
        self._had_large_arrays = True
        token = _array_bytes.set(_largest_bytes(args))
        try:
            return self.in_parallel(*args)
        except _CompiledElsewhere:
            return other()
        finally:
            _array_bytes.reset(token)

    def give_up_threads(self) -> bool:
        """Run small arrays on one thread from now on, and return true; false once arrays were large."""
        self._stays_serial = not self._had_large_arrays
        return self._stays_serial


class _CompiledElsewhere(Exception):
    """A form is being compiled in another process, or is not worth it: the other one stands in."""


def _wrap_compile(kernel: LoopKernel, dispatcher: Any) -> None:
    # Numba calls it for types of arguments that are new: calls of what is compiled pay nothing for it.
    compiling = dispatcher.compile

    @functools.wraps(compiling)
    def compile_here_or_elsewhere(signature: Any) -> Any:
        largest = _array_bytes.get()
        if largest <= MEDIUM_BYTES and loop_mode() == AUTO and not _compiles_first:
            request = None if kernel.name is None else CompileRequest(kernel.name, tuple(signature))
            if request is not None and compile_processes.is_open(request):
                raise _CompiledElsewhere
            if not is_stored(dispatcher, tuple(signature)):
                # Not for small arrays: the other process would take more from a short run than threads give.
                if kernel.give_up_threads():
                    raise _CompiledElsewhere
                if request is not None and compile_processes.submit(request):
                    raise _CompiledElsewhere
        return compiling(signature)

    dispatcher.compile = compile_here_or_elsewhere


_array_bytes = ContextVar("_array_bytes", default=MEDIUM_BYTES + 1)
"""Size of the largest array of the kernel that is being called."""


def kernel_factory(make: Callable[P, R]) -> Callable[P, R]:
    """Keep the kernels that a function makes, by its arguments, which are numbers, None or tuples of them."""

    @functools.cache
    def make_once(*args: Any) -> Any:
        kernel = cast(Callable[..., Any], make)(*args)
        if isinstance(kernel, LoopKernel):
            kernel.name = KernelName(make.__module__, make.__name__, args)
        return kernel

    return cast(Callable[P, R], functools.wraps(make)(make_once))


def find_kernel(name: KernelName) -> Any:
    """Return a kernel by its name.

    Raises:
        AttributeError: There is none.
    """
    found = getattr(importlib.import_module(name.module), name.name)
    return found if name.arguments is None else found(*name.arguments)


_has_run_kernels = False
_ignores_sizes = _compiles_first = False
_forked_with_threads = False


def _runs_serially(largest: int, most_bytes: int) -> bool:
    mode = PARALLEL if _ignores_sizes and loop_mode() == AUTO else loop_mode()
    if mode != AUTO or _forked_with_threads or _most_threads() == 1:
        return mode != PARALLEL or _forked_with_threads
    return largest <= most_bytes


def _largest_bytes(args: tuple[Any, ...]) -> int:
    largest = 0
    # Not by `max`: small arrays are asked about in every call.
    for each in args:
        if isinstance(each, np.ndarray) and each.nbytes > largest:
            largest = each.nbytes
    return largest


@contextmanager
def run_on_all_threads() -> Iterator[None]:
    """Run kernels on all threads within the context, however small their arrays are: to measure what a machine can.

    See also `compile_before_running`.
    """
    global _ignores_sizes
    before, _ignores_sizes = _ignores_sizes, True
    try:
        with compile_before_running():
            yield
    finally:
        _ignores_sizes = before


@contextmanager
def compile_before_running() -> Iterator[None]:
    """Let no form stand in for one that is being compiled within the context: for what times steps."""
    global _compiles_first
    before, _compiles_first = _compiles_first, True
    try:
        yield
    finally:
        _compiles_first = before


def _most_threads() -> int:
    """Return how many threads the process may use, without starting them."""
    return int(getattr(numba.config, "NUMBA_NUM_THREADS", 1))


def _run_serially_after_fork() -> None:
    """Run kernels on one thread in a forked child whose parent has run some.

    The threads of OpenMP, which torch has started by then if no kernel has, are not in the child, where a loop would
    wait for them for ever. Results stay the same: they do not depend on threads.
    """
    global _forked_with_threads
    if not _has_run_kernels:
        return
    _forked_with_threads = True
    torch.set_num_threads(1)


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_run_serially_after_fork)


def serial_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that runs on one thread.

    It is called from Python, or from kernels if the order of operations cannot change its result. Other
    helpers of kernels are a `device_function`.
    """
    compiled = numba.njit(nogil=True, fastmath={"contract"}, error_model="numpy")
    return cast(Callable[P, R], cache_on_disk(compiled(function)))


def device_function(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a part of kernels that is inlined into each: for calls per edge, and for all that rounds.

    A `serial_kernel` called by a kernel exists in two versions, compiled alone and within the kernel. The
    process that compiles runs one and processes that load from the cache the other, and their sums may differ
    in the last bit.
    """
    return cast(Callable[P, R], numba.njit(inline="always")(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare an instruction for kernels: ``function(context, *types)`` returns its signature and emitter."""
    return cast(Callable[..., Any], numba_intrinsic(function))


def overload(select: Callable[..., Callable[..., Any]]) -> Callable[..., Any]:
    """Declare a part of kernels, inlined, that ``select`` chooses by the types of its arguments."""

    def raise_outside_kernel(*values: Any) -> Any:
        raise NotImplementedError(f"{select.__name__} is for kernels")

    raise_outside_kernel.__name__ = select.__name__
    raise_outside_kernel.__doc__ = select.__doc__
    numba_overload(raise_outside_kernel, inline="always")(select)
    return raise_outside_kernel


prange: Callable[..., Any] = numba.prange


def gpu_dispatch(function: Callable[P, R]) -> Callable[P, R]:
    """Call the function of the same name in `outgrow.ops.gpu` if a tensor argument is on a GPU.

    The counterpart of module ``outgrow.ops...NAME`` is ``outgrow.ops.gpu.NAME``; it takes the same arguments
    and is imported when needed.
    """

    @functools.wraps(function)
    def dispatch_call(*args: P.args, **kwargs: P.kwargs) -> R:
        if any(_on_gpu(value) for value in (*args, *kwargs.values())):
            name = function.__module__.rpartition(".")[2]
            counterpart = getattr(importlib.import_module(f"outgrow.ops.gpu.{name}"), function.__name__)
            return cast(R, gpu_runner.run(function, counterpart, args, kwargs))
        return function(*args, **kwargs)

    return dispatch_call


def _on_gpu(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_cuda


def once_differentiable(backward: Callable[P, R]) -> Callable[P, R]:
    """Mark the backward pass of a fused operation: differentiating it again raises an error."""
    return cast(Callable[P, R], mark_once_differentiable(backward))


def as_numpy(tensor: Tensor) -> NDArray[Any]:
    """Return the memory of a CPU tensor as a contiguous NumPy array; a copy only if it is not contiguous."""
    return tensor.detach().contiguous().numpy()


def as_tensor(values: NDArray[Any]) -> Tensor:
    """Return the memory of an array as a tensor."""
    return torch.from_numpy(values)


def num_threads() -> int:
    """Return the number of threads that a parallel kernel uses."""
    return int(numba.get_num_threads())


def threading_layer() -> str:
    """Return the threading layer of parallel kernels, for `outgrow doctor`; ``serial`` without threads."""
    if loop_mode() == SERIAL:
        return "serial"
    # Numba chooses the layer when the first parallel loop runs.
    cast(LoopKernel, _run_empty_loop).in_parallel(np.zeros(1, dtype=np.int64))
    return str(numba.threading_layer())  # type: ignore[attr-defined]


@parallel_kernel
def _run_empty_loop(out: NDArray[np.int64]) -> None:
    for i in prange(len(out)):
        out[i] = 1
