"""How many time steps there are after some epochs, and what is left of it when a run is interrupted."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outgrow.strategies.migrate import schedule
from outgrow.strategies.migrate.schedule import MergeDecision, TimeStepMerger


def told(size: int, *seconds: float) -> list[TimeStepMerger]:
    """What is known at first, and after each of some epochs."""
    found = [TimeStepMerger(size=size)]
    for each in seconds:
        found.append(found[-1].after_epoch(each))
    return found


def of_steps(size: int, seconds: dict[int, float], epochs: int) -> TimeStepMerger:
    """What is known after some epochs, which take as long as their number of time steps says."""
    state = TimeStepMerger(size=size)
    for _ in range(epochs):
        state = state.after_epoch(seconds[state.time_steps])
    return state


def test_the_epochs_of_figure_17() -> None:
    """Four machines; two time steps are slower than three, which stay."""
    state = of_steps(4, {4: 9.0, 3: 8.0, 2: 8.5}, 50)
    assert [steps for steps, _ in state.log] == [4, 3, 3, 4, 4, 3, 3, 2, 2, 3, 3, 2]
    assert (state.time_steps, state.settled, state.may_drop) == (3, True, True)
    assert state.decisions == (
        MergeDecision(time_steps=4, seconds=9.0, merged_seconds=8.0, margin=0.0, epochs=3, merges=True),
        MergeDecision(time_steps=3, seconds=8.0, merged_seconds=8.5, margin=0.0, epochs=3, merges=False),
    )


@pytest.mark.parametrize(
    ("size", "seconds", "expected"),
    [
        (4, {4: 9.0, 3: 10.0}, (4, 6)),
        (3, {3: 9.0, 2: 8.0, 1: 7.0}, (1, 12)),
        (2, {2: 9.0, 1: 8.0}, (1, 6)),
        # Medians that are equal say nothing: more epochs, and what was stays.
        (4, {4: 9.0, 3: 9.0}, (4, 10)),
        (1, {1: 9.0}, (1, 0)),
    ],
    ids=["slower at once", "down to one", "two", "a tie", "one worker"],
)
def test_time_steps(size: int, seconds: dict[int, float], expected: tuple[int, int]) -> None:
    state = of_steps(size, seconds, 30)
    assert (state.time_steps, len(state.log)) == expected
    assert state.is_settled
    assert state.after_epoch(0.0) == state


def test_one_slow_epoch_decides_nothing() -> None:
    """As on a loaded machine: 0.250 s after 0.218 s, where one time step less takes a third less."""
    *_, state = told(4, 0.218, 0.250, 0.150, 0.220, 0.216, 0.152)
    assert state.decisions == (MergeDecision(4, 0.218, 0.152, 0.05, 3, merges=True),)
    assert (state.kept, state.settled) == (1, False)


def test_one_fast_epoch_decides_nothing() -> None:
    *_, state = told(4, 0.218, 0.100, 0.250, 0.220, 0.216, 0.252, 0.251, 0.219, 0.217, 0.250)
    assert state.decisions == (MergeDecision(4, 0.218, 0.25, pytest.approx(0.076), 5, merges=False),)
    assert (state.time_steps, state.settled) == (4, True)


def test_what_noise_explains_takes_more_epochs() -> None:
    """A gain of 0.4 s where epochs differ by 2 s; two more of each do not make it larger than chance."""
    seconds = (9.0, 9.6, 9.4, 10.0, 11.0, 9.8)
    *_, state = told(3, *seconds)
    assert (state.decisions, state.is_settled, state.time_steps) == ((), False, 2)
    *_, state = told(3, *seconds, 9.6, 10.0, 9.8, 9.6)
    assert state.decisions == (MergeDecision(3, 10.0, 9.6, 1.0, 5, merges=False),)
    # Epochs that agree more make it a gain.
    *_, state = told(3, 10.0, 9.6, 9.0, 10.2, 9.8, 9.9, 9.0, 10.0)
    assert state.decisions == (MergeDecision(3, 10.0, pytest.approx(9.3), pytest.approx(0.45), 4, merges=True),)


def test_drift_favours_neither() -> None:
    """Each epoch takes as much longer than the one before; the number of time steps makes no difference."""
    *_, state = told(4, *(10.0 + epoch for epoch in range(10)))
    assert (state.time_steps, state.settled) == (4, True)
    *_, state = told(4, *(20.0 - epoch for epoch in range(10)))
    assert (state.time_steps, state.settled) == (4, True)


@given(st.integers(1, 6), st.lists(st.floats(0, 100), max_size=70))
def test_it_always_settles(size: int, seconds: list[float]) -> None:
    """After so many epochs at the latest; then nothing changes it. Only what was faster in median is merged."""
    found = told(size, *seconds)
    assert all(1 <= each.time_steps <= size for each in found)
    most = 2 * schedule.MOST_EPOCHS_TO_DECIDE * (size - 1)
    assert all(each.is_settled for each in found[most:])
    last = found[-1]
    assert [took for _, took in last.log] == seconds[: len(last.log)]
    assert last.kept == sum(each.merges for each in last.decisions)
    assert all(each.merged_seconds < each.seconds - each.margin for each in last.decisions if each.merges)
    if last.is_settled:
        assert last.after_epoch(0.0) == last


def plain(size: int = 4, *seconds: float) -> dict[str, Any]:
    """A hint as a file has it."""
    return json.loads(json.dumps(told(size, *seconds)[-1].as_hint()))


@given(st.integers(1, 6), st.lists(st.floats(0, 1e9), max_size=30))
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


def test_a_hint_of_the_version_before_says_nothing() -> None:
    """It judged single epochs."""
    before = {"size": 4, "dropped": 1, "settled": True, "fastest": 8.0, "log": [[4, 9.0], [3, 8.0], [2, 8.5]]}
    assert TimeStepMerger.from_hint(before, 4) == TimeStepMerger(size=4)


BROKEN: dict[str, dict[Any, Any]] = {
    "log none": {"log": None},
    "log a number": {"log": 3},
    "log a word": {"log": "fast"},
    "log of numbers": {"log": [4, 9.0]},
    "log of words": {"log": [["four", 9.0]]},
    "log of nothing": {"log": [[None, None]]},
    "log of triples": {"log": [[4, 9.0, 1]]},
    "log of what is no number": {"log": [[4, math.nan]]},
    "log of endless seconds": {"log": [[4, math.inf]]},
    "log of less than no seconds": {"log": [[4, -1.0]]},
    "log of a number too large": {"log": [[4, 10**400]]},
    "log of other time steps": {"log": [[3, 1.0]]},
    "log of epochs that were not judged": {"log": [[4, 9.0], [3, 8.0], [3, 8.0], [3, 8.0]]},
    "size a truth": {"size": True},
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


WORDS = ["", "3", "size"]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["log", "more"]), PLAIN, max_size=3))
def test_no_hint_does_harm(change: dict[str, Any]) -> None:
    """Whatever a file says, there are at least one time step and at most one for each worker, after any epoch."""
    found = TimeStepMerger.from_hint({**plain(3, 9.0), **change}, 3)
    for seconds in (1.0, 2.0, 0.5):
        assert type(found.time_steps) is int
        assert 1 <= found.time_steps <= 3
        found = found.after_epoch(seconds)
    assert 1 <= found.time_steps <= 3
