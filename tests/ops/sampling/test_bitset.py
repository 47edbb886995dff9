"""Sets as bits against Python's sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from outgrow.ops.sampling import bitset
from outgrow.ops.sampling.bitset import (
    count_bits,
    count_difference,
    count_intersections,
    num_words,
    ranks_before_words,
    set_bits,
    set_rank_bits,
)

IDS = st.sets(st.integers(0, 299), max_size=80)


def words_of(*sets: set[int], count: int = 300) -> NDArray[np.uint64]:
    """``[number of sets, W]``."""
    words = np.zeros((len(sets), num_words(count)), dtype=np.uint64)
    for numbers, row in zip(sets, words, strict=True):
        set_bits(np.array(sorted(numbers), dtype=np.int64), row)
    return words


def numbers_in(words: NDArray[np.uint64]) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


@pytest.mark.parametrize(("count", "words"), [(0, 0), (1, 1), (64, 1), (65, 2), (6400, 100)])
def test_words_hold_64_numbers_each(count: int, words: int) -> None:
    assert num_words(count) == words


@settings(deadline=None)
@given(IDS, IDS)
def test_numbers_are_added_to_a_set(first: set[int], second: set[int]) -> None:
    (row,) = words_of(first)
    set_bits(np.array(sorted(second), dtype=np.int32), row)
    assert numbers_in(row) == first | second


@settings(deadline=None)
@given(IDS, IDS)
def test_sizes(numbers: set[int], others: set[int]) -> None:
    mine, theirs = words_of(numbers, others)
    assert count_bits(mine) == len(numbers)
    assert count_difference(mine, theirs) == len(numbers - others)
    before = ranks_before_words(mine)
    assert before.dtype == np.int64
    assert before.tolist() == [sum(number < 64 * w for number in numbers) for w in range(len(mine))]


@settings(deadline=None)
@given(IDS, IDS)
def test_ranks_in_a_sample(numbers: set[int], sample: set[int]) -> None:
    (drawn,) = words_of(sample)
    (row,) = words_of(set(), count=len(sample) + 1)
    set_rank_bits(np.array(sorted(numbers), dtype=np.int64), drawn, ranks_before_words(drawn), row)
    assert numbers_in(row) == {rank for rank, number in enumerate(sorted(sample)) if number in numbers}


def test_words_that_are_full() -> None:
    (row,) = words_of(set(range(64)), count=64)
    assert row.tolist() == [2**64 - 1]
    assert count_bits(row) == 64
    (ranks,) = words_of(set(), count=64)
    set_rank_bits(np.arange(64), row, ranks_before_words(row), ranks)
    assert ranks.tolist() == row.tolist()


@settings(deadline=None)
@given(st.lists(IDS, max_size=6), st.lists(IDS, max_size=6))
def test_common_numbers_of_pairs(sets: list[set[int]], others: list[set[int]]) -> None:
    common = count_intersections(words_of(*sets), words_of(*others))
    assert common.shape == (len(sets), len(others))
    assert common.tolist() == [[len(a & b) for b in others] for a in sets]


@pytest.mark.parametrize("threads", [1, 3])
def test_many_words_are_counted_once_by_some_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bitset, "num_threads", lambda: threads)
    rng: Any = np.random.default_rng(threads)
    sets, others = (rng.integers(0, 2**64, (count, 1001), dtype=np.uint64) for count in (4, 7))
    sets[rng.random(sets.shape) < 0.5] = 0
    expected = np.bitwise_count(sets[:, None] & others[None]).sum(axis=2, dtype=np.int64)
    assert (count_intersections(sets, others) == expected).all()
