"""Every strategy gives the gradient of the reference, for every layer, on 1 to 4 workers: in float64 to 1e-10.

What `make test` runs has threads for workers; each case and many more run nightly on processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial

import pytest

from pool import run_workers
from suites.exactness import (
    EVERY_CASE,
    EVERY_CHUNKING,
    EVERY_DEAL,
    QUICK,
    WAYS,
    Found,
    gradients,
    mutated_references,
    references,
)
from suites.exactness_in_threads import see
from suites.mutants import MUTANTS

pytestmark = pytest.mark.timeout(900)  # the first test of a number of workers waits for all that these compute
VISIBLE = 1e-6
one, two, three = (pytest.param(workers, marks=pytest.mark.slow) for workers in (1, 2, 3))
several = pytest.mark.parametrize("workers", [two, three, 4])
any_number = pytest.mark.parametrize("workers", [one, two, three, 4])


seen = cache(see)


@pytest.fixture(scope="module")
def expected() -> Found:
    return references(QUICK)


@pytest.fixture(scope="module")
def broken() -> Mapping[str, Found]:
    return mutated_references()


def require_same_bits(first: Found, *others: Found) -> None:
    """All workers gave the same in every case, to the last bit."""
    for other in others:
        assert other.keys() == first.keys()
        assert [key for key in first if not first[key].same_bits(other[key])] == []


def require_equal(found: Found, expected: Found) -> None:
    """Every way gave what is expected in every case."""
    assert found.keys() == expected.keys()
    differences = {key: gradient.difference(expected[key]) for key, gradient in found.items()}
    assert not {key: value for key, value in differences.items() if not value <= key[1].tolerance}


@any_number
def test_every_strategy_and_layer(workers: int, expected: Found) -> None:
    require_equal(seen(workers)[0].right, expected)


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_strategy_in_every_case(workers: int) -> None:
    expected = references(EVERY_CASE)
    first, *others = run_workers(partial(gradients, keys=EVERY_CASE), workers)
    require_equal(first, expected)
    require_same_bits(first, *others)


@pytest.mark.slow
@pytest.mark.timeout(2400)
@several
def test_every_layer_on_every_graph_dealt_out_in_every_way(workers: int) -> None:
    expected = references(EVERY_DEAL)
    for found in run_workers(partial(gradients, keys=EVERY_DEAL), workers):
        require_equal(found, expected)


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_layer_in_every_number_of_chunks(workers: int) -> None:
    expected = references(EVERY_CHUNKING)
    for found in run_workers(partial(gradients, keys=EVERY_CHUNKING), workers):
        require_equal(found, expected)


@any_number
def test_all_workers_have_the_same_bits(workers: int) -> None:
    first, *others = (each.right for each in seen(workers))
    assert len(others) == workers - 1
    require_same_bits(first, *others)


@pytest.mark.slow
def test_the_cases_are_as_odd_as_they_should_be() -> None:
    held = [held for workers in (2, 4) for each in seen(workers) for held in each.held.values()]
    assert any(each.nodes == 0 for each in held)
    assert any(each.nodes == 1 for each in held)
    assert any(each.nodes and not each.halo and each.edges for each in held)
    assert any(each.nodes and not each.edges for each in held)
    assert any(each.halo > 10 for each in held)


@pytest.mark.mutant
@several
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, workers: int, broken: Mapping[str, Found]) -> None:
    by_rank = seen(workers)
    assert by_rank[0].hits[name] > 0
    found = by_rank[0].mutated[name]
    for way in MUTANTS[name].breaks:
        differences = [gradient.difference(broken[name][key]) for key, gradient in found.items() if key[0] == way]
        assert not max(differences) <= VISIBLE, way


@pytest.mark.mutant
@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_no_mutant_is_wrong_on_one_worker(name: str, broken: Mapping[str, Found]) -> None:
    [alone] = seen(1)
    for key, gradient in alone.mutated[name].items():
        if WAYS[key[0]].strategy.name == WAYS[key[0]].reference.name:  # else only one of both is broken
            assert gradient.difference(broken[name][key]) <= key[1].tolerance
