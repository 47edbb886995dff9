"""What compiling kernels takes: seconds of this process, and listeners that are told while they pass.

A kernel counts while it is compiled, or while another process compiles it and this one waits; reading it from the disk
does not count, nor does a part that is compiled within another kernel. Numba's lock lets one thread compile at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import NamedTuple

CompileListener = Callable[[str], AbstractContextManager[None]]
"""Returns a context for the name of a kernel, in which it is compiled by the current thread."""


def describe_compilation(number: int, kernel: str, count: int | None = None) -> str:
    """Return what is said while a kernel is compiled: ``compiling kernel 7 of 12 (spmm)``.

    Args:
        number: Its number, from 1.
        kernel: Its name.
        count: How many there are; None if that is not known.
    """
    of_all = "" if count is None else f" of {count}"
    return f"compiling kernel {number}{of_all} ({kernel.lstrip('_')})"


class CompileCount(NamedTuple):
    """Kernels that were compiled.

    Attributes:
        kernels: Number of kernels.
        seconds: What they took.
    """

    kernels: int
    seconds: float


class CompileClock:
    """Counts kernels that this process compiles, and seconds. Final.

    Attributes:
        num_kernels: Kernels so far.
        num_loaded: Kernels that were found on disk.
    """

    def __init__(self) -> None:
        self.num_kernels = self.num_loaded = 0
        # Seconds of finished kernels and the start of one that is not: one tuple, as other threads read it.
        self._passed: tuple[float, float | None] = (0.0, None)
        self._listeners: list[CompileListener] = []
        self._depth = 0

    @property
    def seconds(self) -> float:
        """Seconds so far, of the kernel that is being compiled too."""
        return self._seconds_until(time.perf_counter())

    @property
    def count(self) -> CompileCount:
        """Kernels and seconds so far."""
        return CompileCount(self.num_kernels, self.seconds)

    def working_time(self) -> float:
        """Return `time.perf_counter` less the seconds of compiling: what epochs are timed by."""
        now = time.perf_counter()
        return now - self._seconds_until(now)

    def _seconds_until(self, now: float) -> float:
        finished, began = self._passed
        return finished if began is None else finished + now - began

    @contextmanager
    def notify(self, listener: CompileListener) -> Iterator[None]:
        """Tell a listener of kernels that are compiled within the context, by any thread."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def count_loaded(self) -> None:
        """Count a kernel that was found on disk, unless it is within one that is compiled. Hold Numba's lock."""
        self.num_loaded += self._depth == 0

    @contextmanager
    def record(self, kernel: str) -> Iterator[None]:
        """Count the context as the compilation of a kernel, unless it is within another. Hold Numba's lock."""
        self._depth += 1
        if self._depth > 1:
            try:
                yield
            finally:
                self._depth -= 1
            return
        finished, began = self._passed[0], time.perf_counter()
        self._passed = finished, began
        try:
            with ExitStack() as stack:
                for listener in tuple(self._listeners):
                    stack.enter_context(listener(kernel))
                yield
        finally:
            self._depth -= 1
            self.num_kernels += 1
            self._passed = finished + time.perf_counter() - began, None


class CompileTally:
    """Counts what a clock has counted since the tally was made. Final.

    Args:
        clock: The clock.
    """

    def __init__(self, clock: CompileClock) -> None:
        self._clock = clock
        self._began = self._taken = clock.count

    @property
    def total(self) -> CompileCount:
        """All kernels since the tally was made."""
        return _subtract(self._clock.count, self._began)

    def take_fresh(self) -> CompileCount:
        """Return the kernels that were not returned yet."""
        before, self._taken = self._taken, self._clock.count
        return _subtract(self._taken, before)


def _subtract(now: CompileCount, before: CompileCount) -> CompileCount:
    return CompileCount(now.kernels - before.kernels, now.seconds - before.seconds)


compile_clock = CompileClock()
"""The clock of this process."""
