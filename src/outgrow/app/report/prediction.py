"""What the planner expected of a run, beside what was measured."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from outgrow.app.plan.machine_profiles import select_machine
from outgrow.app.plan.question import PlanSite, query_for_graph
from outgrow.app.report.data import RunData
from outgrow.app.runs.config import build_seeded_model, load_recorded_graph, read_model_record
from outgrow.app.strategy_registry import resolve_strategy
from outgrow.core.errors import OutgrowError
from outgrow.planning.estimators.registry import estimate_strategy
from outgrow.planning.planner import cost_model_for, missing_bandwidth
from outgrow.planning.traffic import WorkerLayout
from outgrow.strategies.offload.strategy import Offload
from outgrow.training.config import TrainConfig


class MetricComparison(NamedTuple):
    """One line of the table.

    Attributes:
        label: What it is about.
        unit: ``"s"``, ``"bytes"``, or nothing of what is counted.
        predicted: By the plan.
        measured: In the run.
    """

    label: str
    unit: str
    predicted: float
    measured: float


class RunPrediction(NamedTuple):
    """What was expected.

    Attributes:
        comparisons: What can be compared.
        notes: On what machine, or why nothing can be compared.
    """

    comparisons: tuple[MetricComparison, ...]
    notes: str


def predict_run(run: RunData, data_dir: Path | None = None) -> RunPrediction:
    """The estimate of the run's own strategy, on as many workers; nothing where its graph or model is not at hand."""
    try:
        return _estimate_run(run, data_dir)
    except OutgrowError as error:
        return RunPrediction((), f"no prediction: {error.what}")


def _estimate_run(run: RunData, data_dir: Path | None) -> RunPrediction:
    config, summary = run.config, run.summary
    name, options = read_model_record(config, Path(run.name))
    graph = load_recorded_graph(config, data_dir)
    training = TrainConfig().with_options(**config["train"])
    model = build_seeded_model(name, graph, options, training.seed)
    strategy, _ = resolve_strategy(config["strategy"]["name"], config["strategy"]["options"])
    hosts = len({each["host"] for each in run.workers}) or 1
    place = WorkerLayout(workers=summary["workers"], hosts=hosts)
    profile, measured = select_machine(None, place, summary["device"])
    unknown = missing_bandwidth(place, profile)
    if unknown is not None:
        return RunPrediction((), f"no prediction: {unknown}")
    memory = strategy.options().get("memory")
    asked = query_for_graph(graph, model, training, PlanSite(profile, [place], None if memory is None else str(memory)))
    pace = cost_model_for(asked, place)
    planned = estimate_strategy(strategy, asked.work, pace)
    chunks = summary["found"].get("chunks", 0)
    as_run = replace(strategy, chunks=chunks) if isinstance(strategy, Offload) and chunks else strategy
    found = estimate_strategy(as_run, asked.work, pace)
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
    """How far the prediction is off, as a share of what was measured."""
    return (comparison.predicted - comparison.measured) / comparison.measured if comparison.measured else None
