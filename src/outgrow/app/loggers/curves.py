"""What loggers write: the points of an epoch and of a step by name, and a package that they need."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from outgrow.core.errors import InputError
from outgrow.training.callbacks import EndReport, EpochReport, StepReport


def epoch_points(report: EpochReport) -> dict[str, float]:
    """Return the finite numbers of an epoch by the name of their curve."""
    points = {
        "loss/train": report.loss,
        "score/val": report.val_score,
        "lr": report.lr,
        "time/epoch_seconds": report.seconds,
        "time/evaluation_seconds": report.evaluation_seconds,
        "time/compile_seconds": report.compile_seconds,
        "time/edges_per_second": report.edges_per_second,
        **{f"val/{name}": value for name, value in report.scores.items()},
        **{f"phase/{name}": seconds for name, seconds in report.phases.items()},
    }
    return _finite(points)


def step_points(report: StepReport) -> dict[str, float]:
    """Return the finite numbers of a batch by the name of their curve."""
    return _finite({"step/loss": report.loss, "step/lr": report.lr, "step/seconds": report.seconds})


def final_points(report: EndReport) -> dict[str, float]:
    """Return the finite scores of the final model by name."""
    sets = (("val", report.val), ("test", report.test))
    scores = {f"final/{part}_{name}": value for part, given in sets for name, value in given.items()}
    return _finite({**scores, "final/best_epoch": float(report.best_epoch)})


def _finite(points: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in points.items() if value is not None and math.isfinite(value)}


def flat_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of training without those that are not given; options in options have names with a dot."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": each for inner, each in value.items()}
        elif value is not None:
            found[name] = value
    return found


def import_logger(package: str, extra: str) -> ModuleType:
    """Import the package of a logger.

    Raises:
        InputError: It is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise InputError(
            f"this logger needs the package {package}",
            needed=f"the extra {extra}",
            got=str(error),
            repair=f"pip install 'outgrow[{extra}]'",
        ) from error
