"""What runs have taught of this machine, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outgrow.app.plan.machine_profiles import PlannedMachine, list_learning_machines
from outgrow.planning.hardware.run_log import LoggedRun, read_run_log


def describe_learned() -> list[dict[str, Any]]:
    """Return what is learned for each profile of this machine, with the runs that taught it."""
    return [_describe(machine) for machine in list_learning_machines() if machine.corrections.runs]


def _describe(machine: PlannedMachine) -> dict[str, Any]:
    assert machine.run_log is not None
    found = machine.corrections
    runs = read_run_log(machine.run_log, machine.profile)
    return {
        "machine": machine.profile.name,
        "workers": machine.profile.workers,
        "hosts": machine.profile.hosts,
        "file": str(machine.run_log),
        "factors": {kind.value: factor for kind, factor in found.factors.items()},
        "memory": found.memory,
        "interval": found.interval_factor,
        "runs": [run.as_dict() | {"error": _error(run)} for run in runs],
    }


def _error(run: LoggedRun) -> float:
    """Return measured over estimated seconds, without corrections."""
    return run.observation.epoch_seconds / run.estimated_seconds


def show_learned(found: Sequence[dict[str, Any]]) -> None:
    """Print what is learned as tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=100)
    if not found:
        console.print("nothing is learned yet: runs of ten seconds and more teach, and `outgrow calibrate --from RUN`")
    for each in found:
        factors = ", ".join(f"{kind} x {factor:.2f}" for kind, factor in each["factors"].items())
        console.print(
            f"{each['machine']}, {each['workers']} workers on each of {each['hosts']} hosts ({each['file']}):\n"
            f"seconds of {factors}; memory x {each['memory']:.2f}; four of five epochs take between an estimate over "
            f"{each['interval']:.2f} and times {each['interval']:.2f}",
            highlight=False,
        )
        table = Table(box=None)
        for column in ("date", "graph", "model", "strategy", "workers", "an epoch", "over the estimate"):
            table.add_column(column, justify="left" if column in ("date", "graph", "model", "strategy") else "right")
        for run in each["runs"]:
            words = [run["date"][:16], run["graph"], run["model"], run["strategy"], str(run["workers"])]
            table.add_row(*words, f"{run['epoch_seconds']:,.3g} s", f"{run['error']:.2f}")
        console.print(table)
