"""What compiling kernels takes is counted once, told while it lasts, and is no part of other times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from outgrow.ops.compile_clock import CompileClock

SHORT = 0.02


class Listener:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    @contextmanager
    def __call__(self, kernel: str) -> Iterator[None]:
        self.told.append(f"{kernel} begins")
        try:
            yield
        finally:
            self.told.append(f"{kernel} ends")


def compile_kernel(clock: CompileClock, name: str) -> None:
    with clock.record(name):
        time.sleep(SHORT)


def test_seconds_of_compiling_are_no_working_time() -> None:
    clock = CompileClock()
    began, worked = time.perf_counter(), clock.working_time()
    compile_kernel(clock, "spmm")
    assert clock.seconds >= SHORT
    assert clock.working_time() - worked == pytest.approx(time.perf_counter() - began - clock.seconds, abs=1e-3)


def test_a_part_that_is_compiled_within_a_kernel_counts_with_it() -> None:
    clock, listener = CompileClock(), Listener()
    with clock.notify(listener), clock.record("whole"):
        compile_kernel(clock, "part")
    assert (clock.num_kernels, listener.told) == (1, ["whole begins", "whole ends"])
    assert SHORT <= clock.seconds < 2 * SHORT


def test_listeners_hear_of_what_is_compiled_within_their_context_alone() -> None:
    clock, listener = CompileClock(), Listener()
    compile_kernel(clock, "before")
    with clock.notify(listener):
        compile_kernel(clock, "within")
    compile_kernel(clock, "after")
    assert (clock.num_kernels, listener.told) == (3, ["within begins", "within ends"])


def test_a_kernel_that_cannot_be_compiled_counts_too() -> None:
    clock, listener = CompileClock(), Listener()
    with pytest.raises(ZeroDivisionError), clock.notify(listener), clock.record("outer"), clock.record("inner"):
        raise ZeroDivisionError
    assert (clock.num_kernels, listener.told) == (1, ["outer begins", "outer ends"])
    compile_kernel(clock, "next")
    assert clock.num_kernels == 2
