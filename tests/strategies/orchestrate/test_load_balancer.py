"""How many nodes are hot, and how many of them move to the device, by what epochs took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outgrow.strategies.orchestrate.load_balancer import HotRatioTuner

SECONDS = st.floats(0.001, 100)


def numbers(balance: HotRatioTuner, *epochs: tuple[float, float], room: int = 1000) -> list[tuple[int, int]]:
    """Hot nodes, and those that moved, before each of some epochs and after the last."""
    found = [(balance.num_hot, balance.num_cached)]
    for seconds, waited in epochs:
        balance = balance.after_epoch(seconds, waited, room)
        found.append((balance.num_hot, balance.num_cached))
    return found


def test_the_first_epoch_is_not_judged() -> None:
    """In which kernels and caches get warm."""
    assert numbers(HotRatioTuner(num_hot=100, max_hot=400), (1.0, 0.5)) == [(100, 0)] * 2
    assert numbers(HotRatioTuner(num_hot=100, max_hot=400, is_growing=True), (0.1, 0.0), (5.0, 0.0)) == [
        (100, 0),
        (100, 0),
        (200, 0),
    ]


def test_they_double_as_long_as_epochs_get_faster() -> None:
    warm, growing = (9.0, 0.0), HotRatioTuner(num_hot=10, max_hot=1000, is_growing=True)
    assert numbers(growing, warm, (8.0, 0.0), (7.0, 0.0), (7.0, 0.0), (1.0, 0.0)) == [
        (10, 0),
        (10, 0),
        (20, 0),
        (40, 0),
        (20, 0),  # 40 were not faster than 20
        (20, 0),
    ]


def test_there_are_no_more_than_may_be() -> None:
    growing = HotRatioTuner(num_hot=10, max_hot=15, is_growing=True)
    assert numbers(growing, (9.0, 0.0), (8.0, 0.0), (7.0, 0.0), (6.0, 0.0))[2:] == [(15, 0), (15, 0), (15, 0)]


def test_they_move_by_the_share_of_an_epoch_that_the_device_waits() -> None:
    epochs = (1.0, 0.5), (1.0, 0.25), (2.0, 0.5), (1.0, 0.01), (1.0, 0.0)
    assert numbers(HotRatioTuner(num_hot=100, max_hot=400), *epochs) == [
        (100, 0),
        (100, 0),
        (100, 25),
        (100, 44),  # a quarter of 75
        (100, 44),
        (100, 44),
    ]


@pytest.mark.parametrize(("room", "kept"), [(0, 0), (7, 7), (60, 50)])
def test_no_more_move_than_there_is_room_for(room: int, kept: int) -> None:
    assert numbers(HotRatioTuner(num_hot=100, max_hot=400), (1.0, 0.5), (1.0, 0.5), room=room)[-1] == (100, kept)


@given(
    hot=st.integers(0, 50),
    more=st.integers(0, 50),
    growing=st.booleans(),
    epochs=st.lists(st.tuples(SECONDS, st.floats(0, 1), st.integers(0, 30)), max_size=12),
)
def test_whatever_epochs_take(hot: int, more: int, growing: bool, epochs: list[tuple[float, float, int]]) -> None:
    balance = HotRatioTuner(num_hot=hot, max_hot=hot + more, is_growing=growing)
    for number, (seconds, share, room) in enumerate(epochs, 1):
        before, balance = balance, balance.after_epoch(seconds, share * seconds, room)
        assert 0 <= balance.num_hot <= balance.max_hot
        assert before.num_cached <= balance.num_cached <= min(balance.num_hot, before.num_cached + room)
        assert balance.on_cpu + balance.num_cached == balance.num_hot
        assert before.is_growing or balance.num_hot == before.num_hot
        assert len(balance.log) == number
        assert balance.log[-1] == (before.num_hot, before.num_cached, seconds, share * seconds)
