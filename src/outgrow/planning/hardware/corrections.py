"""Corrections of a machine's estimates, learned from runs on it.

A run tells how long its epochs took; the estimate of the run says what they consist of. Each kind of work has one
factor for its seconds, memory one for its bytes. Factors are the most likely ones if logarithms of errors are normal,
and those of factors too, with the means and spreads below: few runs change them little, and none changes them at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_COMMON_SPREAD, _KIND_SPREAD, _RUN_SPREAD = 1.0, 0.3, 0.25
"""Spreads of logarithms that are expected: of the factor that all kinds of work share, of the factor of each kind
beside it, of the seconds of a run."""
_MOST_FACTOR, _MOST_MEMORY_FACTOR = 8.0, 1.5
_UNSEEN_RUNS = 4
"""Runs that the spread of estimates before any run counts for."""
EXPECTED_SPREAD, UNMEASURED_SPREAD = math.log(1.4), math.log(2)
"""Spread of the logarithms of estimates of a machine that was measured (see `benchmarks/results/planner_score.json`),
and of one that was not."""
_IN_INTERVAL = 1.28
"""Spreads to either side within which four of five normal numbers are."""
_STEPS = 8


class WorkKind(Enum):
    """Kinds of work whose seconds are corrected together."""

    COMPUTATION = "computation"
    PREPARATION = "preparation"
    TRANSFER = "transfer"


class Observation(NamedTuple):
    """What an uncorrected estimate of a run says, and what the run has measured.

    Attributes:
        seconds: Estimated seconds of an epoch by kind of work, without what is hidden.
        epoch_seconds: Measured seconds of an epoch.
        planned_bytes: Estimated peak memory of a worker.
        held_bytes: Measured peak memory.
    """

    seconds: Mapping[WorkKind, float]
    epoch_seconds: float
    planned_bytes: int
    held_bytes: int


@dataclass(frozen=True, kw_only=True)
class Corrections:
    """Factors by which estimates of a machine are multiplied, and how sure they are.

    Attributes:
        factors: Factor of the seconds of each kind of work.
        memory: Factor of the peak memory.
        spread: Standard deviation of the logarithm of measured over estimated seconds, of runs that the factors were
            not fitted on.
        runs: Number of runs that they were learned from.
    """

    factors: Mapping[WorkKind, float] = field(default_factory=lambda: dict.fromkeys(WorkKind, 1.0))
    memory: float = 1.0
    spread: float = EXPECTED_SPREAD
    runs: int = 0

    @property
    def interval_factor(self) -> float:
        """Factor 1 or more: four of five epochs take between an estimate divided by it and multiplied by it."""
        return math.exp(_IN_INTERVAL * self.spread)


NO_CORRECTIONS = Corrections()
"""Corrections of a machine on which nothing has run."""


def fit_corrections(observations: Sequence[Observation], expected_spread: float = EXPECTED_SPREAD) -> Corrections:
    """Return the corrections that some runs teach.

    Args:
        observations: The runs.
        expected_spread: Spread of estimates before any run.
    """
    if not observations:
        return Corrections(spread=expected_spread)
    parts, measured = _as_arrays(observations)
    factors = _fit_factors(parts, np.log(measured))
    # Every run is estimated by the others, so that the spread is not that of what was fitted.
    others = [np.arange(len(measured)) != number for number in range(len(measured))]
    residuals = [
        math.log(measured[number] / float(parts[number] @ _fit_factors(parts[rest], np.log(measured[rest]))))
        for number, rest in enumerate(others)
    ]
    known, unseen = len(residuals), _UNSEEN_RUNS
    variance = (unseen * expected_spread**2 + sum(each**2 for each in residuals)) / (unseen + known)
    return Corrections(
        factors={kind: float(factor) for kind, factor in zip(WorkKind, factors, strict=True)},
        memory=_fit_memory(observations),
        spread=math.sqrt(variance),
        runs=known,
    )


def _as_arrays(observations: Sequence[Observation]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the seconds of each run by kind of work, and what its epochs took."""
    parts = [[each.seconds.get(kind, 0.0) for kind in WorkKind] for each in observations]
    return np.array(parts), np.array([each.epoch_seconds for each in observations])


def _fit_factors(parts: NDArray[np.float64], log_measured: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the factors ``[K]`` of the largest likelihood, by Gauss-Newton steps on their logarithms."""
    count = parts.shape[1]
    # The unknowns are the factor that all kinds share, then that of each beside it.
    unknown = np.zeros(1 + count)
    prior = np.diag([_COMMON_SPREAD**-2, *[_KIND_SPREAD**-2] * count])
    for _ in range(_STEPS):
        scaled = parts * np.exp(unknown[0] + unknown[1:])
        total = scaled.sum(1, keepdims=True)
        slopes = np.hstack([np.ones_like(total), scaled / total])
        residuals = log_measured - np.log(total[:, 0])
        matrix = slopes.T @ slopes / _RUN_SPREAD**2 + prior
        unknown = unknown + np.linalg.solve(matrix, slopes.T @ residuals / _RUN_SPREAD**2 - prior @ unknown)
    limit = math.log(_MOST_FACTOR)
    factors: NDArray[np.float64] = np.exp(np.clip(unknown[0] + unknown[1:], -limit, limit))
    return factors


def _fit_memory(observations: Sequence[Observation]) -> float:
    """Return the factor of memory: the mean of logarithms, drawn towards 1 as if by some runs that were right."""
    logs = [math.log(each.held_bytes / each.planned_bytes) for each in observations if each.held_bytes > 0]
    mean = sum(logs) / (len(logs) + _UNSEEN_RUNS)
    limit = math.log(_MOST_MEMORY_FACTOR)
    return math.exp(min(limit, max(-limit, mean)))
