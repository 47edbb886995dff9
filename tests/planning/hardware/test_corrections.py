"""Corrections that runs teach: which factors, how sure, and how little a few runs change."""

from __future__ import annotations

import json
import math
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.planning.hardware import corrections
from outgrow.planning.hardware.corrections import (
    EXPECTED_SPREAD,
    UNMEASURED_SPREAD,
    Corrections,
    Observation,
    WorkKind,
    fit_corrections,
)
from outgrow.planning.hardware.profile import find_profile
from outgrow.planning.hardware.run_log import MOST_RUNS, LoggedRun, read_run_log, write_run_log

PROFILE = find_profile("2-core-cpu")


def observed(
    seconds: tuple[float, float, float], factors: tuple[float, float, float], noise: float = 1.0
) -> Observation:
    """A run whose kinds of work take so many times what is estimated."""
    took = sum(one * factor for one, factor in zip(seconds, factors, strict=True))
    return Observation(dict(zip(WorkKind, seconds, strict=True)), took * noise, 100, 100)


def corrected(found: Corrections, run: Observation) -> float:
    return sum(found.factors[kind] * seconds for kind, seconds in run.seconds.items())


def mixed_runs(count: int, factors: tuple[float, float, float], seed: int, noise: float = 0.1) -> list[Observation]:
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet((2, 1, 1), count) * rng.uniform(0.1, 10, (count, 1))
    noises = np.exp(rng.normal(0, noise, count))
    return [observed(tuple(each), factors, float(bit)) for each, bit in zip(shares, noises, strict=True)]


def test_nothing_is_corrected_before_any_run() -> None:
    assert fit_corrections([]) == Corrections(spread=EXPECTED_SPREAD)
    assert fit_corrections([], UNMEASURED_SPREAD).spread == UNMEASURED_SPREAD
    assert Corrections().factors == dict.fromkeys(WorkKind, 1.0)
    assert Corrections().interval_factor == pytest.approx(math.exp(1.28 * EXPECTED_SPREAD))


@pytest.mark.parametrize("factors", [(2.0, 2.0, 2.0), (0.5, 0.5, 0.5), (2.0, 1.0, 0.5), (1.0, 1.0, 3.0)])
def test_ten_runs_bring_estimates_within_a_quarter(factors: tuple[float, float, float]) -> None:
    """Of a profile that is off by two, ten runs are enough for the next twenty, whatever kinds of work are off."""
    found = fit_corrections(mixed_runs(10, factors, seed=1))
    errors = [corrected(found, run) / run.epoch_seconds for run in mixed_runs(20, factors, seed=2, noise=0.0)]
    assert np.mean([abs(each - 1) < 0.25 for each in errors]) >= 0.95
    assert found.runs == 10


def test_one_run_changes_less_than_ten() -> None:
    runs = mixed_runs(10, (2.0, 2.0, 2.0), seed=3)
    one, ten = fit_corrections(runs[:1]), fit_corrections(runs)
    for kind in WorkKind:
        assert 1 < one.factors[kind] < 2.3
    assert abs(ten.factors[WorkKind.COMPUTATION] - 2) < abs(one.factors[WorkKind.COMPUTATION] - 2)


def test_the_interval_holds_what_it_says() -> None:
    """Four of five later runs are within it, whether runs scatter little or much."""
    for noise in (0.1, 0.6):
        found = fit_corrections(mixed_runs(40, (1.5, 1.0, 1.0), seed=4, noise=noise))
        later = mixed_runs(200, (1.5, 1.0, 1.0), seed=5, noise=noise)
        within = [
            1 / found.interval_factor <= run.epoch_seconds / corrected(found, run) <= found.interval_factor
            for run in later
        ]
        assert 0.7 < np.mean(within) < 0.97
    assert found.spread > EXPECTED_SPREAD


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(1e-6, 1e3), st.floats(0, 1e3), st.floats(0, 1e3), st.floats(1e-6, 1e6)),
        min_size=1,
        max_size=12,
    )
)
def test_factors_are_bounded(runs: list[tuple[float, float, float, float]]) -> None:
    """Whatever runs say, no factor leaves its bounds, and the spread is a number."""
    seen = [Observation(dict(zip(WorkKind, each[:3], strict=True)), each[3], 100, 1000) for each in runs]
    found = fit_corrections(seen)
    assert all(1 / 8 - 1e-9 <= factor <= 8 + 1e-9 for factor in found.factors.values())
    assert 1 <= found.memory <= 1.5
    assert math.isfinite(found.spread)


def test_memory_moves_slowly() -> None:
    runs = [Observation(dict.fromkeys(WorkKind, 1.0), 3.0, 100, 130)] * 4
    assert 1.1 < fit_corrections(runs).memory < 1.2


def logged(number: int) -> LoggedRun:
    return LoggedRun(
        date="2026-01-01",
        run=f"runs/{number}",
        graph="cora",
        model="Model",
        strategy="full",
        workers=2,
        observation=observed((1.0, 0.5, 0.25), (1.0, 2.0, 3.0)),
        phases={"forward": 1.0},
        planned_link_bytes={"peer": 10},
        moved_link_bytes={"peer": 20},
    )


def test_a_log_keeps_the_latest_runs_of_one_profile(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "log.json"
    write_run_log(path, PROFILE, [logged(number) for number in range(MOST_RUNS + 5)])
    found = read_run_log(path, PROFILE)
    assert found == [logged(number) for number in range(5, MOST_RUNS + 5)]
    # The memory of a machine is read anew each time, and changes no rate.
    assert read_run_log(path, replace(PROFILE, device=replace(PROFILE.device, memory_bytes=1 << 30))) == found
    faster = replace(PROFILE, device=replace(PROFILE.device, copy=2 * PROFILE.device.copy))
    assert read_run_log(path, faster) == []


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", json.dumps({"format": 9}), '{"format": 1, "profile": 3, "runs": 4}'],
)
def test_a_broken_log_teaches_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.json"
    path.write_text(text)
    assert read_run_log(path, PROFILE) == []
    assert read_run_log(tmp_path / "none.json", PROFILE) == []


def nothing_is_learned() -> AbstractContextManager[object]:
    """Factors hardly leave 1, whatever runs say."""
    return patch.multiple(corrections, _COMMON_SPREAD=1e-3, _KIND_SPREAD=1e-3)


def a_fit_praises_itself() -> AbstractContextManager[object]:
    """The spread is that of the runs that factors were fitted on, with a factor for each of few runs."""
    fit = corrections._fit_factors
    seen: list[Any] = []

    def fit_once(parts: Any, log_measured: Any) -> Any:
        seen[:] = seen or [fit(parts, log_measured)]
        return seen[0]

    return patch.object(corrections, "_fit_factors", fit_once)


MUTANTS = {each.__name__: each for each in (nothing_is_learned, a_fit_praises_itself)}


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(mutant: str) -> None:
    """Runs off by two, of which one is off by ten: without it estimates are sure, but not of that one."""
    runs = [*mixed_runs(3, (2.0, 2.0, 2.0), seed=6), observed((1.0, 0.0, 0.0), (20.0, 1.0, 1.0))]
    right = fit_corrections(runs)
    with MUTANTS[mutant]():
        broken = fit_corrections(runs)
    assert right.factors[WorkKind.COMPUTATION] > 2
    assert broken.factors[WorkKind.COMPUTATION] < 1.5 or broken.spread < 0.9 * right.spread
