"""Every strategy gives the gradient of the reference with every task, on 1 to 3 workers: in float64 to 1e-10."""

from __future__ import annotations

from functools import partial

import pytest

from pool import run_workers
from suites.cases import Case
from suites.exactness import DEALT, WAYS, Key, gradients, references
from suites.exactness_in_threads import in_threads
from suites.objectives import MUTANTS, OF_TYPES, TASKS, WEIGHTED
from suites.test_exactness import VISIBLE, require_equal, require_same_bits

STRATEGIES = ("full", "offload-3", "tensor", "sampled", "split", "migrate-one-step", "orchestrate-cold")
NEW = [task for task in TASKS if task not in ("single", "multi")]
FEW = [(way, Case("gcn", "weighted", task=task)) for way in STRATEGIES for task in ("class-weights", "focal")]
FEW += [(way, Case("sage-project-first", task="huber-weights")) for way in STRATEGIES]
# Of three workers one owns nothing.
FEW += [(way, Case("gcn", "weighted", "one-node-part", task="sample-weights")) for way in STRATEGIES]
FEW += [
    (way, Case("gcn", "weighted", deal, task="types")) for way in STRATEGIES for deal in ("one-node-part", "scattered")
]
CONVS = ("gcn", "sage-project-first")
WHOLE = "orchestrate-aggregate"
EVERY: list[Key] = [
    (way, Case(conv, "weighted", deal, task=task))
    for way in DEALT
    if way not in (WHOLE, "tensor-coefficients", "tensor-files")
    for conv in CONVS
    for deal in ("scattered", "one-node-part")
    for task in NEW
]


@pytest.mark.parametrize("workers", [2, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 3, 4))])
def test_every_strategy_with_other_losses(workers: int) -> None:
    first, *others = in_threads(FEW, workers)
    require_equal(first, references(FEW))
    require_same_bits(first, *others)


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_strategy_with_every_task(workers: int) -> None:
    expected = references(EVERY)
    first, *others = run_workers(partial(gradients, keys=EVERY), workers)
    require_equal(first, expected)
    require_same_bits(first, *others)


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    # Where the mean of balanced weights is left out, it is 1 all the same.
    tasks = [task for task in WEIGHTED if task != "balanced" or name == "weights_from_own_nodes"]
    tasks = ["types"] if name in {each.__name__ for each in OF_TYPES} else tasks
    keys = [(way, Case("gcn", "weighted", task=task)) for way in ("full", "sampled") for task in tasks]
    expected = references(keys)
    with MUTANTS[name]() as hits:
        found, *_ = in_threads(keys, 2)
    assert hits.count > 0
    assert not [key for key, gradient in found.items() if gradient.difference(expected[key]) <= VISIBLE]


def test_no_strategy_is_left_out() -> None:
    every = {WAYS[way].strategy.name for way in WAYS}
    assert {WAYS[way].strategy.name for way in STRATEGIES} == {WAYS[way].strategy.name for way, _ in EVERY} == every
