"""Every strategy gives the gradient of link prediction that plain torch gives: in float64 to 1e-10."""

from __future__ import annotations

from functools import cache, partial

import pytest

from outgrow.engine.shard import FullGraphShard
from pool import run_workers
from suites.exactness import Gradient
from suites.links import (
    ANYWHERE,
    BROKEN,
    EVERYTHING,
    MUTANTS,
    QUICK,
    Case,
    Found,
    Key,
    Mutant,
    Seen,
    found_on,
    fresh,
    gradients,
    reference,
    see,
)

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


def wrong(found: Found) -> dict[Key, float]:
    """Where a way does not give what plain torch gives, and by how much."""
    differences = {key: gradient.difference(expected(key[1])) for key, gradient in found.items()}
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


def test_every_parameter_has_a_gradient_that_matters() -> None:
    for case in {case for _, case in QUICK if case.graph != "isolated"}:
        found = expected(case)
        assert ("decoder.relation" in found.parameters) == (case.decoder == "distmult")
        assert 0.1 < found.loss < 100
        assert [name for name, grad in found.parameters.items() if not grad.abs().max() > 1e-4] == []


@pytest.mark.mutant
@several
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, workers: int) -> None:
    assert seen(workers)[0].hits[name] > 0
    found = seen(workers)[0].mutated[name]
    differences = [gradient.difference(expected(key[1])) for key, gradient in found.items()]
    assert len(differences) == len(BROKEN)
    assert min(differences) > VISIBLE


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", ANYWHERE, ids=lambda mutant: mutant.__name__)
def test_a_mutant_that_needs_no_others_is_found_on_one_worker(mutant: Mutant) -> None:
    with mutant() as hits:
        found = alone(BROKEN)
    assert hits.count > 0
    assert min(gradient.difference(expected(key[1])) for key, gradient in found.items()) > VISIBLE


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_every_model_on_every_graph_dealt_out_in_every_way(workers: int) -> None:
    for found in run_workers(partial(gradients, keys=EVERYTHING), workers):
        assert wrong(found) == {}
