"""Comparison of the planner's prediction for a run with its measurements."""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from outgrow.app.plan.machine_profiles import select_machine
from outgrow.app.report.data import RunData
from outgrow.app.run_learning import rebuild_run
from outgrow.core.errors import OutgrowError
from outgrow.planning.estimate import Estimate
from outgrow.planning.planner import missing_bandwidth


class MetricComparison(NamedTuple):
    """One row of the table of predictions.

    Attributes:
        label: Name of the metric.
        unit: ``"s"``, ``"bytes"``, or empty for a count.
        predicted: Value that the planner predicts.
        measured: Value measured in the run.
    """

    label: str
    unit: str
    predicted: float
    measured: float


class RunPrediction(NamedTuple):
    """Prediction for a run.

    Attributes:
        comparisons: Metrics that can be compared; empty without a prediction.
        notes: Machine that the prediction is for, or why there is none.
    """

    comparisons: tuple[MetricComparison, ...]
    notes: str


def predict_run(run: RunData, data_dir: Path | None = None) -> RunPrediction:
    """Predict a run with its own strategy and number of workers.

    Returns:
        The prediction; without comparisons if the graph or the model of the run cannot be rebuilt here.
    """
    try:
        return _estimate_run(run, data_dir)
    except OutgrowError as error:
        # The rest of the page needs neither graph nor model and is still worth showing.
        return RunPrediction((), f"no prediction: {error.what}")


def _estimate_run(run: RunData, data_dir: Path | None) -> RunPrediction:
    summary = run.summary
    trained = rebuild_run(run, data_dir)
    machine = select_machine(None, trained.layout, summary["device"])
    unknown = missing_bandwidth(trained.layout, machine.profile)
    if unknown is not None:
        return RunPrediction((), f"no prediction: {unknown}")
    planned, found = trained.estimate(machine.profile, machine.corrections)
    chunks = trained.chunks
    evaluations = sum(line["val_score"] is not None for line in run.epochs)
    moved = Counter[str]()
    for (link, _), count in found.traffic.run_bytes(summary["epochs"], evaluations).items():
        moved[link.value] += count
    lines = [
        *([] if not chunks else [MetricComparison("chunks of a worker", "", planned.chunks or 0, chunks)]),
        MetricComparison("an epoch", "s", found.epoch_seconds, run.epoch_seconds),
        *_compare_evaluations(found, run),
        MetricComparison("peak memory of a worker", "bytes", found.peak_bytes, summary["peak_bytes"]["device"]),
        *(
            MetricComparison(f"{link.replace('_', ' ')}, all of the run", "bytes", moved[link], sum(kinds.values()))
            for link, kinds in summary["ledger"].items()
            if moved[link] or sum(kinds.values())
        ),
    ]
    place = "as it was measured" if machine.is_measured else "as a typical one: `outgrow calibrate` measures it"
    learned = f", corrected by {machine.corrections.runs} runs" if machine.corrections.runs else ""
    frozen = ", and for as many chunks as the run took" if chunks else ""
    return RunPrediction(tuple(lines), f"this machine, {place}{learned}{frozen}")


def _compare_evaluations(found: Estimate, run: RunData) -> list[MetricComparison]:
    took = [line["evaluation_seconds"] for line in run.epochs if line.get("evaluation_seconds")]
    # The first one compiles kernels and makes what later ones keep.
    took = took[1:] or took
    return [MetricComparison("an evaluation", "s", found.evaluation_seconds, statistics.median(took))] if took else []


def relative_error(comparison: MetricComparison) -> float | None:
    """Return the error of the prediction as a fraction of the measurement; None if the latter is zero."""
    return (comparison.predicted - comparison.measured) / comparison.measured if comparison.measured else None
