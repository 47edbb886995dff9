"""The strategy `orchestrate` on one worker: what it trains, by a serial reference; what it refuses; how it ends."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from outgrow.core.ledger import Kind, Link
from outgrow.engine.batches import BatchConfig
from outgrow.graph.sampling.edge_sampler import FASTGCN, LABOR
from outgrow.strategies.base import Problem
from outgrow.strategies.orchestrate.host_side import HostSide
from outgrow.strategies.orchestrate.load_balancer import HotNodeCounts, HotRatioTuner
from outgrow.strategies.orchestrate.strategy import Orchestrate, OrchestrateExecution
from outgrow.strategies.sampled import Sampled
from rounding import tolerance
from suites.orchestrated import BATCHES, CONVS, STEPS, Serial, Trained, input_dropout_of, model_of, problem_of, trained

VISIBLE = 1e-4
HOT = {"hot_ratio": 0.3}
WHOLE = BatchConfig(size=4, fanout=(3, -1))
SUMS = ("gcn", "sage-project-first")
"""Bottom layers that sum features with weights of the graph."""
REUSES: dict[str, dict[str, Any]] = {
    "gradient": {},
    "on the device": {"gradient_on": "device"},
    "constant": {"hot_gradient": False},
    "aggregate": {"reuse": "aggregate"},
}
right_computed = HostSide._compute_timed


def slow_computed(self: HostSide, given: Any) -> Any:
    """The CPU takes eleven times as long."""
    began = time.perf_counter()
    found = right_computed(self, given)
    time.sleep(10 * (time.perf_counter() - began))
    return found


def both(kind: str, batches: BatchConfig = BATCHES, **options: Any) -> tuple[Trained, Trained, Trained]:
    """What the strategy trains, what it should, and what it would with noise."""
    strategy = Orchestrate(**{**HOT, **options})

    def run(*, shaken: bool) -> Trained:
        model = model_of(kind, input_dropout=input_dropout_of(strategy))
        return trained(problem_of(model, batches=batches), strategy, shaken=shaken)

    expected = Serial(kind, strategy, batches=batches).trained()
    return run(shaken=False), expected, run(shaken=True)


def counters_of(problem: Problem) -> dict[str, int]:
    return dict(problem.shard.comm.ledger.counters)


@pytest.mark.parametrize(
    ("kind", "reuse", "super_batch"),
    [
        *((kind, "gradient", super_batch) for kind in CONVS for super_batch in (1, 2, 4)),
        *((kind, "constant", 2) for kind in CONVS),
        *((kind, "on the device", 2) for kind in CONVS),
        *((kind, "aggregate", 3) for kind in (*SUMS, "gcn-project-first", "sage")),
    ],
)
def test_it_trains_as_the_serial_reference_does(kind: str, reuse: str, super_batch: int) -> None:
    found, expected, shaken = both(kind, super_batch=super_batch, **REUSES[reuse])
    assert len(found.losses) == 2 * STEPS
    assert found.is_close(expected, shaken)


@pytest.mark.parametrize(
    ("batches", "options"),
    [
        (BATCHES, {"super_batch": 7, "hot_ratio": 1.0}),
        (BATCHES, {"super_batch": 50}),
        (WHOLE, {"super_batch": 3}),
        (BatchConfig(size=4, fanout=None), {"super_batch": 2}),
        (BatchConfig(size=4, fanout=(-1, (1, 2, 1))), {"super_batch": 2}),
        (replace(BATCHES, size=1), {"super_batch": 16, "hot_ratio": 0.01}),
        (replace(BATCHES, size=40), {"super_batch": 4}),
        (replace(BATCHES, size=15), {"super_batch": 2}),
        (replace(BATCHES, sampler=LABOR), {"super_batch": 2}),
        (replace(BATCHES, fanout=(12, 9), sampler=FASTGCN), {"super_batch": 2}),
    ],
)
def test_in_other_batches(batches: BatchConfig, options: dict[str, Any]) -> None:
    found, expected, shaken = both("gat", batches, **options)
    assert found.is_close(expected, shaken)


def test_the_reference_tells_apart_what_must_not_be_the_same() -> None:
    """Super-batches of other sizes, gradients or none, other hot nodes."""
    others: list[dict[str, Any]] = [{"super_batch": 3}, {"hot_gradient": False}, {"hot_ratio": 0.2}]
    [(_, expected, shaken), *found] = [both("sage", **{"super_batch": 2, **given}) for given in ({}, *others)]
    assert all(each.difference(expected) > VISIBLE for each, *_ in found)
    assert tolerance(shaken.difference(expected)) < VISIBLE / 1000


@pytest.mark.parametrize("kind", ["gcn", "gat"])
def test_without_hot_nodes_it_has_the_bits_of_sampled(kind: str) -> None:
    expected = trained(problem_of(model_of(kind)), Sampled())
    for options in ({}, {"super_batch": 1, "sampling_threads": 3}, {"latest_parameters": True, "hot_gradient": False}):
        problem = problem_of(model_of(kind), checkpoint_steps=3)
        assert trained(problem, Orchestrate(hot_ratio=0.0, **options)).same_bits(expected)
        assert "cache_hits" not in counters_of(problem)


@pytest.mark.parametrize("kind", SUMS)
@pytest.mark.parametrize("super_batch", [1, 3])
def test_aggregates_of_whole_neighbourhoods_train_as_sampled_does(kind: str, super_batch: int) -> None:
    expected, shaken = (
        trained(problem_of(model_of(kind, input_dropout=0), batches=WHOLE), Sampled(), shaken=noisy)
        for noisy in (False, True)
    )
    options: dict[str, Any] = {"super_batch": super_batch, "reuse": "aggregate", **HOT}
    problem = problem_of(model_of(kind, input_dropout=0), batches=WHOLE)
    assert trained(problem, Orchestrate(**options)).is_close(expected, shaken)
    assert counters_of(problem)["cache_hits"] > 0
    assert "staleness_max" not in counters_of(problem)
    drawn = trained(problem_of(model_of(kind, input_dropout=0)), Orchestrate(**options))
    assert drawn.difference(expected) > VISIBLE


@pytest.mark.parametrize("reuse", REUSES)
def test_two_runs_have_the_same_bits(reuse: str) -> None:
    kind, dropout = ("sage", 0.0) if reuse == "aggregate" else ("gat", 0.2)
    first, *others = (
        trained(
            problem_of(model_of(kind, input_dropout=dropout)),
            Orchestrate(**HOT, **REUSES[reuse], sampling_threads=threads),
        )
        for threads in (1, 3, None)
    )
    assert all(other.same_bits(first) for other in others)


@pytest.mark.parametrize(("super_batch", "size", "gap"), [(1, 4, 1), (4, 4, 7), (16, 1, 31), (4, 7, 5), (5, 5, 7)])
@pytest.mark.parametrize("slow", [False, True], ids=["", "slow"])
def test_the_largest_gap_is_that_of_the_paper(super_batch: int, size: int, gap: int, slow: bool) -> None:
    """``2n - 1``, and less where the second super-batch is shorter; however slow the CPU is, which is waited for."""
    options, batches = Orchestrate(super_batch=super_batch, **HOT), BatchConfig(size=size, fanout=(12, 2))
    serial = Serial("sage", options, batches=batches)
    expected, problem = serial.trained(), problem_of(model_of("sage"), batches=batches)
    with patch.object(HostSide, "_compute_timed", slow_computed if slow else right_computed):
        found = trained(problem, options)
    assert found.is_close(expected, trained(problem_of(model_of("sage"), batches=batches), options, shaken=True))
    assert counters_of(problem)["staleness_max"] == max(serial.gaps) == gap <= 2 * super_batch - 1
    assert counters_of(problem)["cache_hits"] == len(serial.gaps)
    facts = problem.run_facts["hot_nodes"]
    assert isinstance(facts, list)
    assert [each["hot_nodes"] for each in facts] == [len(serial.hot[0])] * 2
    assert all(each["kept_on_device"] == 0 < each["waited"] < each["seconds"] for each in facts)


def test_a_slow_cpu_changes_no_bits() -> None:
    expected = trained(problem_of(model_of("gat")), Orchestrate(**HOT))
    with patch.object(HostSide, "_compute_timed", slow_computed):
        assert trained(problem_of(model_of("gat")), Orchestrate(**HOT)).same_bits(expected)


@pytest.mark.parametrize("slow", [False, True], ids=["", "slow"])
@pytest.mark.parametrize("super_batch", [1, 4])
def test_the_newest_parameters_are_no_older(super_batch: int, slow: bool) -> None:
    problem = problem_of(model_of("sage"))
    with patch.object(HostSide, "_compute_timed", slow_computed if slow else right_computed):
        found = trained(problem, Orchestrate(super_batch=super_batch, latest_parameters=True, **HOT))
    assert len(found.losses) == 2 * STEPS
    assert 1 <= counters_of(problem)["staleness_max"] <= 2 * super_batch - 1


def test_the_newest_parameters_are_those_that_there_are_when_a_slice_is_begun() -> None:
    """If the CPU begins when the last batch of a super-batch does, nothing is more than ``n`` updates old."""
    given, told, right = list[int](), threading.Condition(), HostSide.submit_slices

    def give(self: HostSide, slices: Any, version: Any) -> None:
        right(self, slices, version)
        with told:
            given.append(version.updates)
            told.notify_all()

    def computed(self: HostSide, work: Any) -> Any:
        with told:
            assert told.wait_for(lambda: given[-1:] == [work[0].first_step - 1], timeout=60)
        return right_computed(self, work)

    options = Orchestrate(super_batch=3, latest_parameters=True, **HOT)
    problem = problem_of(model_of("sage"))
    with patch.object(HostSide, "submit_slices", give), patch.object(HostSide, "_compute_timed", computed):
        trained(problem, options, epochs=1)
    assert counters_of(problem)["staleness_max"] == 3


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("error", [ValueError("no slice"), SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.timeout(120)
def test_an_error_of_the_cpu_is_the_error_of_the_epoch(error: BaseException, newest: bool) -> None:
    before, done = set(threading.enumerate()), list[int]()

    def computed(self: HostSide, given: Any) -> Any:
        if given[0].number == 2:
            raise error
        return right_computed(self, given)

    execution = Orchestrate(super_batch=2, latest_parameters=newest, **HOT).prepare(problem_of(model_of("sage")))
    with patch.object(HostSide, "_compute_timed", computed), pytest.raises(type(error)):
        done.extend(number for number, _ in enumerate(execution.steps(1)))
    assert done == [0, 1, 2, 3]
    execution.close()
    require_ended(before)


@pytest.mark.parametrize("taken", [0, 1, 3, 5])
def test_threads_end_with_the_epoch_however_it_ends(taken: int) -> None:
    before, problem = set(threading.enumerate()), problem_of(model_of("sage"))
    with closing(Orchestrate(super_batch=2, **HOT).prepare(problem).steps(1)) as steps:
        for _ in range(taken):
            next(steps)
    require_ended(before)


def require_ended(before: set[threading.Thread]) -> None:
    """No thread is left but those that there were before."""
    for thread in {*threading.enumerate()} - before:
        thread.join(20)
        assert not thread.is_alive(), thread


@pytest.mark.parametrize("reuse", REUSES)
def test_hot_nodes_that_moved_to_the_device_are_trained_as_cold_ones(reuse: str) -> None:
    """Bit by bit: the CPU computes the hottest, and fewer features cross to the device."""
    found, crossed = list[list[float]](), list[int]()
    for options, moved in (({"hot_ratio": 0.2}, 0), ({"hot_ratio": 0.3, "cache": 0.5}, 12)):
        strategy = Orchestrate(super_batch=2, **options, **REUSES[reuse])
        problem = problem_of(model_of("sage", input_dropout=input_dropout_of(strategy)))
        execution = strategy.prepare(problem)
        assert isinstance(execution, OrchestrateExecution)
        tuner = execution.balancer.tuner
        counts = HotNodeCounts(tuner.counts.num_hot, moved)
        execution.balancer.tuner = replace(tuner, counts=counts, max_hot=counts.num_hot)
        execution.cold_store.extend_cache(execution.balancer.nodes_to_cache(), execution.balancer.num_nodes)
        found.append([])
        optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.5)
        # However long the device waits.
        with patch.object(HotRatioTuner, "after_super_batch", lambda self, *_, **__: self):
            for step in execution.steps(1):
                found[-1].append(step.loss)
                optimizer.step()
                optimizer.zero_grad()
        crossed.append(problem.shard.comm.ledger.bytes_by_link[Link.HOST_TO_DEVICE, Kind.FEATURES])
        execution.close()
    assert found[0] == found[1]
    assert crossed[0] > crossed[1] > 0
