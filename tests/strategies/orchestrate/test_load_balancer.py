"""How many nodes are hot, and how many of them move to the device, by what epochs took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outgrow.strategies.orchestrate.load_balancer import Balance

SECONDS = st.floats(0.001, 100)


def numbers(balance: Balance, *epochs: tuple[float, float], room: int = 1000) -> list[tuple[int, int]]:
    """Hot nodes, and those that moved, before each of some epochs and after the last."""
    found = [(balance.hot, balance.kept)]
    for seconds, waited in epochs:
        balance = balance.after(seconds, waited, room)
        found.append((balance.hot, balance.kept))
    return found


def test_the_first_epoch_is_not_judged() -> None:
    """In which kernels and caches get warm."""
    assert numbers(Balance(hot=100, most=400), (1.0, 0.5)) == [(100, 0)] * 2
    assert numbers(Balance(hot=100, most=400, growing=True), (0.1, 0.0), (5.0, 0.0)) == [(100, 0), (100, 0), (200, 0)]


def test_they_double_as_long_as_epochs_get_faster() -> None:
    warm, growing = (9.0, 0.0), Balance(hot=10, most=1000, growing=True)
    assert numbers(growing, warm, (8.0, 0.0), (7.0, 0.0), (7.0, 0.0), (1.0, 0.0)) == [
        (10, 0),
        (10, 0),
        (20, 0),
        (40, 0),
        (20, 0),  # 40 were not faster than 20
        (20, 0),
    ]


def test_there_are_no_more_than_may_be() -> None:
    growing = Balance(hot=10, most=15, growing=True)
    assert numbers(growing, (9.0, 0.0), (8.0, 0.0), (7.0, 0.0), (6.0, 0.0))[2:] == [(15, 0), (15, 0), (15, 0)]


def test_they_move_by_the_share_of_an_epoch_that_the_device_waits() -> None:
    epochs = (1.0, 0.5), (1.0, 0.25), (2.0, 0.5), (1.0, 0.01), (1.0, 0.0)
    assert numbers(Balance(hot=100, most=400), *epochs) == [
        (100, 0),
        (100, 0),
        (100, 25),
        (100, 44),  # a quarter of 75
        (100, 44),
        (100, 44),
    ]


@pytest.mark.parametrize(("room", "kept"), [(0, 0), (7, 7), (60, 50)])
def test_no_more_move_than_there_is_room_for(room: int, kept: int) -> None:
    assert numbers(Balance(hot=100, most=400), (1.0, 0.5), (1.0, 0.5), room=room)[-1] == (100, kept)


@given(
    hot=st.integers(0, 50),
    more=st.integers(0, 50),
    growing=st.booleans(),
    epochs=st.lists(st.tuples(SECONDS, st.floats(0, 1), st.integers(0, 30)), max_size=12),
)
def test_whatever_epochs_take(hot: int, more: int, growing: bool, epochs: list[tuple[float, float, int]]) -> None:
    balance = Balance(hot=hot, most=hot + more, growing=growing)
    for number, (seconds, share, room) in enumerate(epochs, 1):
        before, balance = balance, balance.after(seconds, share * seconds, room)
        assert 0 <= balance.hot <= balance.most
        assert before.kept <= balance.kept <= min(balance.hot, before.kept + room)
        assert balance.on_cpu + balance.kept == balance.hot
        assert before.growing or balance.hot == before.hot
        assert len(balance.log) == number
        assert balance.log[-1] == (before.hot, before.kept, seconds, share * seconds)
