"""Steps of links give the gradient of plain torch on a graph without the hidden edges: in float64 to 1e-10."""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch

from outgrow.engine.shard import FullGraphShard
from pool import run_workers
from suites.broken_link_steps import ANYWHERE, MUTANTS, Seen, broken_keys, see
from suites.exactness import Gradient
from suites.link_reference import reference
from suites.link_steps import EVERYTHING, QUICK, Case, Found, Key, Mutant, found_on, fresh, gradients

TOLERANCE, VISIBLE = 1e-10, 1e-6
several = pytest.mark.parametrize(
    "workers", [3, *(pytest.param(workers, marks=pytest.mark.slow) for workers in (2, 4))]
)


@cache
def expected(case: Case) -> Gradient:
    return reference(case)


@cache
def seen(workers: int) -> list[Seen]:
    """What each worker has."""
    return see(QUICK, workers)


def alone(keys: list[Key]) -> Found:
    return found_on(lambda case: FullGraphShard(fresh(case)), keys)


def difference(gradient: Gradient, case: Case) -> float:
    """How far a gradient is from that of plain torch; a parameter that nothing reads has none."""
    theirs = expected(case).parameters
    whole = {name: gradient.parameters.get(name, torch.zeros_like(value)) for name, value in theirs.items()}
    return gradient._replace(parameters=whole).difference(expected(case))


def wrong(found: Found) -> dict[Key, float]:
    """Where a way does not give what plain torch gives, and by how much."""
    differences = {key: difference(gradient, key[1]) for key, gradient in found.items()}
    return {key: value for key, value in differences.items() if not value <= TOLERANCE}


def test_one_worker() -> None:
    found = alone(QUICK)
    assert len(found) == len(QUICK)
    assert wrong(found) == {}


@several
def test_workers_together(workers: int) -> None:
    found = seen(workers)[0].right
    assert len(found) == len(QUICK)
    assert wrong(found) == {}


@several
def test_all_workers_have_the_same_bits(workers: int) -> None:
    first, *others = (each.right for each in seen(workers))
    assert len(others) == workers - 1
    assert [key for key in first for other in others if not first[key].same_bits(other[key])] == []


@pytest.mark.mutant
@several
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, workers: int) -> None:
    assert seen(workers)[0].hits[name] > 0
    found = seen(workers)[0].mutated[name]
    assert len(found) == len(broken_keys(name))
    assert min(difference(gradient, key[1]) for key, gradient in found.items()) > VISIBLE


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", ANYWHERE, ids=lambda mutant: mutant.__name__)
def test_a_mutant_that_needs_no_others_is_found_on_one_worker(mutant: Mutant) -> None:
    with mutant() as hits:
        found = alone(broken_keys(mutant.__name__))
    assert hits.count > 0
    assert min(difference(gradient, key[1]) for key, gradient in found.items()) > VISIBLE


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_every_loss_in_every_way_between_processes(workers: int) -> None:
    for found in run_workers(partial(gradients, keys=EVERYTHING), workers):
        assert wrong(found) == {}
