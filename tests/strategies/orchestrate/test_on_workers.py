"""The strategy `orchestrate` on several workers, each with hot nodes of its own: what they train, and how they end."""

from __future__ import annotations

import time
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from hosts import hosts_of_their_own, on_hosts
from outgrow.core.errors import WorkerError
from outgrow.engine.batches import BatchConfig
from outgrow.engine.features.cache import DeviceCache
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.distributed.launch import run_workers
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.orchestrate.host_side import HostSide
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from suites.balance import TICK, GivenTime, balanced, cached_rows_misplaced, replayed
from suites.checks import named, on_workers
from suites.orchestrated import BATCHES, STEPS, Serial, Trained, input_dropout_of, model_of, problem_of, trained
from thread_group import run_in_threads

WORKERS = 3
HOT: dict[str, Any] = {"hot_ratio": 0.4, "super_batch": 2}
right_computed = HostSide._compute_timed


def run(
    comm: Comm, kind: str = "gat", batches: BatchConfig = BATCHES, *, shaken: bool = False, **options: Any
) -> Trained:
    """What workers train together; all of them have the same bits."""
    strategy = Orchestrate(**{**HOT, **options})
    problem = problem_of(model_of(kind, input_dropout=input_dropout_of(strategy)), comm=comm, batches=batches)
    found = trained(problem, strategy, shaken=shaken)
    everyones = comm.all_gather_object(found)
    assert len(found.losses) == 2 * STEPS
    assert all(found.same_bits(other) for other in everyones)
    return found


def serial(kind: str, workers: int, batches: BatchConfig = BATCHES, **options: Any) -> Serial:
    return Serial(kind, Orchestrate(**{**HOT, **options}), batches=batches, workers=workers)


def they_train_as_the_serial_reference_does(comm: Comm) -> None:
    apart = {}
    for kind, options in (
        ("gat", {}),
        ("gcn", {"super_batch": 4}),
        ("ggcn", {"super_batch": 1, "hot_gradient": False}),
        ("sage", {"reuse": "aggregate", "super_batch": 3}),
        ("gcn-project-first", {}),
        ("sage-max", {"hot_ratio": 1.0}),
    ):
        expected = serial(kind, comm.size, **options).trained()
        found, shaken = (run(comm, kind, shaken=noisy, **options) for noisy in (False, True))
        if not found.is_close(expected, shaken):
            apart[kind] = found.difference(expected), shaken.difference(expected)
    assert not apart


def hot_nodes_and_gaps_are_counted(comm: Comm) -> None:
    """On each worker its own."""
    counters = comm.ledger.counters
    counters.clear()
    run(comm)
    found = comm.all_gather_object(dict(counters))
    expected = serial("gat", comm.size)
    expected.trained()
    assert sum(each["cache_hits"] for each in found) == len(expected.gaps)
    assert max(each["staleness_max"] for each in found) == max(expected.gaps) == 3


def without_hot_nodes_they_have_the_bits_of_sampled(comm: Comm) -> None:
    mine = run(comm, hot_ratio=0.0)
    assert mine.same_bits(trained(problem_of(model_of("gat"), comm=comm), Sampled()))


def aggregates_of_whole_neighbourhoods_train_as_sampled_does(comm: Comm) -> None:
    whole = BatchConfig(size=4, fanout=(3, -1))
    mine = run(comm, "sage", whole, reuse="aggregate")
    theirs, shaken = (
        trained(problem_of(model_of("sage", input_dropout=0.0), batches=whole), Sampled(), shaken=noisy)
        for noisy in (False, True)
    )
    assert mine.is_close(theirs, shaken)


def a_slow_cpu_changes_no_bits(comm: Comm) -> None:
    """Neither that of all workers nor that of one; and so two runs do not differ."""
    first = run(comm)
    again = run(comm)
    found = []
    for slow in (comm.rank == 1, True):
        with patch.object(HostSide, "_compute_timed", slow_computed if slow else right_computed):
            found.append(run(comm))
    assert again.same_bits(first)
    assert all(each.same_bits(first) for each in found)


def the_newest_parameters_are_no_older(comm: Comm) -> None:
    comm.ledger.counters.clear()
    with patch.object(HostSide, "_compute_timed", slow_computed if comm.rank == 0 else right_computed):
        run(comm, latest_parameters=True)
    assert 1 <= comm.ledger.counters["staleness_max"] <= 3


def what_moves_is_computed_from_the_same_features(comm: Comm) -> None:
    """Each worker has a cache of its own, and asks other hosts for the rows of what moves there."""
    options, clock = Orchestrate(hot_ratio=0.6, super_batch=1, cache=0.2), GivenTime(hot_seconds=TICK / 50)
    with on_hosts(comm, hosts_of_their_own(comm)):
        _, facts, losses = balanced(options, clock, 2, comm)
        assert len(facts[0]["super_batches"]) > 1
        assert replayed(options, facts, comm).losses == losses
        with patch.object(DeviceCache, "add_rows", cached_rows_misplaced):
            _, facts, losses = balanced(options, clock, 2, comm)
        assert replayed(options, facts, comm).losses != losses


def slow_computed(self: HostSide, given: Any) -> Any:
    """The CPU takes much longer: not by a factor, since one that waits for another takes longer too."""
    time.sleep(0.03)
    return right_computed(self, given)


test_together = on_workers(
    named(
        they_train_as_the_serial_reference_does,
        hot_nodes_and_gaps_are_counted,
        without_hot_nodes_they_have_the_bits_of_sampled,
        aggregates_of_whole_neighbourhoods_train_as_sampled_does,
    ),
    WORKERS,
    run_in_threads,
)
test_balance = on_workers(named(what_moves_is_computed_from_the_same_features), WORKERS)
test_slow_cpus = on_workers(named(a_slow_cpu_changes_no_bits, the_newest_parameters_are_no_older), WORKERS)


def losing_a_cpu(place: WorkerContext, error: BaseException) -> list[float]:
    """Worker 1 loses the thread that computes hot nodes, in the second epoch."""

    def computed(self: HostSide, given: Any) -> Any:
        if place.comm.rank == 1 and self._sampler.epoch == 2:
            raise error
        return right_computed(self, given)

    with patch.object(HostSide, "_compute_timed", computed):
        return run(place.comm).losses


@pytest.mark.timeout(120)
@pytest.mark.parametrize("error", [ValueError("no slice"), SystemExit(3)], ids=repr)
def test_a_worker_that_loses_its_cpu_ends_the_run(error: BaseException) -> None:
    with pytest.raises(WorkerError) as caught:
        run_workers(partial(losing_a_cpu, error=error), 2)
    assert caught.value.what == f"worker 1 of 2 failed: {type(error).__name__}: {error}"
    assert "in computed" in caught.value.report
