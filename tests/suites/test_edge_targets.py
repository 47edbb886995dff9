"""Targets of edges give the gradient of plain torch, edge by edge, under every strategy: in float64 to 1e-10."""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch

from outgrow.engine.shard import FullGraphShard
from suites.edge_targets import (
    BROKEN,
    KEYS,
    MUTANTS,
    Case,
    Found,
    Key,
    found_on,
    gradients,
    reference,
)
from suites.exactness import Gradient
from thread_group import run_in_threads

TOLERANCE, VISIBLE, WORKERS = 1e-10, 1e-6, 3


@cache
def expected(case: Case) -> Gradient:
    return reference(case)


def alone(keys: list[Key]) -> Found:
    return found_on(lambda _, topology: FullGraphShard(topology), keys)


def difference(gradient: Gradient, case: Case) -> float:
    """How far a gradient is from that of plain torch; a parameter that nothing reads has none."""
    theirs = expected(case).parameters
    whole = {name: gradient.parameters.get(name, torch.zeros_like(value)) for name, value in theirs.items()}
    return gradient._replace(parameters=whole).difference(expected(case))


def wrong(found: Found) -> dict[Key, float]:
    differences = {key: difference(gradient, key[1]) for key, gradient in found.items()}
    return {key: value for key, value in differences.items() if not value <= TOLERANCE}


def test_one_worker() -> None:
    found = alone(KEYS)
    assert len(found) == len(KEYS)
    assert wrong(found) == {}


def test_workers_together() -> None:
    first, *others = run_in_threads(partial(gradients, keys=KEYS), WORKERS)
    assert len(first) == len(KEYS)
    assert wrong(first) == {}
    assert [key for key in first for other in others if not first[key].same_bits(other[key])] == []


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    with MUTANTS[name]() as hits:
        found = run_in_threads(partial(gradients, keys=BROKEN), WORKERS)[0]
    assert hits.count > 0
    assert min(difference(gradient, key[1]) for key, gradient in found.items()) > VISIBLE
