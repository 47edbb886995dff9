"""The strategy `migrate`: what its options reach, what it saves, and in how many time steps it trains."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from outgrow.core.errors import InputError
from outgrow.engine import minibatch_loop
from outgrow.engine.batches import BatchConfig
from outgrow.engine.model_migration import send_model
from outgrow.engine.shard import FullGraphShard, PartitionShard
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.nn import GCN, Dot
from outgrow.nn.tasks import NodeClassification
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.base import Execution, Problem, Strategy
from outgrow.strategies.migrate import strategy as migrate
from outgrow.strategies.migrate.schedule import TimeStepMerger
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.sampled import Sampled
from planted import NODES, model_of, planted
from suites.checks import named, on_workers
from suites.migrate_traffic import met, remote_rows
from thread_group import run_in_threads

BATCHES = BatchConfig(size=9, fanout=(3, 2))
SEED, WORKERS, STEPS = 4, 3, 5
TRAIN = torch.arange(0, NODES, 3)


def problem_of(comm: Comm | None = None) -> Problem:
    """A problem on one worker, or a worker's side of one; nodes are dealt out without order."""
    world = planted()
    alone = comm is None or comm.size == 1
    return Problem.from_node_labels(
        FullGraphShard(world.topology, comm) if alone else PartitionShard(world.topology, owner_of(comm.size), comm),
        features=world.features,
        labels=world.labels,
        train=TRAIN,
        task=NodeClassification(),
        model=model_of("sage", SEED),
        seed=SEED,
        batches=BATCHES,
    )


def owner_of(workers: int) -> Tensor:
    """Not of equal shares."""
    return torch.arange(NODES) * 7 % 11 % workers


def losses(steps: Any) -> list[float]:
    return [step.loss for step in steps]


def gradients(problem: Problem, strategy: Strategy, epoch: int = 1) -> tuple[list[float], list[Tensor]]:
    """Losses and gradients of each step; parameters stay as they are."""
    execution, found, grads = strategy.prepare(problem), [], []
    for step in execution.steps(epoch):
        found.append(step.loss)
        grads += [parameter.grad.clone() for parameter in problem.model.parameters() if parameter.grad is not None]
        problem.model.zero_grad()
    execution.close()
    return found, grads


@contextmanager
def moves() -> Iterator[list[int]]:
    """By how many workers models move on, each time."""
    found: list[int] = []

    def noted(model: nn.Module, comm: Comm, stride: int) -> None:
        found.append(stride)
        send_model(model, comm, stride)

    with patch.object(minibatch_loop, "send_model", noted):
        yield found


def time_steps(execution: Execution, problem: Problem, epoch: int, seconds: float = 0.0, first: int = 0) -> int:
    """In how many time steps an epoch trains a batch; the epoch takes as long as told."""
    clock = chain((100.0,), repeat(100.0 + seconds))
    with moves() as found, patch.object(migrate, "time", SimpleNamespace(perf_counter=lambda: next(clock))):
        steps = 0
        for _ in execution.steps(epoch, first):
            problem.model.zero_grad()
            steps += 1
    assert len(found) % steps == 0
    return 1 + len(found) // steps


def differences(mine: list[Tensor], theirs: list[Tensor]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(mine, theirs, strict=True))


def models_that_stay_train_as_sampled_does(comm: Comm) -> None:
    """Bit by bit."""
    mine, theirs = (gradients(problem_of(comm), strategy) for strategy in (Migrate(), Sampled()))
    assert mine[0] == theirs[0]
    assert len(mine[0]) == STEPS
    assert all(torch.equal(a, b) for a, b in zip(mine[1], theirs[1], strict=True))


def models_that_travel_have_the_same_gradients(comm: Comm) -> None:
    """But for rounding, in however many time steps and however rows are gathered; and the same on all workers."""
    expected, wrong = gradients(problem_of(), Sampled()), []
    for number in (None, 1, 2, 3, 9):
        for pregather in (True, False):
            strategy = Migrate(move_model=True, time_steps=number, pregather=pregather, merge=number is not None)
            found = gradients(problem_of(comm), strategy)
            everyones = comm.all_gather_object(found)
            if found[0] != pytest.approx(expected[0], rel=1e-10) or differences(found[1], expected[1]) > 1e-12:
                wrong.append((number, pregather))
            if any(other[0] != found[0] or differences(other[1], found[1]) for other in everyones):
                wrong.append((number, pregather))
    assert wrong == []


def rows_of_an_epoch(rank: int, number: int, *, once: bool) -> int:
    """Remote rows of a worker, by the sampler alone."""
    problem, owner = problem_of(), owner_of(WORKERS)
    topology = problem.shard.topology
    sampler = NeighborSampler([topology, topology], (3, 2), SEED)
    found = 0
    for step, seeds in enumerate(problem.batches_of_epoch(1)):
        groups = met(seeds.tolist(), owner[seeds].tolist(), WORKERS, number)[rank]
        found += remote_rows(sampler, groups, 1, step, owner != rank, once=once)
    return found


def a_row_is_fetched_once_for_each_batch(comm: Comm) -> None:
    """With pregathering; without it once for each time step of the batch that needs it."""
    pairs = {}
    for number in (1, 2, 3):
        for once in (True, False):
            before = comm.ledger.counters["local_peer_rows"]
            gradients(problem_of(comm), Migrate(move_model=True, time_steps=number, pregather=once))
            added = comm.ledger.counters["local_peer_rows"] - before
            pairs[number, once] = added, rows_of_an_epoch(comm.rank, number, once=once)
    saved = comm.all_gather_object(pairs[3, False][0] - pairs[3, True][0])
    assert {name: pair for name, pair in pairs.items() if pair[0] != pair[1]} == {}
    assert pairs[1, True] == pairs[1, False]
    assert min(saved) > 0


def settled_on(steps: int) -> TimeStepMerger:
    """What is known where so many time steps are the fastest."""
    state = TimeStepMerger(size=WORKERS)
    while not state.is_settled:
        state = state.after_epoch(1.0 + abs(state.time_steps - steps))
    return state


def the_number_of_time_steps_is_that_asked_for(comm: Comm) -> None:
    """One for each worker at most; then nothing is judged, however long epochs take."""
    pairs = []
    for number, expected in ((1, 1), (2, 2), (3, 3), (9, 3), (None, 3)):
        problem = problem_of(comm)
        problem.resume_hints["migrate"] = settled_on(1).as_hint()
        execution = Migrate(move_model=True, time_steps=number, merge=number is not None).prepare(problem)
        pairs.append(([time_steps(execution, problem, epoch, 9.0 / epoch) for epoch in (1, 2, 3)], [expected] * 3))
        pairs.append((problem.run_facts, {}))
    problem = problem_of(comm)
    execution = Migrate().prepare(problem)
    pairs.append((time_steps(execution, problem, 1), 1))
    pairs.append((problem.run_facts | problem.resume_hints, {}))
    assert [found for found, expected in pairs if found != expected] == []


def epochs_are_judged_from_the_second_on(comm: Comm) -> None:
    """By the mean over workers, which differ; the first epoch is the fastest of all, and is not looked at."""
    problem = problem_of(comm)
    execution, own, facts = Migrate(move_model=True).prepare(problem), 2.0 * (comm.rank - 1), []
    by_steps, found, seconds = {3: 9.0, 2: 8.0, 1: 8.5}, [], 0.1
    expected = [3, 3, 2, 2, 3, 3, 2, 2, 1, 1, 2, 2, 1, 2, 2]
    for epoch, steps in enumerate(expected, start=1):
        found.append(time_steps(execution, problem, epoch, seconds + own))
        facts.append(problem.run_facts["time_steps"])
        seconds = by_steps[expected[epoch]] if epoch < len(expected) else 0.0
        assert steps in by_steps
    assert found == expected
    log = [[steps, pytest.approx(by_steps[steps])] for steps in expected[1:13]]
    assert facts == [log[:epoch] for epoch in (*range(13), 12, 12)]
    decisions = problem.run_facts["time_step_decisions"]
    assert [(each["time_steps"], each["merges"]) for each in decisions] == [(3, True), (2, False)]
    hint = json.loads(json.dumps(problem.resume_hints["migrate"]))
    known = TimeStepMerger.from_hint(hint, WORKERS)
    assert (known.num_dropped, known.settled, len(known.decisions)) == (1, True, 2)


def an_epoch_that_is_not_whole_is_not_judged(comm: Comm) -> None:
    """Of one that goes on in the middle a part is missing."""
    problem = problem_of(comm)
    execution = Migrate(move_model=True).prepare(problem)
    found = [time_steps(execution, problem, 1, 5.0), time_steps(execution, problem, 2, 0.1, first=3)]
    facts = [problem.run_facts["time_steps"]]
    found += [time_steps(execution, problem, 3, 4.0), time_steps(execution, problem, 4, 3.0)]
    facts.append(problem.run_facts["time_steps"])
    assert found == [3, 3, 3, 2]
    assert facts == [[], [[3, pytest.approx(4.0)], [2, pytest.approx(3.0)]]]


def the_first_epoch_warms_up_also_if_it_begins_in_the_middle(comm: Comm) -> None:
    problem = problem_of(comm)
    execution = Migrate(move_model=True).prepare(problem)
    found = [time_steps(execution, problem, 4, 1.0, first=2), time_steps(execution, problem, 5, 2.0)]
    assert found == [3, 3]
    assert problem.run_facts["time_steps"] == [[3, pytest.approx(2.0)]]


def what_was_found_out_is_taken_up(comm: Comm) -> None:
    """As a file has it; what was settled stays, and what was not goes on."""
    known = TimeStepMerger(size=WORKERS).after_epoch(9.0)
    hints = {"settled": settled_on(2), "in a trial": known, "further": known.after_epoch(8.0)}
    pairs = []
    for name, expected in (("settled", [2, 2, 2]), ("in a trial", [2, 2, 2]), ("further", [2, 2, 3])):
        problem = problem_of(comm)
        problem.resume_hints["migrate"] = json.loads(json.dumps(hints[name].as_hint()))
        execution = Migrate(move_model=True).prepare(problem)
        pairs.append((problem.run_facts["time_steps"], [list(each) for each in hints[name].log]))
        seconds = enumerate((20.0, 9.5, 30.0), start=1)
        pairs.append(([time_steps(execution, problem, epoch, took) for epoch, took in seconds], expected))
    assert [pair for pair in pairs if pair[0] != pair[1]] == []


def hints_of_other_workers_and_broken_ones_are_ignored(comm: Comm) -> None:
    others = TimeStepMerger(size=WORKERS + 1).after_epoch(1.0).as_hint()
    pairs = []
    for hint in (others, None, "fast", [1], {"size": WORKERS}, {**others, "size": WORKERS}):
        problem = problem_of(comm)
        problem.resume_hints["migrate"] = hint
        execution = Migrate(move_model=True).prepare(problem)
        pairs.append((problem.run_facts["time_steps"], []))
        pairs.append((time_steps(execution, problem, 1), WORKERS))
        pairs.append((TimeStepMerger.from_hint(problem.resume_hints["migrate"], WORKERS), TimeStepMerger(size=WORKERS)))
    assert [pair for pair in pairs if pair[0] != pair[1]] == []


test_the_same_gradients = on_workers(
    named(models_that_stay_train_as_sampled_does, models_that_travel_have_the_same_gradients), WORKERS, run_in_threads
)
test_time_steps = on_workers(
    named(
        a_row_is_fetched_once_for_each_batch,
        the_number_of_time_steps_is_that_asked_for,
        epochs_are_judged_from_the_second_on,
        an_epoch_that_is_not_whole_is_not_judged,
        the_first_epoch_warms_up_also_if_it_begins_in_the_middle,
        what_was_found_out_is_taken_up,
        hints_of_other_workers_and_broken_ones_are_ignored,
    ),
    WORKERS,
)


@pytest.mark.parametrize(
    "options", [{}, {"move_model": True}, {"move_model": True, "time_steps": 3, "pregather": False}]
)
def test_on_one_worker_a_batch_is_one_time_step(options: dict[str, Any]) -> None:
    expected = gradients(problem_of(), Sampled())
    problem = problem_of()
    with moves() as moved:
        found = gradients(problem, Migrate(**options))
    assert found[0] == expected[0]
    assert all(torch.equal(a, b) for a, b in zip(found[1], expected[1], strict=True))
    assert moved == []
    assert (problem.run_facts, problem.resume_hints, dict(problem.shard.comm.ledger.bytes_by_link)) == ({}, {}, {})


def test_an_epoch_may_begin_at_a_later_step() -> None:
    execution = Migrate(move_model=True).prepare(problem_of())
    whole = losses(execution.steps(2))
    assert len(whole) == STEPS
    assert losses(execution.steps(2, first=3)) == whole[3:]
    assert losses(execution.steps(2, first=STEPS)) == []
    assert losses(execution.steps(3)) != whole


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partition": "metiss"}, "partition"),
        ({"partition": 3}, "partition"),
        ({"move_model": "yes"}, "move_model"),
        ({"pregather": 1}, "pregather"),
        ({"merge": None}, "merge"),
        ({"time_steps": 0}, "time_steps"),
        ({"time_steps": -2}, "time_steps"),
        ({"time_steps": 2.0}, "time_steps"),
        ({"time_steps": True}, "time_steps"),
        ({"sampling_threads": 0}, "sampling_threads"),
        ({"prefetch": -1}, "prefetch"),
        ({"prefetch": None}, "prefetch"),
        ({"prefetch": "4"}, "prefetch"),
        ({"pregather": False}, "pregather"),
        ({"merge": False}, "merge"),
        ({"time_steps": 2}, "time_steps"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        Migrate(**options)
    error, (value,) = caught.value, options.values()
    assert str(value) in error.got
    assert error.needed
    assert said in error.repair or "metis" in error.repair


def test_options_are_given_back() -> None:
    given = {"partition": "range", "move_model": True, "pregather": False, "merge": False, "time_steps": 2}
    assert Migrate(**given).options() == given | {
        "sampling_threads": None,
        "prefetch": 4,
        "memory": None,
        "cache": 0.0,
        "cache_by": "degree",
        "cache_scope": "worker",
    }


def test_a_model_of_links_does_not_move() -> None:
    nodes = GCN(8, 8, 8)
    Migrate().validate_model(nodes.with_decoder(Dot()))
    Migrate(move_model=True).validate_model(nodes)
    with pytest.raises(InputError, match="a model of links cannot move"):
        Migrate(move_model=True).validate_model(nodes.with_decoder(Dot()))
