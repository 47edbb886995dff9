"""Work ahead of its use: in order, bounded, and ended early, with or without waiting for what is under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from outgrow.engine.prefetch import BackgroundWorker, prefetch_results


def test_results_come_in_order_whatever_takes_longest() -> None:
    def work(item: int) -> int:
        time.sleep(0.01 * (item % 3))
        return item * item

    assert list(prefetch_results(work, range(20), threads=3, max_ahead=5)) == [item * item for item in range(20)]
    assert list(prefetch_results(work, [], threads=3, max_ahead=5)) == []


def test_no_more_is_begun_than_is_wanted() -> None:
    begun: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            begun.append(item)
            yield item

    with closing(prefetch_results(lambda item: item, items(), threads=2, max_ahead=3)) as results:
        for expected in range(10):
            assert next(results) == expected
            assert len(begun) <= expected + 1 + 3


def test_work_goes_on_beside_its_use() -> None:
    meeting = threading.Barrier(3, timeout=10)
    results = prefetch_results(lambda item: meeting.wait(), range(6), threads=3, max_ahead=3)
    assert len(list(results)) == 6


def test_an_error_comes_when_its_result_is_due() -> None:
    def work(item: int) -> int:
        if item == 2:
            raise ValueError("no such item")
        return item

    results = prefetch_results(work, range(5), threads=2, max_ahead=4)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="no such item"):
        next(results)


def test_threads_end_with_the_iterator() -> None:
    before = threading.active_count()
    with closing(prefetch_results(lambda item: item, range(1000), threads=4, max_ahead=8)) as results:
        next(results)
    assert threading.active_count() == before


def background() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "outgrow-ahead"]


def wait_until_gone(before: list[threading.Thread]) -> None:
    for thread in background():
        if thread not in before:
            thread.join(10)
            assert not thread.is_alive()


def test_one_thread_works_in_order_in_the_background() -> None:
    threads: list[threading.Thread] = []

    def work(item: int) -> int:
        threads.append(threading.current_thread())
        time.sleep(0.005 * (item % 3))
        return item * item

    assert list(BackgroundWorker(work, range(20), max_ahead=5)) == [item * item for item in range(20)]
    assert len({*threads}) == 1
    assert threads[0] is not threading.current_thread()
    assert list(BackgroundWorker(work, [], max_ahead=1)) == []
    assert list(BackgroundWorker(lambda item: None, range(3), max_ahead=1)) == [None] * 3


@pytest.mark.parametrize("ahead", [1, 3])
def test_the_background_is_so_far_ahead_and_no_further(ahead: int) -> None:
    begun: list[int] = []
    enough = threading.Semaphore(0)

    def work(item: int) -> int:
        begun.append(item)
        enough.release()
        return item

    with closing(BackgroundWorker(work, range(100), max_ahead=ahead)) as worker:
        results = iter(worker)
        for expected in range(10):
            assert next(results) == expected
            for _ in range(1 + ahead if expected == 0 else 1):
                assert enough.acquire(timeout=10)
            time.sleep(0.01)  # time in which it might begin more
            assert len(begun) == expected + 1 + ahead


def test_the_background_works_beside_the_use_of_its_results() -> None:
    meeting = threading.Barrier(2, timeout=10)
    results = iter(BackgroundWorker(lambda item: meeting.wait() if item else -1, range(4), max_ahead=1))
    assert next(results) == -1
    for _ in range(3):
        meeting.wait()  # the next result is under way
        next(results)


@pytest.mark.parametrize("where", ["work", "items"])
def test_an_error_in_the_background_comes_when_its_result_is_due(where: str) -> None:
    before = background()

    def fail(place: str, item: int) -> None:
        if place == where and item == 2:
            raise ValueError("no such item")

    def work(item: int) -> int:
        fail("work", item)
        return item

    def items() -> Iterator[int]:
        for item in range(5):
            fail("items", item)
            yield item

    results = iter(BackgroundWorker(work, items(), max_ahead=4))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="no such item"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)
    wait_until_gone(before)


@pytest.mark.parametrize("used", [0, 1, 2])
def test_nobody_waits_for_what_is_under_way_in_the_background(used: int) -> None:
    """As when it waits for a worker that is gone."""
    before, blocked, forever = background(), threading.Event(), threading.Event()

    def work(item: int) -> int:
        if item == 2:
            blocked.set()
            forever.wait()
        return item

    worker = BackgroundWorker(work, range(5), max_ahead=2)
    results = iter(worker)
    assert [next(results) for _ in range(used)] == [*range(used)]
    assert used == 0 or blocked.wait(10)
    start = time.monotonic()
    worker.close()
    assert time.monotonic() - start < 1
    forever.set()
    wait_until_gone(before)


def test_after_an_early_end_nothing_more_is_begun() -> None:
    before, begun = background(), list[int]()
    worker = BackgroundWorker(begun.append, range(100), max_ahead=3)
    next(iter(worker))
    worker.close()
    wait_until_gone(before)
    assert len(begun) <= 4


def test_given_work_is_done_in_order_by_one_thread() -> None:
    before, threads, done = background(), list[threading.Thread](), list[int]()

    def work(item: int) -> int:
        threads.append(threading.current_thread())
        time.sleep(0.005 * (item % 3))
        done.append(item)
        return item * item

    with closing(BackgroundWorker(work)) as given:
        for item in range(5):
            given.submit(item)
        assert [given.result() for _ in range(3)] == [0, 1, 4]
        given.submit(5)
        assert [given.result() for _ in range(3)] == [9, 16, 25]
    assert done == [*range(6)]
    assert len({*threads}) == 1
    assert threads[0] is not threading.current_thread()
    wait_until_gone(before)


def test_given_work_goes_on_beside_whoever_gave_it() -> None:
    meeting = threading.Barrier(2, timeout=10)
    with closing(BackgroundWorker(lambda item: meeting.wait())) as given:
        for item in range(3):
            given.submit(item)
            meeting.wait()
            given.result()


@pytest.mark.parametrize("error", [ValueError("no such item"), SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.timeout(60)
def test_an_error_in_given_work_comes_when_its_result_is_due_and_from_then_on(error: BaseException) -> None:
    before = background()

    def work(item: int) -> int:
        if item == 2:
            raise error
        return item

    given = BackgroundWorker(work)
    for item in range(5):
        given.submit(item)
    assert [given.result(), given.result()] == [0, 1]
    for _ in range(3):
        with pytest.raises(type(error)) as caught:
            given.result()
        assert caught.value is error
        given.submit(7)
    wait_until_gone(before)
    given.close()


@pytest.mark.timeout(60)
def test_after_work_was_ended_nothing_is_due() -> None:
    before, given = background(), BackgroundWorker(lambda item: item)
    given.submit(1)
    given.close()
    given.close()
    given.submit(2)
    assert given.result() == 1
    with pytest.raises(RuntimeError, match="ended"):
        given.result()
    wait_until_gone(before)


def test_who_closes_may_wait_for_what_was_submitted() -> None:
    before, done = background(), list[int]()

    def work(item: int) -> None:
        time.sleep(0.02)
        done.append(item)

    given = BackgroundWorker(work)
    for item in range(3):
        given.submit(item)
    given.close(wait=True)
    assert done == [0, 1, 2]
    assert background() == before


def test_what_shares_a_lock_works_one_after_the_other() -> None:
    before, lock, order = background(), threading.Lock(), list[str]()
    go = threading.Event()

    def first(item: int) -> None:
        assert go.wait(10)
        order.append("first")

    workers = [BackgroundWorker(first, lock=lock), BackgroundWorker(lambda item: order.append("second"), lock=lock)]
    workers[0].submit(0)
    while not lock.locked():
        time.sleep(0.001)
    workers[1].submit(0)
    time.sleep(0.02)
    assert order == []
    workers[0].close()
    go.set()
    workers[1].result()
    assert order == ["first", "second"]
    workers[1].close()
    wait_until_gone(before)


def test_a_worker_that_was_never_used_has_no_thread() -> None:
    before, given = threading.active_count(), BackgroundWorker(lambda item: item)
    assert threading.active_count() == before
    given.close(wait=True)
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="ended"):
        given.result()


def test_without_threads_an_error_comes_when_work_is_started() -> None:
    def begin(item: int) -> int:
        if item == 1:
            raise ValueError("no such item")
        return item

    results = prefetch_results(begin, range(3), threads=0, max_ahead=1)
    with pytest.raises(ValueError, match="no such item"):
        next(results)


def test_nobody_waits_for_given_work_that_is_under_way() -> None:
    before, blocked, forever = background(), threading.Event(), threading.Event()

    def work(item: int) -> int:
        blocked.set()
        forever.wait()
        return item

    given = BackgroundWorker(work)
    given.submit(0)
    assert blocked.wait(10)
    start = time.monotonic()
    given.close()
    assert time.monotonic() - start < 1
    forever.set()
    wait_until_gone(before)


@pytest.mark.parametrize("number", [0, 1, 4])
def test_the_next_is_begun_before_one_is_given(number: int) -> None:
    begun: list[int] = []

    def begin(item: int) -> int:
        begun.append(item)
        return -item

    for item, result in prefetch_results(lambda item: (item, begin(item)), range(number), threads=0, max_ahead=1):
        assert result == -item
        assert begun == [*range(min(item + 2, number))]
    assert begun == [*range(number)]
