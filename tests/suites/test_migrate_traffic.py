"""The ledger of `migrate` is the formula, to the byte."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from outgrow.core.ledger import Kind
from suites.migrate_traffic import MODELS, WAYS, bytes_by_way, bytes_of_run
from thread_group import run_in_threads


@cache
def sent(workers: int) -> dict[tuple[str, str], Counter[Kind]]:
    """What all workers together send in two epochs of each model in each way."""
    found = run_in_threads(bytes_by_way, workers, hosts=workers)
    return {name: sum((each[name] for each in found), Counter()) for name in found[0]}


@pytest.mark.parametrize("workers", [3, *(pytest.param(workers, marks=pytest.mark.slow) for workers in (2, 4))])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_all_bytes_of_two_epochs(name: str, way: str, workers: int) -> None:
    assert sent(workers)[name, way] == bytes_of_run(MODELS[name], WAYS[way], workers)


@pytest.mark.parametrize("name", MODELS)
def test_pregathering_saves_rows_and_nothing_else_but_questions(name: str) -> None:
    for way in ("travel", "two time steps"):
        once, each = sent(3)[name, way], sent(3)[name, f"{way} without pregathering"]
        assert each[Kind.FEATURES] > once[Kind.FEATURES] > 0
        assert each[Kind.IDS] > once[Kind.IDS] > 0
        assert each[Kind.METRICS] == once[Kind.METRICS]
        assert (each[Kind.PARAMETERS], each[Kind.GRADIENTS]) == (once[Kind.PARAMETERS], once[Kind.GRADIENTS])


@pytest.mark.parametrize("name", MODELS)
def test_models_that_stay_send_least(name: str) -> None:
    """The fewer time steps, the fewer moves; with one, none, and then nothing but the sum of gradients travels."""
    found = [sent(3)[name, way] for way in ("travel", "two time steps", "one time step", "elided")]
    moved = [each[Kind.GRADIENTS] for each in found]
    assert moved == [2 * moved[1], moved[1], 0, 0]
    assert moved[1] > 0
    assert found[0].total() > found[3].total()
    assert found[2][Kind.PARAMETERS] == found[3][Kind.PARAMETERS]
