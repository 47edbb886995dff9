"""Loads ahead and stores behind: in order, with their errors, and without threads that stay."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from outgrow.core.timeline import Timeline
from outgrow.runtime.system.device import CPU, DeviceStreams
from outgrow.strategies.offload.async_io import AsyncIo

BOTH = pytest.mark.parametrize("overlap", [True, False])


@contextmanager
def flow_of(*, overlap: bool) -> Iterator[tuple[AsyncIo, Timeline]]:
    """A flow that leaves no thread behind."""
    before, timeline = set(threading.enumerate()), Timeline()
    flow = AsyncIo(timeline, DeviceStreams(CPU), overlap=overlap)
    yield flow, timeline
    flow.close()
    assert set(threading.enumerate()) == before


def lanes(timeline: Timeline) -> set[tuple[str, str]]:
    return {(span.name, span.thread) for span in timeline.spans}


@BOTH
def test_loads_come_in_order(overlap: bool) -> None:
    with flow_of(overlap=overlap) as (flow, _):
        assert list(flow.load_ahead(lambda item: item * item, range(9))) == [item * item for item in range(9)]
        assert list(flow.load_ahead(lambda item: item, [])) == []
        assert list(flow.load_ahead(lambda item: None, range(3))) == [None] * 3


def test_the_next_load_is_made_meanwhile_and_no_other() -> None:
    begun, second = list[int](), threading.Event()

    def load(item: int) -> int:
        begun.append(item)
        if item == 1:
            second.set()
        return item

    with flow_of(overlap=True) as (flow, _):
        loads = flow.load_ahead(load, range(5))
        assert next(loads) == 0
        assert second.wait(10)
        time.sleep(0.02)
        assert begun == [0, 1]
        loads.close()


@pytest.mark.parametrize(("of_flow", "of_call"), [(False, True), (True, False)])
def test_without_overlap_a_load_is_made_when_it_is_asked_for_by_who_asks(of_flow: bool, of_call: bool) -> None:
    begun = list[tuple[int, str]]()
    with flow_of(overlap=of_flow) as (flow, timeline):
        loads = flow.load_ahead(
            lambda item: begun.append((item, threading.current_thread().name)), range(3), overlap=of_call
        )
        assert begun == []
        next(loads)
        assert begun == [(0, threading.current_thread().name)]
        assert len(list(loads)) == 2
        assert ("load", "compute") in lanes(timeline)


def test_without_overlap_there_is_no_thread() -> None:
    before, seen = threading.active_count(), list[int]()
    with flow_of(overlap=False) as (flow, timeline):
        for _ in flow.load_ahead(lambda item: seen.append(threading.active_count()), range(3)):
            flow.store_async(lambda: seen.append(threading.active_count()))
        flow.flush_stores()
        assert seen == [before] * 6
        assert lanes(timeline) == {(name, "compute") for name in ("load", "store", "wait for loads", "wait for stores")}


def test_threads_have_lanes_of_their_own() -> None:
    with flow_of(overlap=True) as (flow, timeline):
        for _ in flow.load_ahead(lambda item: item, range(3)):
            flow.store_async(lambda: None)
        flow.flush_stores()
        of_threads = {("load", "load"), ("store", "store")}
        assert lanes(timeline) == of_threads | {("wait for loads", "compute"), ("wait for stores", "compute")}


@BOTH
def test_an_error_of_a_load_comes_out_when_its_result_is_due(overlap: bool) -> None:
    def load(item: int) -> int:
        if item == 2:
            raise ValueError("no such row")
        return item

    with flow_of(overlap=overlap) as (flow, _):
        loads = flow.load_ahead(load, range(5))
        assert [next(loads), next(loads)] == [0, 1]
        with pytest.raises(ValueError, match="no such row"):
            next(loads)


@BOTH
def test_an_abandoned_iterator_ends_its_thread(overlap: bool) -> None:
    with flow_of(overlap=overlap) as (flow, _):
        before = threading.active_count()
        loads = flow.load_ahead(lambda item: item, range(100))
        next(loads)
        assert threading.active_count() == before + overlap
        loads.close()
        assert threading.active_count() == before


def test_a_loop_that_fails_ends_the_thread_with_the_iterator() -> None:
    with flow_of(overlap=True) as (flow, _):
        before = threading.active_count()
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            for item in flow.load_ahead(lambda item: item, range(100)):
                1 / item
        assert threading.active_count() == before


@BOTH
def test_stores_are_made_in_order_and_all_before_flush_ends(overlap: bool) -> None:
    written = list[int]()

    def write(number: int) -> None:
        time.sleep(0.002 * (number % 3))
        written.append(number)

    with flow_of(overlap=overlap) as (flow, _):
        for number in range(12):
            flow.store_async(lambda number=number: write(number))
        flow.flush_stores()
        assert written == list(range(12))
        flow.flush_stores()


def test_a_store_returns_at_once_until_much_is_pending() -> None:
    """Two more may wait beside the one that is written."""
    go, written = threading.Event(), list[int]()

    def write(number: int) -> None:
        assert go.wait(10)
        written.append(number)

    with flow_of(overlap=True) as (flow, _):
        for number in range(2):
            flow.store_async(lambda number=number: write(number))
        assert written == []
        timer = threading.Timer(0.05, go.set)
        timer.start()
        flow.store_async(lambda: write(2))
        assert written[0] == 0
        flow.flush_stores()
        timer.join()


@BOTH
def test_an_error_of_a_store_comes_out_at_flush_at_the_latest(overlap: bool) -> None:
    def fail() -> None:
        raise OSError("no room")

    with flow_of(overlap=overlap) as (flow, _), pytest.raises(OSError, match="no room"):  # noqa: PT012
        flow.store_async(fail)
        flow.flush_stores()


def test_an_error_of_a_store_comes_out_of_a_later_store() -> None:
    def fail() -> None:
        raise OSError("no room")

    with flow_of(overlap=True) as (flow, _), pytest.raises(OSError, match="no room"):  # noqa: PT012
        flow.store_async(fail)
        for _ in range(10):
            flow.store_async(lambda: None)


@BOTH
def test_closing_finishes_what_was_given(overlap: bool) -> None:
    written = list[int]()
    with flow_of(overlap=overlap) as (flow, _):
        for number in range(2):
            flow.store_async(lambda number=number: (time.sleep(0.02), written.append(number))[1])
    assert written == [0, 1]
