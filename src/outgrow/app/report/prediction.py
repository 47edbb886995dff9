"""Comparison of the planner's prediction for a run with its measurements."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from outgrow.app.plan.machine_profiles import select_machine
from outgrow.app.plan.question import PlanSite, query_for_graph
from outgrow.app.report.data import RunData
from outgrow.app.runs.config import load_recorded_graph, read_model_record
from outgrow.app.strategy_registry import resolve_strategy
from outgrow.core.errors import OutgrowError
from outgrow.planning.estimators.registry import estimate_strategy
from outgrow.planning.planner import cost_model_for, missing_bandwidth
from outgrow.planning.traffic import WorkerLayout
from outgrow.strategies.offload.strategy import Offload
from outgrow.training.config import TrainConfig


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
    config = run.config
    summary = run.summary
    recorded = read_model_record(config, run.path)
    graph = load_recorded_graph(config, data_dir)
    training = TrainConfig().with_options(**config["train"])
    model = recorded.build(graph, training.seed)
    strategy, _ = resolve_strategy(config["strategy"]["name"], config["strategy"]["options"])
    hosts = len({each["host"] for each in run.workers}) or 1
    layout = WorkerLayout(workers=summary["workers"], hosts=hosts)
    profile, measured = select_machine(None, layout, summary["device"])
    unknown = missing_bandwidth(layout, profile)
    if unknown is not None:
        return RunPrediction((), f"no prediction: {unknown}")
    memory = strategy.options().get("memory")
    site = PlanSite(profile, [layout], None if memory is None else str(memory))
    query = query_for_graph(graph, model, training, site)
    costs = cost_model_for(query, layout)
    planned = estimate_strategy(strategy, query.work, costs)
    chunks = summary["found"].get("chunks", 0)
    # With the run's own number of chunks, a wrong guess of that number does not distort the other metrics.
    as_run = replace(strategy, chunks=chunks) if isinstance(strategy, Offload) and chunks else strategy
    found = estimate_strategy(as_run, query.work, costs)
    evaluations = sum(line["val_score"] is not None for line in run.epochs)
    moved = Counter[str]()
    for (link, _), count in found.traffic.run_bytes(summary["epochs"], evaluations).items():
        moved[link.value] += count
    lines = [
        *([] if not chunks else [MetricComparison("chunks of a worker", "", planned.chunks or 0, chunks)]),
        MetricComparison("an epoch", "s", found.epoch_seconds, run.epoch_seconds),
        MetricComparison("peak memory of a worker", "bytes", found.peak_bytes, summary["peak_bytes"]["device"]),
        *(
            MetricComparison(f"{link.replace('_', ' ')}, all of the run", "bytes", moved[link], sum(kinds.values()))
            for link, kinds in summary["ledger"].items()
            if moved[link] or sum(kinds.values())
        ),
    ]
    machine = "as it was measured" if measured else "as a typical one: `outgrow calibrate` measures it"
    frozen = ", and for as many chunks as the run took" if chunks else ""
    return RunPrediction(tuple(lines), f"this machine, {machine}{frozen}")


def relative_error(comparison: MetricComparison) -> float | None:
    """Return the error of the prediction as a fraction of the measurement; None if the latter is zero."""
    return (comparison.predicted - comparison.measured) / comparison.measured if comparison.measured else None
