"""Work ahead of its use: in order, bounded, and ended early without leaving threads behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from outgrow.engine.pipeline import prefetched


def test_results_come_in_order_whatever_takes_longest() -> None:
    def work(item: int) -> int:
        time.sleep(0.01 * (item % 3))
        return item * item

    assert list(prefetched(work, range(20), threads=3, ahead=5)) == [item * item for item in range(20)]
    assert list(prefetched(work, [], threads=3, ahead=5)) == []


def test_no_more_is_begun_than_is_wanted() -> None:
    begun: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            begun.append(item)
            yield item

    with closing(prefetched(lambda item: item, items(), threads=2, ahead=3)) as results:
        for expected in range(10):
            assert next(results) == expected
            assert len(begun) <= expected + 1 + 3


def test_work_goes_on_beside_its_use() -> None:
    meeting = threading.Barrier(3, timeout=10)
    results = prefetched(lambda item: meeting.wait(), range(6), threads=3, ahead=3)
    assert len(list(results)) == 6


def test_an_error_comes_when_its_result_is_due() -> None:
    def work(item: int) -> int:
        if item == 2:
            raise ValueError("no such item")
        return item

    results = prefetched(work, range(5), threads=2, ahead=4)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="no such item"):
        next(results)


def test_threads_end_with_the_iterator() -> None:
    before = threading.active_count()
    with closing(prefetched(lambda item: item, range(1000), threads=4, ahead=8)) as results:
        next(results)
    assert threading.active_count() == before
