"""What runs teach of this machine: their estimates beside what they have measured, kept for later plans."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from outgrow.app.plan.compilation import TrainedProblem, log_compilation
from outgrow.app.plan.machine_profiles import PlannedMachine, select_machine
from outgrow.app.plan.question import PlanSite, query_for_graph
from outgrow.app.report.data import RunData
from outgrow.app.runs.config import load_recorded_graph, read_model_record
from outgrow.app.strategy_registry import resolve_strategy
from outgrow.core.errors import InputError, OutgrowError
from outgrow.graph.graph import Graph
from outgrow.nn.edge_decoder import EdgeDecoder
from outgrow.nn.model import Model
from outgrow.ops.compile_processes import compile_processes
from outgrow.planning.estimate import Estimate
from outgrow.planning.estimators.registry import KNOWN, estimate_strategy
from outgrow.planning.hardware.corrections import NO_CORRECTIONS, Corrections, Observation
from outgrow.planning.hardware.profile import MachineProfile
from outgrow.planning.hardware.run_log import LoggedRun, read_run_log, write_run_log
from outgrow.planning.planner import cost_model_for, missing_bandwidth
from outgrow.planning.traffic import WorkerLayout
from outgrow.strategies.base import Strategy
from outgrow.strategies.offload.strategy import Offload
from outgrow.training.config import TrainConfig

_FEWEST_EPOCHS = 3
"""Epochs of a run that teaches something: the first one compiles kernels, and one more may be an outlier."""
_WORTH_SECONDS = 10.0
"""Seconds of all epochs of a run that is worth an estimate of its own: that takes up to some seconds."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedRun:
    """A run that has ended, with what is needed to estimate it.

    Attributes:
        graph: The graph.
        model: The model.
        config: Options of the training loop.
        strategy: The strategy.
        layout: The workers.
        summary: Content of ``summary.json``.
        epochs: Lines of ``metrics.jsonl``; none of a run without a directory.
        path: Directory of the run; None if there is none.
    """

    graph: Graph
    model: Model
    config: TrainConfig
    strategy: Strategy
    layout: WorkerLayout
    summary: Mapping[str, Any]
    epochs: Sequence[Mapping[str, Any]] = ()
    path: Path | None = None

    @property
    def chunks(self) -> int:
        """Chunks of a worker that `offload` has chosen; 0 for none."""
        return int(self.summary["strategy_facts"].get("chunks", 0))

    def estimate(self, profile: MachineProfile, corrections: Corrections) -> tuple[Estimate, Estimate]:
        """Return what a plan of the run says, and the same for as many chunks as the run took."""
        memory = self.strategy.options().get("memory")
        site = PlanSite(profile, [self.layout], None if memory is None else str(memory), corrections)
        query = query_for_graph(self.graph, self.model, self.config, site)
        costs = cost_model_for(query, self.layout)
        planned = estimate_strategy(self.strategy, query.work, costs)
        if not (self.chunks and isinstance(self.strategy, Offload)):
            return planned, planned
        # With the run's own number of chunks, a wrong guess of that number does not distort the rest.
        return planned, estimate_strategy(replace(self.strategy, chunks=self.chunks), query.work, costs)


def rebuild_run(run: RunData, data_dir: Path | None = None) -> TrainedRun:
    """Return a run with its graph and its model, both made anew.

    Raises:
        InputError: One of them cannot be made here.
    """
    config, summary = run.config, run.summary
    recorded = read_model_record(config, run.path)
    graph = load_recorded_graph(config, data_dir)
    training = TrainConfig().with_options(**config["train"])
    strategy, _ = resolve_strategy(config["strategy"]["name"], config["strategy"]["options"])
    hosts = len({each["host"] for each in run.workers}) or 1
    return TrainedRun(
        graph=graph,
        model=recorded.build(graph, training.seed),
        config=training,
        strategy=strategy,
        layout=WorkerLayout(workers=summary["workers"], hosts=hosts),
        summary=summary,
        epochs=run.epochs,
        path=run.path,
    )


def learn_from_runs(runs: Sequence[TrainedRun]) -> dict[Path, int]:
    """Add what runs teach to the logs of this machine; return how many there are in each log that was written.

    Raises:
        InputError: A run teaches nothing, or cannot be estimated; nothing was written.
    """
    logs: dict[Path, tuple[PlannedMachine, list[LoggedRun]]] = {}
    for run in runs:
        machine = select_machine(None, run.layout, run.summary["device"])
        unknown = missing_bandwidth(run.layout, machine.profile)
        if unknown is not None:
            _raise_unlearnable(run, "a profile of the links between its workers", unknown)
        assert machine.run_log is not None
        _, known = logs.setdefault(machine.run_log, (machine, read_run_log(machine.run_log, machine.profile)))
        known[:] = _add_run(known, run, machine.profile)
    for path, (machine, known) in logs.items():
        write_run_log(path, machine.profile, known)
    return {path: len(known) for path, (_, known) in logs.items()}


def learn_after_training(run: TrainedRun) -> str | None:
    """Learn from a run that has just ended, if that is worth it; return a message if it was not possible."""
    log_compilation(TrainedProblem(run.graph, run.model, run.config), run.strategy, run.layout, run.summary)
    seconds = run.summary["epoch_seconds"]
    is_planned = isinstance(run.strategy, KNOWN) and not isinstance(run.model.decoder, EdgeDecoder)
    if len(seconds) < _FEWEST_EPOCHS or sum(seconds) < _WORTH_SECONDS or not is_planned:
        return None
    # While kernels were compiled in other processes, epochs were slower.
    if compile_processes.idle_seconds < sum(seconds) / 2:
        return None
    # The run has ended well: what it could teach is no reason to fail.
    try:
        machine = select_machine(None, run.layout, run.summary["device"])
        # Between hosts nothing can be learned until the network is measured.
        if missing_bandwidth(run.layout, machine.profile) is None:
            assert machine.run_log is not None
            known = read_run_log(machine.run_log, machine.profile)
            write_run_log(machine.run_log, machine.profile, _add_run(known, run, machine.profile))
    except (OutgrowError, OSError) as error:
        return f"nothing was learned from the run: {error}"
    return None


def _add_run(known: Sequence[LoggedRun], run: TrainedRun, profile: MachineProfile) -> list[LoggedRun]:
    logged = _log_run(run, profile)
    # A run that is learned from again replaces what it taught before.
    return [*(each for each in known if not logged.run or each.run != logged.run), logged]


def _log_run(run: TrainedRun, profile: MachineProfile) -> LoggedRun:
    """Return what a run teaches of a machine with this profile.

    Raises:
        InputError: It teaches nothing.
    """
    summary = run.summary
    seconds = summary["epoch_seconds"]
    if len(seconds) < _FEWEST_EPOCHS:
        _raise_unlearnable(run, f"{_FEWEST_EPOCHS} epochs at least", f"{len(seconds)}")
    if not isinstance(run.strategy, KNOWN):
        _raise_unlearnable(run, "a strategy of Outgrow", f"{run.strategy.name}")
    _, found = run.estimate(profile, NO_CORRECTIONS)
    planned = Counter[str]()
    for (link, _), count in found.traffic.epoch.items():
        planned[link.value] += count
    later = [line.get("phases", {}) for line in run.epochs[1:]]
    return LoggedRun(
        date=datetime.now().astimezone().isoformat(timespec="seconds"),
        run="" if run.path is None else str(run.path.resolve()),
        graph=summary["graph"],
        model=type(run.model).__name__,
        strategy=run.strategy.name,
        workers=run.layout.workers,
        observation=Observation(
            seconds=found.seconds_by_kind(),
            epoch_seconds=statistics.median(seconds[1:]),
            planned_bytes=found.peak_bytes,
            held_bytes=summary["peak_bytes"]["device"],
        ),
        phases={
            phase: statistics.median(each.get(phase, 0.0) for each in later)
            for phase in dict.fromkeys(phase for each in later for phase in each)
        },
        planned_link_bytes=dict(planned),
        moved_link_bytes={link: sum(kinds.values()) for link, kinds in summary["ledger"].items() if kinds},
    )


def _raise_unlearnable(run: TrainedRun, needed: str, got: str) -> None:
    name = run.summary["graph"] if run.path is None else str(run.path)
    raise InputError(
        f"the run {name} teaches nothing of this machine",
        needed=needed,
        got=got,
        repair="give runs that were trained here, for some epochs, by one of Outgrow's strategies",
    )
