"""Balancing of the CPU and the device within epochs, in given time: what it decides, and what is trained then."""

from __future__ import annotations

from unittest.mock import patch

from outgrow.engine.features.cache import DeviceCache
from outgrow.strategies.base import Problem
from outgrow.strategies.orchestrate.strategy import Orchestrate
from planted import NODES
from suites.balance import TICK, GivenTime, balanced, cached_rows_misplaced, replayed


def rows_of_the_cpu(problem: Problem) -> int:
    return problem.shard.comm.ledger.counters["hot_rows_computed"]


def test_nodes_move_to_the_device_within_an_epoch_while_it_waits() -> None:
    """From what each super-batch took; never more than there is room for, and none without waiting."""
    options = Orchestrate(hot_ratio=0.3, super_batch=2, cache=0.1)
    problem, facts, losses = balanced(options, GivenTime(hot_seconds=TICK / 10), 2)
    num_hot, room = round(0.3 * NODES), int(0.1 * NODES)
    first, *changes = facts[0]["super_batches"]
    assert first == [0, num_hot, 0]
    assert changes
    assert all(2 < number < len(losses) // 4 for number, _, _ in changes)
    assert [moved for *_, moved in changes] == sorted({moved for *_, moved in changes})
    assert facts[1]["super_batches"] == [[0, num_hot, room]]
    assert [each["epoch"] for each in facts] == [1, 2]
    assert all(each["kept_on_device"] <= room and each["waited"] < each["seconds"] for each in facts)
    quick, others, same = balanced(options, GivenTime(), 2)
    assert [each["super_batches"] for each in others] == [[[0, num_hot, 0]]] * 2
    assert rows_of_the_cpu(quick) > rows_of_the_cpu(problem) > 0
    assert losses[:6] == same[:6]
    assert losses != same


def test_what_moves_is_computed_from_the_same_features() -> None:
    """The facts say what was trained, bit by bit; and rows in the cache are those of their nodes."""
    options = Orchestrate(hot_ratio=0.4, super_batch=1, cache=0.3)
    clock = GivenTime(hot_seconds=TICK / 50)
    _, facts, losses = balanced(options, clock, 2)
    assert len(facts[0]["super_batches"]) > 2
    assert replayed(options, facts).losses == losses
    with patch.object(DeviceCache, "add_rows", cached_rows_misplaced):
        _, facts, losses = balanced(options, clock, 2)
    assert replayed(options, facts).losses != losses


def test_more_nodes_get_hot_within_an_epoch_while_batches_get_faster() -> None:
    options = Orchestrate(hot_ratio=None, super_batch=1)
    _, facts, _ = balanced(options, GivenTime(cold_seconds=TICK), 1)
    numbers = [hot for _, hot, _ in facts[0]["super_batches"]]
    assert numbers[:3] == [6, 12, 24]
    _, facts, _ = balanced(options, GivenTime(), 1)
    # No batch is faster than another.
    assert [hot for _, hot, _ in facts[0]["super_batches"]] == [6, 12, 6]


def test_epochs_of_one_super_batch_are_balanced_too() -> None:
    options = Orchestrate(hot_ratio=0.3, super_batch=50, cache=0.1)
    _, facts, _ = balanced(options, GivenTime(hot_seconds=TICK), 4)
    assert [each["kept_on_device"] for each in facts] == [0, 0, int(0.1 * NODES), int(0.1 * NODES)]
