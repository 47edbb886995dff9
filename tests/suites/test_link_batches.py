"""Batches of links are the same on any number of workers, in every way that trains in mini-batches."""

from __future__ import annotations

from functools import cache, partial

import pytest

from outgrow.engine.shard import FullGraphShard
from pool import run_workers
from suites.exactness import underived
from suites.link_batches import CASES, GRAPHS, KEYS, Case, Found, found_on, gradients
from thread_group import run_in_threads

TOLERANCE = 1e-10
several = pytest.mark.parametrize(
    "workers", [3, *(pytest.param(workers, marks=pytest.mark.slow) for workers in (2, 4))]
)


def alone(keys: list[tuple[str, Case]]) -> Found:
    return found_on(lambda case: FullGraphShard(underived(GRAPHS[case.graph][0])), keys)


@cache
def expected() -> Found:
    return alone([("sampled", case) for case in CASES])


@cache
def together(workers: int) -> list[Found]:
    return run_in_threads(partial(gradients, keys=KEYS), workers)


def wrong(found: Found) -> dict[tuple[str, Case], float]:
    differences = {(way, case): each.difference(expected()["sampled", case]) for (way, case), each in found.items()}
    return {key: value for key, value in differences.items() if not value <= TOLERANCE}


def test_all_ways_give_the_same_on_one_worker() -> None:
    found = alone([key for key in KEYS if key[0] != "sampled"])
    assert len(found) == 3 * len(CASES)
    assert wrong(found) == {}


def test_two_runs_have_the_same_bits() -> None:
    again = alone([("sampled", case) for case in CASES])
    assert [key for key, value in again.items() if not value.same_bits(expected()[key])] == []


def test_cases_are_told_apart() -> None:
    losses = {round(each.loss, 12) for each in expected().values()}
    assert len(losses) == len(CASES)


@several
def test_workers_together(workers: int) -> None:
    found = together(workers)[0]
    assert len(found) == len(KEYS)
    assert wrong(found) == {}


@several
def test_all_workers_have_the_same_bits(workers: int) -> None:
    first, *others = together(workers)
    assert len(others) == workers - 1
    assert [key for key in first for other in others if not first[key].same_bits(other[key])] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [2, 4])
def test_between_processes(workers: int) -> None:
    for found in run_workers(partial(gradients, keys=KEYS), workers):
        assert wrong(found) == {}
