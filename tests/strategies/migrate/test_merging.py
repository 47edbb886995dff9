"""How many time steps there are after some epochs, and what is left of it when a run is interrupted."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outgrow.strategies.migrate.schedule import TimeStepMerger


def told(size: int, *seconds: float) -> list[TimeStepMerger]:
    """What is known at first, and after each of some epochs."""
    found = [TimeStepMerger(size=size)]
    for each in seconds:
        found.append(found[-1].after_epoch(each))
    return found


def time_steps(size: int, *seconds: float) -> list[int]:
    """Of each epoch, and of one more."""
    return [each.time_steps for each in told(size, *seconds)]


def test_the_epochs_of_figure_17() -> None:
    """Four machines; two time steps are slower than three, which stay."""
    assert time_steps(4, 9.0, 8.0, 8.5, 1.0, 20.0) == [4, 3, 2, 3, 3, 3]
    assert [each.settled for each in told(4, 9.0, 8.0, 8.5, 1.0)] == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("size", "seconds", "expected"),
    [
        (4, (9.0, 10.0, 1.0), [4, 3, 4, 4]),
        (4, (9.0, 9.0), [4, 3, 4]),
        (3, (9.0, 8.0, 8.0), [3, 2, 1, 2]),
        (3, (9.0, 8.0, 7.0, 99.0), [3, 2, 1, 1, 1]),
        (2, (9.0, 8.0, 9.0), [2, 1, 1, 1]),
        (2, (9.0, 10.0, 1.0), [2, 1, 2, 2]),
        (1, (9.0, 1.0), [1, 1, 1]),
    ],
    ids=["slower at once", "a tie is not faster", "a late tie", "down to one", "two", "two, slower", "one"],
)
def test_time_steps(size: int, seconds: tuple[float, ...], expected: list[int]) -> None:
    assert time_steps(size, *seconds) == expected
    assert told(size, *seconds)[-1].settled == (seconds != (9.0,))


def test_epochs_are_recorded_until_it_is_settled() -> None:
    *_, last = told(4, 9.0, 8.0, 8.5, 1.0, 20.0)
    assert last.log == ((4, 9.0), (3, 8.0), (2, 8.5))
    assert last.fastest == 8.0


@given(st.integers(1, 8), st.lists(st.floats(0, 100), max_size=12))
def test_it_always_settles_on_the_fastest(size: int, seconds: list[float]) -> None:
    """After as many epochs as there are workers at the latest; then nothing changes it."""
    found = told(size, *seconds)
    assert all(1 <= each.time_steps <= size for each in found)
    assert all(each.settled for each in found[size + (size == 1) :])
    last = found[-1]
    assert [steps for steps, _ in last.log] == list(range(size, size - len(last.log), -1))
    assert [took for _, took in last.log] == seconds[: len(last.log)]
    if last.settled:
        best = min(last.log, key=lambda each: each[1])
        assert (last.time_steps, last.fastest) == best
        assert last.after_epoch(0.0) == last


def plain(size: int = 4, *seconds: float) -> dict[str, Any]:
    """A hint as a file has it."""
    return json.loads(json.dumps(told(size, *seconds)[-1].as_hint()))


@given(st.integers(1, 6), st.lists(st.floats(0, 1e9), max_size=8))
def test_a_hint_says_all(size: int, seconds: list[float]) -> None:
    known = told(size, *seconds)[-1]
    for hint in (known.as_hint(), json.loads(json.dumps(known.as_hint()))):
        found = TimeStepMerger.from_hint(hint, size)
        assert found == known
        assert hash(found) == hash(known)
        assert found.after_epoch(3.0) == known.after_epoch(3.0)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_hint_of_other_workers_says_nothing(size: int) -> None:
    assert TimeStepMerger.from_hint(plain(4, 9.0, 8.0), size) == TimeStepMerger(size=size)


@pytest.mark.parametrize("hint", [None, "4", 4, [], {}, [["size", 4]], ("size",), {"size": None}, {"size": 4}])
def test_what_is_no_hint_says_nothing(hint: object) -> None:
    assert TimeStepMerger.from_hint(hint, 4) == TimeStepMerger(size=4)


BROKEN: dict[str, dict[Any, Any]] = {
    "another key": {"colour": 1},
    "a key that is no name": {3: 1},
    "dropped below": {"dropped": -1},
    "dropped as many as there are": {"dropped": 4},
    "dropped a word": {"dropped": "1"},
    "dropped a truth": {"dropped": True},
    "dropped a fraction": {"dropped": 1.0},
    "dropped none": {"dropped": None},
    "settled a word": {"settled": "no"},
    "settled a number": {"settled": 1},
    "settled none": {"settled": None},
    "log none": {"log": None},
    "log a number": {"log": 3},
    "log a word": {"log": "fast"},
    "log of numbers": {"log": [4, 9.0]},
    "log of words": {"log": [["four", 9.0]]},
    "log of nothing": {"log": [[None, None]]},
    "log of triples": {"log": [[4, 9.0, 1]]},
    "log of what is no number": {"log": [[math.nan, 1.0]]},
    "log of endless time steps": {"log": [[math.inf, 1.0]]},
    "log of a number too large": {"log": [[4, 10**400]]},
    "fastest a word": {"fastest": "8.0"},
    "fastest a list": {"fastest": [8.0]},
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_a_broken_hint_says_nothing(change: dict[Any, Any]) -> None:
    found = TimeStepMerger.from_hint({**plain(4, 9.0, 8.0), **change}, 4)
    assert found == TimeStepMerger(size=4)
    assert 1 <= found.after_epoch(9.0).time_steps <= 4


@pytest.mark.parametrize("size", [3.0, "3", [3]])
def test_a_number_of_workers_of_the_wrong_type_says_nothing(size: object) -> None:
    found = TimeStepMerger.from_hint({**plain(3, 9.0), "size": size}, 3)
    assert found == TimeStepMerger(size=3)
    assert type(found.time_steps) is int


@pytest.mark.parametrize("key", ["size", "log"])
def test_a_hint_without_some_key_says_nothing(key: str) -> None:
    hint = plain(4, 9.0, 8.0)
    del hint[key]
    assert TimeStepMerger.from_hint(hint, 4) == TimeStepMerger(size=4)


def test_a_hint_that_no_run_can_have_left_leads_to_no_time_steps_beyond_the_workers() -> None:
    """None dropped, although an epoch was judged."""
    found = TimeStepMerger.from_hint({**plain(4), "fastest": 1.0}, 4)
    assert 1 <= found.after_epoch(2.0).time_steps <= 4


WORDS = ["", "3", "size"]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["dropped", "settled", "fastest", "log", "more"]), PLAIN, max_size=3))
def test_no_hint_does_harm(change: dict[str, Any]) -> None:
    """Whatever a file says, there are at least one time step and at most one for each worker, after any epoch."""
    found = TimeStepMerger.from_hint({**plain(3, 9.0), **change}, 3)
    for seconds in (1.0, 2.0, 0.5):
        assert type(found.time_steps) is int
        assert 1 <= found.time_steps <= 3
        found = found.after_epoch(seconds)
    assert 1 <= found.time_steps <= 3
