"""The ledger of `split` is the formula, to the byte."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from outgrow.core.ledger import Kind
from suites.split_traffic import MODELS, TOPOLOGY, bytes_by_model, bytes_of_epoch, owner_of
from thread_group import run_in_threads


@cache
def sent(workers: int) -> dict[str, Counter[Kind]]:
    """What all workers together send in an epoch of each model."""
    found = run_in_threads(bytes_by_model, workers)
    return {name: sum((each[name] for each in found), Counter()) for name in MODELS}


@pytest.mark.parametrize("workers", [3, *(pytest.param(workers, marks=pytest.mark.slow) for workers in (2, 4))])
@pytest.mark.parametrize("name", MODELS)
def test_all_bytes_of_an_epoch(name: str, workers: int) -> None:
    expected = bytes_of_epoch(MODELS[name], owner_of(TOPOLOGY, workers), workers)
    assert sent(workers)[name] == expected


def test_parts_of_sums_are_fewer_bytes() -> None:
    parts, sources = (sent(3)[name] for name in ("wide rows", "wide rows, sources only"))
    assert parts[Kind.TOPOLOGY] > 0 == sources[Kind.TOPOLOGY]
    assert parts[Kind.GRADIENTS] < sources[Kind.GRADIENTS]
    assert parts.total() - parts[Kind.IDS] < sources.total() - sources[Kind.IDS]
