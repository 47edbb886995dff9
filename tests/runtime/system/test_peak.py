"""Memory over time, and the warning before there is too little."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from outgrow.runtime.system import process_memory
from outgrow.runtime.system.process_memory import MemoryLimit, PeakMemorySampler


def held(values: list[int]) -> Iterator[int]:
    yield from values
    while True:
        yield values[-1]


def test_moments_are_thinned_and_keep_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, "_MOST_MOMENTS", 8)
    amounts = held([1, *range(100), 5000, *range(100)])
    memory = PeakMemorySampler(lambda: next(amounts))
    for _ in range(201):
        memory._take_sample()
    assert memory.peak_bytes == 5000
    assert max(most for _, most in memory.history) == 5000
    assert 4 <= len(memory.history) <= 9
    assert [seconds for seconds, _ in memory.history] == sorted(seconds for seconds, _ in memory.history)


def test_one_warning_before_the_limit() -> None:
    said: list[int] = []
    amounts = held([10, 50, 89, 91, 95, 99, 101])
    memory = PeakMemorySampler(lambda: next(amounts), MemoryLimit(limit_bytes=100, warn_fraction=0.9, warn=said.append))
    for _ in range(6):
        memory._take_sample()
    assert said == [91]


def test_no_warning_within_the_limit() -> None:
    said: list[int] = []
    with PeakMemorySampler(lambda: 10, MemoryLimit(limit_bytes=100, warn_fraction=0.9, warn=said.append)) as memory:
        time.sleep(0.1)
    assert said == []
    assert len(memory.history) >= 3
    assert {most for _, most in memory.history} == {10}
