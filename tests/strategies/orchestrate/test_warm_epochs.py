"""Hot nodes of `orchestrate` over the end of an epoch, in resumed runs, and where a run starts cold after all."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.core.ledger import Kind, Link
from outgrow.engine.batches import BatchConfig
from outgrow.strategies.base import Problem
from outgrow.strategies.orchestrate.strategy import Orchestrate
from suites.orchestrate_mutants import MUTANTS
from suites.orchestrated import BATCHES, STEPS, Serial, model_of, problem_of, trained

HOT = {"hot_ratio": 0.3}
SHORT = replace(BATCHES, size=40)
"""Epochs of one batch."""


@pytest.mark.parametrize(("batches", "super_batch", "age"), [(SHORT, 4, 1), (replace(BATCHES, size=15), 4, 5)])
def test_hot_nodes_stay_warm_in_short_epochs(batches: BatchConfig, super_batch: int, age: int) -> None:
    """Of epochs with one super-batch at most all but the first reuse what the one before left."""
    problem = problem_of(model_of("sage"), batches=batches)
    execution, hits = Orchestrate(super_batch=super_batch, **HOT).prepare(problem), list[int]()
    for epoch in range(1, 5):
        before = problem.shard.comm.ledger.counters.get("cache_hits", 0)
        assert all(step.num_seeds for step in execution.steps(epoch))
        hits.append(problem.shard.comm.ledger.counters.get("cache_hits", 0) - before)
    assert [each > 0 for each in hits] == [False, True, True, True]
    assert problem.shard.comm.ledger.counters["staleness_max"] == age <= 2 * super_batch - 1


def trained_from(problem: Problem, options: Orchestrate, epoch: int, first: int, stop: tuple[int, int]) -> list[float]:
    """Losses of an execution from a step on, up to a step of a later epoch."""
    execution, losses = options.prepare(problem), list[float]()
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.5)
    for number in range(epoch, stop[0] + 1):
        with closing(execution.steps(number, first if number == epoch else 0)) as steps:
            for step in steps:
                losses.append(step.loss)
                optimizer.step()
                optimizer.zero_grad()
                if (number, len(losses) + first) == stop:
                    break
    execution.close()
    return losses


@pytest.mark.parametrize("at", [1, 2, 3, 4, 6, 7, 10, 11, 12, 15, 20])
def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(at: int, tmp_path: Path) -> None:
    """Wherever it was interrupted: in the first super-batch, in the middle of others, at the end of an epoch."""
    options, whole = Orchestrate(super_batch=4, **HOT), problem_of(model_of("gat"))
    expected = trained_from(whole, options, 1, 0, (3, 0))
    problem = problem_of(model_of("gat"))
    epoch, first = divmod(at, STEPS)
    begun = trained_from(problem, options, 1, 0, (epoch + 1, at) if first else (epoch, at))
    assert begun == expected[:at]
    torch.save({"model": problem.model.state_dict(), "state": problem.strategy_state}, tmp_path / "saved.pt")
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    resumed = []
    for state in (saved["state"], {}):
        problem = problem_of(model_of("gat"))
        problem.model.load_state_dict(saved["model"])
        problem.strategy_state.update(state)
        resumed.append(trained_from(problem, options, epoch + 1, first, (3, 0)))
    assert resumed[0] == expected[at:]
    # Without the state the run starts cold, which is noticed.
    assert at < 4 or resumed[1] != expected[at:]


RECOMPUTED = dict.fromkeys(("edges_of_hot_nodes_renumbered", "gradients_of_other_hot_nodes"), "gat")
"""Mutants of rows that are computed again, which those of layers that sum first are not."""


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    """By the serial reference: hot nodes that cool down after an epoch, gradients that are lost, stale or of others."""
    kind, options = RECOMPUTED.get(name, "sage"), Orchestrate(super_batch=2, **HOT)
    expected = Serial(kind, options).trained()
    with MUTANTS[name]() as hits:
        found = trained(problem_of(model_of(kind)), options)
    assert hits.count > 0
    assert found.difference(expected) > 1e-6
    shaken = trained(problem_of(model_of(kind)), options, shaken=True)
    assert found.difference(expected) > 1000 * shaken.difference(expected)


def test_the_gradient_takes_fewer_bytes_to_the_cpu_than_aggregates_to_the_device() -> None:
    """Beside the gradients of parameters, which are few beside large batches; with the same losses to rounding."""
    crossed, losses = list[Counter[Link]](), list[list[float]]()
    for side in ("cpu", "device"):
        problem = problem_of(model_of("sage"))
        losses.append(trained(problem, Orchestrate(super_batch=2, gradient_on=side, **HOT)).losses)
        crossed.append(Counter())
        for (link, kind), count in problem.shard.comm.ledger.bytes_by_link.items():
            crossed[-1][link] += count * ((link, kind) != (Link.HOST_TO_DEVICE, Kind.GRADIENTS))
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert crossed[0][Link.DEVICE_TO_HOST] > 0 == crossed[1][Link.DEVICE_TO_HOST]
    assert crossed[0][Link.HOST_TO_DEVICE] < crossed[1][Link.HOST_TO_DEVICE]


def test_super_batches_that_were_too_long_are_not_reused() -> None:
    """They would exceed the bound of the staleness."""
    problem = problem_of(model_of("sage"), batches=replace(BATCHES, size=15))
    trained(problem, Orchestrate(super_batch=3, **HOT), epochs=1)
    counters_before = problem.shard.comm.ledger.counters.get("cache_hits", 0)
    assert counters_before == 0
    execution = Orchestrate(super_batch=1, **HOT).prepare(problem)
    with closing(execution.steps(2)) as steps:
        next(steps)
        assert "cache_hits" not in problem.shard.comm.ledger.counters
        assert [step.num_seeds > 0 for step in steps] == [True, True]
    assert problem.shard.comm.ledger.counters["staleness_max"] == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: None,
        lambda state: {"previous": None},
        lambda state: {**state, "current": {**state["current"], "steps": [0, 0]}},
        lambda state: {**state, "current": {**state["current"], "steps": [True, 2]}},
        lambda state: {**state, "current": {**state["current"], "values": [[torch.zeros(3)]]}},
        lambda state: {**state, "current": {**state["current"], "values": 3}},
    ],
)
def test_a_damaged_state_is_refused(damage: Any) -> None:
    problem, options = problem_of(model_of("sage")), Orchestrate(super_batch=2, **HOT)
    trained(problem, options, epochs=1)
    problem.strategy_state["orchestrate"] = damage(problem.strategy_state["orchestrate"]) or 7
    with pytest.raises(InputError, match="cannot go on with the hot nodes"):
        options.prepare(problem)


def test_steps_in_another_order_start_cold() -> None:
    """What precedes a step is known only if it was the last that was trained."""
    problem, options = problem_of(model_of("sage")), Orchestrate(super_batch=4, **HOT)
    execution = options.prepare(problem)
    with closing(execution.steps(1)) as steps:
        for _ in range(6):
            next(steps)
    hits = problem.shard.comm.ledger.counters["cache_hits"]
    for epoch, first in ((2, 0), (1, 4), (4, 0)):
        with closing(execution.steps(epoch, first)) as steps:
            next(steps)
        assert problem.shard.comm.ledger.counters["cache_hits"] == hits
