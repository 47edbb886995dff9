"""What compiling kernels takes is counted once, told while it lasts, and is no part of other times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from outgrow.core import compile_clock as module
from outgrow.core.compile_clock import CompileClock, CompileTally, describe_compilation


class Now:
    """The time of the tests, which passes when they say so."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def wait(self, seconds: float) -> None:
        self.seconds += seconds


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


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    now = Now()
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now.seconds))
    return now


def test_seconds_of_compiling_are_no_working_time(now: Now) -> None:
    clock = CompileClock()
    began = clock.working_time()
    now.wait(1)
    with clock.record("spmm"):
        now.wait(5)
    now.wait(2)
    assert (clock.seconds, clock.working_time() - began) == (5, 3)


def test_a_kernel_counts_while_it_is_being_compiled(now: Now) -> None:
    """Else an epoch that begins while another thread compiles would take less than no time."""
    clock = CompileClock()
    with clock.record("spmm"):
        now.wait(5)
        began = clock.working_time()
        assert clock.seconds == 5
        now.wait(2)
        assert (clock.seconds, clock.working_time() - began) == (7, 0)
    now.wait(1)
    assert (clock.seconds, clock.working_time() - began) == (7, 1)


def test_a_part_that_is_compiled_within_a_kernel_counts_with_it(now: Now) -> None:
    clock, listener = CompileClock(), Listener()
    with clock.notify(listener), clock.record("whole"):
        now.wait(1)
        with clock.record("part"):
            now.wait(2)
    assert (clock.num_kernels, clock.seconds, listener.told) == (1, 3, ["whole begins", "whole ends"])


def test_listeners_hear_of_what_is_compiled_within_their_context_alone(now: Now) -> None:
    clock, listener = CompileClock(), Listener()
    with clock.record("before"):
        now.wait(1)
    with clock.notify(listener), clock.record("within"):
        now.wait(1)
    with clock.record("after"):
        now.wait(1)
    assert (clock.num_kernels, clock.seconds, listener.told) == (3, 3, ["within begins", "within ends"])


def test_a_kernel_that_cannot_be_compiled_counts_too(now: Now) -> None:
    clock, listener = CompileClock(), Listener()

    def fail() -> None:
        with clock.notify(listener), clock.record("outer"), clock.record("inner"):
            now.wait(4)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (clock.num_kernels, clock.seconds, listener.told) == (1, 4, ["outer begins", "outer ends"])
    with clock.record("next"):
        now.wait(1)
    assert (clock.num_kernels, clock.seconds) == (2, 5)


def test_what_is_said_claims_no_count_that_is_unknown() -> None:
    assert describe_compilation(7, "_weighted_sum") == "compiling kernel 7 (weighted_sum)"
    assert describe_compilation(7, "spmm", 12) == "compiling kernel 7 of 12 (spmm)"


def test_a_tally_counts_since_it_was_made(now: Now) -> None:
    clock = CompileClock()
    with clock.record("before"):
        now.wait(1)
    tally = CompileTally(clock)
    assert (tally.total, tally.take_fresh()) == ((0, 0), (0, 0))
    with clock.record("first"):
        now.wait(2)
        assert tally.take_fresh() == (0, 2)
        now.wait(3)
    assert tally.take_fresh() == (1, 3)
    assert (tally.total, tally.take_fresh()) == ((1, 5), (0, 0))
