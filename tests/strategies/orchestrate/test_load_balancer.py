"""How many nodes are hot, and how many of them move to the device, by what super-batches took."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outgrow.strategies.orchestrate.load_balancer import HotNodeCounts, HotRatioTuner, LoadBalancer

SECONDS = st.floats(0.001, 100)
NODES = 500


def tuner_of(num_hot: int, max_hot: int = 400, *, is_growing: bool = False) -> HotRatioTuner:
    return HotRatioTuner(counts=HotNodeCounts(num_hot, 0), max_hot=max_hot, is_growing=is_growing)


def numbers(tuner: HotRatioTuner, *super_batches: tuple[float, float], room: int = 1000) -> list[tuple[int, int]]:
    """Hot nodes, and those that moved, before each of some super-batches and after the last."""
    found = [tuner.counts]
    for seconds, waited in super_batches:
        tuner = tuner.after_super_batch(seconds, waited, free_rows=room)
        found.append(tuner.counts)
    return [(*each,) for each in found]


def grown(tuner: HotRatioTuner, *batches: float, size: int = 1) -> list[int]:
    """Hot nodes at first, and after each three super-batches whose batches take so long."""
    found = [tuner.counts.num_hot]
    for seconds in batches:
        # By the median: neither a single slow one nor a single fast one counts.
        for each in (seconds, 100.0, seconds) if len(found) % 2 else (0.0, seconds, seconds):
            assert tuner.counts.num_hot == found[-1]
            tuner = tuner.after_super_batch(size * each, 0.0, num_batches=size, free_rows=9)
        found.append(tuner.counts.num_hot)
    assert not tuner.counts.num_cached or not tuner.is_growing
    return found


@pytest.mark.parametrize("size", [1, 4])
def test_they_double_as_long_as_batches_get_faster(size: int) -> None:
    growing = tuner_of(10, 1000, is_growing=True)
    # 40 were not faster than 20.
    assert grown(growing, 8.0, 7.0, 7.0, 1.0, size=size) == [10, 20, 40, 20, 20]


def test_there_are_no_more_than_may_be() -> None:
    assert grown(tuner_of(10, 15, is_growing=True), 8.0, 7.0, 6.0) == [10, 15, 15, 15]


def test_they_move_by_the_share_of_a_super_batch_that_the_device_waits() -> None:
    assert numbers(tuner_of(100), (1.0, 0.25), (2.0, 0.5), (1.0, 0.01), (1.0, 0.0), (0.0, 0.0)) == [
        (100, 0),
        (100, 25),
        (100, 44),  # a quarter of 75
        (100, 44),
        (100, 44),
        (100, 44),
    ]


@pytest.mark.parametrize(("room", "kept"), [(0, 0), (7, 7), (60, 50)])
def test_no_more_move_than_there_is_room_for(room: int, kept: int) -> None:
    assert numbers(tuner_of(100), (1.0, 0.5), room=room)[-1] == (100, kept)


@given(
    hot=st.integers(0, 50),
    more=st.integers(0, 50),
    growing=st.booleans(),
    given=st.lists(st.tuples(SECONDS, st.floats(0, 1), st.integers(0, 30)), max_size=12),
)
def test_whatever_super_batches_take(hot: int, more: int, growing: bool, given: list[tuple[float, float, int]]) -> None:
    tuner = tuner_of(hot, hot + more, is_growing=growing)
    for seconds, share, room in given:
        before, tuner = tuner, tuner.after_super_batch(seconds, share * seconds, free_rows=room)
        (old, moved), (num_hot, num_cached) = before.counts, tuner.counts
        assert 0 <= num_hot <= hot + more
        assert moved <= num_cached <= min(num_hot, moved + room)
        assert tuner.counts.on_cpu + num_cached == num_hot
        assert before.is_growing or num_hot == old


def balancer_of(room: int = 1000) -> LoadBalancer:
    """The hottest nodes have the largest ids."""
    hottest_first = torch.arange(NODES - 1, -1, -1)
    return LoadBalancer(tuner_of(100), hottest_first, NODES, lambda cached: max(0, room - cached))


def test_a_decision_holds_from_the_first_super_batch_that_is_not_fixed_yet() -> None:
    balancer = balancer_of(room=60)
    balancer.start_epoch(1)
    fixed = [balancer.fix_hot_nodes(number) for number in (0, 1, 2, 2, 3)]
    balancer.rebalance(1, 1.0, 0.5, 4)  # the first one is not judged
    assert balancer.tuner.counts == (100, 0)
    balancer.rebalance(2, 1.0, 0.5, 4)
    assert balancer.tuner.counts == (100, 50)
    assert balancer.nodes_to_cache().tolist() == [*range(NODES - 51, NODES - 101, -1)]
    assert not len(balancer.nodes_to_cache())
    assert torch.equal(balancer.fix_hot_nodes(3), fixed[-1])
    later = [balancer.fix_hot_nodes(number) for number in (4, 5)]
    assert all(each.sum() == 100 and each[NODES - 100 :].all() for each in fixed)
    assert all(each.sum() == 50 and each[NODES - 50 :].all() for each in later)
    # Other numbers held in these, so that they say nothing about the last decision.
    for number in (3, 4):
        balancer.rebalance(number, 1.0, 0.5, 4)
        assert balancer.tuner.counts == (100, 50)
    balancer.rebalance(5, 1.0, 0.5, 4)
    assert balancer.tuner.counts == (100, 60)
    assert len(balancer.nodes_to_cache()) == 10
    balancer.fix_hot_nodes(6)
    [facts] = balancer.end_epoch(9.0, 3.0)
    assert facts.pop("super_batches") == [[0, 100, 0], [4, 100, 50], [6, 100, 60]]
    assert facts == {"epoch": 1, "hot_nodes": 100, "kept_on_device": 60, "seconds": 9.0, "waited": 3.0}
    balancer.start_epoch(2)
    assert balancer.fix_hot_nodes(0).sum() == 40
