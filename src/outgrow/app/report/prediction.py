"""What the planner expected of a run, beside what was measured."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from outgrow.app.plan.machine_profiles import machine_for
from outgrow.app.plan.question import Site, question_for
from outgrow.app.report.data import RunRecord
from outgrow.app.runs.config import load_recorded, recorded_model, seeded_model
from outgrow.app.strategy_registry import strategy_of
from outgrow.core.errors import OutgrowError
from outgrow.planning.estimators.registry import estimate
from outgrow.planning.planner import pace_of, unmeasured
from outgrow.planning.traffic import Place
from outgrow.strategies.offload.strategy import Offload
from outgrow.training.config import TrainConfig


class Comparison(NamedTuple):
    """One line of the table.

    Attributes:
        what: What it is about.
        unit: ``"s"``, ``"bytes"``, or nothing of what is counted.
        predicted: By the plan.
        measured: In the run.
    """

    what: str
    unit: str
    predicted: float
    measured: float


class Prediction(NamedTuple):
    """What was expected.

    Attributes:
        lines: What can be compared.
        said: On what machine, or why nothing can be compared.
    """

    lines: tuple[Comparison, ...]
    said: str


def predicted(run: RunRecord, data_dir: Path | None = None) -> Prediction:
    """The estimate of the run's own strategy, on as many workers; nothing where its graph or model is not at hand."""
    try:
        return _estimated(run, data_dir)
    except OutgrowError as error:
        return Prediction((), f"no prediction: {error.what}")


def _estimated(run: RunRecord, data_dir: Path | None) -> Prediction:
    config, summary = run.config, run.summary
    name, options = recorded_model(config, Path(run.name))
    graph = load_recorded(config, data_dir)
    training = TrainConfig().with_options(**config["train"])
    model = seeded_model(name, graph, options, training.seed)
    strategy, _ = strategy_of(config["strategy"]["name"], config["strategy"]["options"])
    hosts = len({each["host"] for each in run.workers}) or 1
    place = Place(workers=summary["workers"], hosts=hosts)
    profile, measured = machine_for(None, place, summary["device"])
    unknown = unmeasured(place, profile)
    if unknown is not None:
        return Prediction((), f"no prediction: {unknown}")
    memory = strategy.options().get("memory")
    asked = question_for(graph, model, training, Site(profile, [place], None if memory is None else str(memory)))
    pace = pace_of(asked, place)
    planned = estimate(strategy, asked.work, pace)
    chunks = summary["found"].get("chunks", 0)
    as_run = replace(strategy, chunks=chunks) if isinstance(strategy, Offload) and chunks else strategy
    found = estimate(as_run, asked.work, pace)
    evaluations = sum(line["val_score"] is not None for line in run.epochs)
    moved = Counter[str]()
    for (link, _), count in found.traffic.of_run(summary["epochs"], evaluations).items():
        moved[link.value] += count
    lines = [
        *([] if not chunks else [Comparison("chunks of a worker", "", planned.chunks or 0, chunks)]),
        Comparison("an epoch", "s", found.seconds, run.seconds),
        Comparison("peak memory of a worker", "bytes", found.peak_bytes, summary["peak_bytes"]["device"]),
        *(
            Comparison(f"{link.replace('_', ' ')}, all of the run", "bytes", moved[link], sum(kinds.values()))
            for link, kinds in summary["ledger"].items()
            if moved[link] or sum(kinds.values())
        ),
    ]
    machine = "as it was measured" if measured else "as a typical one: `outgrow calibrate` measures it"
    frozen = ", and for as many chunks as the run took" if chunks else ""
    return Prediction(tuple(lines), f"this machine, {machine}{frozen}")


def error_of(line: Comparison) -> float | None:
    """How far the prediction is off, as a share of what was measured."""
    return (line.predicted - line.measured) / line.measured if line.measured else None
