"""What runs teach of the machine: after training, by `outgrow calibrate --from`, and how it is shown and forgotten."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Command

import outgrow as og
from outgrow.app import run_learning
from outgrow.app.plan import machine_profiles
from outgrow.app.plan.machine_profiles import select_machine
from outgrow.app.report.data import read_run
from outgrow.app.run_learning import TrainedRun, learn_from_runs, rebuild_run
from outgrow.planning.hardware.profile import MachineProfile, RateByWidth, find_profile, write_profile
from outgrow.planning.traffic import WorkerLayout


@pytest.fixture
def runs(outgrow: Command, npz: Path, tmp_path: Path) -> list[Path]:
    """Short runs of several models and strategies, in folders of their own."""
    ways = [
        ("gcn", ()),
        ("sage", ("--hidden", 32)),
        ("gat", ()),
        ("sage", ("--batch-size", 16, "--fanout", "4,4")),
        ("gcn", ("--layers", 3)),
    ]
    folders = []
    for number, (model, options) in enumerate(ways):
        folders.append(tmp_path / f"run-{number}")
        done = outgrow("train", npz, "--model", model, *options, "--epochs", 5, "--out", folders[-1], "--quiet")
        assert done.code == 0, done.err
    return folders


def _slower(profile: MachineProfile, times: float) -> MachineProfile:
    """A profile whose device takes so many times the seconds."""
    device = profile.device

    def scaled(rates: RateByWidth) -> RateByWidth:
        return RateByWidth({width: rate / times for width, rate in rates.per_second.items()})

    changed = {name: scaled(getattr(device, name)) for name in ("product", "near", "far", "score")}
    changed |= {name: getattr(device, name) / times for name in ("finish", "fresh", "copy")}
    changed |= {name: getattr(device, name) * times for name in ("layer_seconds", "step_overhead_seconds")}
    return replace(profile, device=replace(device, **changed))


def _estimated(trained: TrainedRun) -> float:
    machine = select_machine(None, trained.layout, "cpu")
    return trained.estimate(machine.profile, machine.corrections)[1].epoch_seconds


@pytest.mark.parametrize("times", [0.5, 2.0])
def test_ten_runs_correct_a_profile_that_is_off_by_two(npz: Path, times: float) -> None:
    """Estimates of other models are within 25% of what they take on a machine half or twice as fast as its profile."""
    truth = replace(find_profile("2-core-cpu"), workers=1)
    path = machine_profiles.profile_cache_path(truth)
    write_profile(_slower(truth, times), path)
    graph = og.load(npz)

    def pretend(hidden: int, layers: int) -> TrainedRun:
        """A run that takes what the true profile says."""
        model = og.nn.SAGE(graph.num_features, hidden, graph.num_classes, layers=layers)
        summary: dict[str, Any] = {"device": "cpu", "strategy_facts": {}, "graph": "planted", "ledger": {}}
        run = TrainedRun(
            graph=graph,
            model=model,
            config=og.TrainConfig(),
            strategy=og.Full(),
            layout=WorkerLayout(workers=1),
            summary=summary,
        )
        found = run.estimate(truth, run_learning.NO_CORRECTIONS)[0]
        summary |= {"epoch_seconds": [1.0, *[found.epoch_seconds] * 4], "peak_bytes": {"device": found.peak_bytes}}
        return run

    later = [pretend(hidden, layers) for hidden in (12, 48, 200) for layers in (2, 5)]
    before = [_estimated(run) / run.summary["epoch_seconds"][1] for run in later]
    assert all(each == pytest.approx(times, rel=0.1) for each in before)
    for hidden in (8, 16, 32, 64, 128):
        learn_from_runs([pretend(hidden, layers) for layers in (2, 3)])
    after = [_estimated(run) / run.summary["epoch_seconds"][1] for run in later]
    assert all(0.75 < each < 1.25 for each in after), after
    assert select_machine(None, WorkerLayout(workers=1), "cpu").corrections.runs == 10


def test_runs_teach_on_demand(outgrow: Command, npz: Path, runs: list[Path]) -> None:
    given = [word for run in runs for word in ("--from", run)]
    result = outgrow("calibrate", *given, "--json")
    assert result.code == 0, result.err
    assert f"{len(runs)} runs are kept" in result.err
    [learned] = json.loads(result.out)
    assert [Path(each["run"]) for each in learned["runs"]] == [run.resolve() for run in runs]
    assert all(each["phases"] for each in learned["runs"])
    # The same runs once more replace what they taught.
    assert f"{len(runs)} runs are kept" in outgrow("calibrate", *given).err
    machine = select_machine(None, WorkerLayout(workers=1), "cpu")
    assert machine.corrections.runs == len(runs)
    errors = []
    for run in runs:
        data = read_run(run)
        found = rebuild_run(data).estimate(machine.profile, machine.corrections)[0]
        errors.append(found.epoch_seconds / data.epoch_seconds)
    assert 0.5 < statistics.median(errors) < 2
    shown = outgrow("calibrate", "--learned")
    assert "memory x" in shown.out
    assert all(len(line) <= 100 for line in shown.out.splitlines())
    plan = outgrow("plan", npz, "--workers", 1)
    assert f"corrected by {len(runs)} runs" in plan.out
    assert outgrow("calibrate", "--reset").code == 0
    assert "nothing is learned" in outgrow("calibrate", "--learned").out
    assert select_machine(None, WorkerLayout(workers=1), "cpu").corrections.runs == 0


def test_a_run_that_is_long_enough_teaches_by_itself(
    outgrow: Command, npz: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ("train", npz, "--model", "gcn", "--epochs", 4, "--quiet")
    assert outgrow(*train, "--out", "short").code == 0
    assert select_machine(None, WorkerLayout(workers=1), "cpu").corrections.runs == 0
    monkeypatch.setattr(run_learning, "_WORTH_SECONDS", 0.0)
    assert outgrow(*train, "--out", "long").code == 0
    assert select_machine(None, WorkerLayout(workers=1), "cpu").corrections.runs == 1


def test_runs_that_teach_nothing_are_refused(outgrow: Command, npz: Path, tmp_path: Path) -> None:
    assert outgrow("train", npz, "--epochs", 1, "--out", "one", "--quiet").code == 0
    for given, words in (("one", "3 epochs at least"), ("nowhere", "no run")):
        result = outgrow("calibrate", "--from", given)
        assert (result.code, result.out) == (2, "")
        assert words in result.err.lower()
    assert machine_profiles.list_run_logs() == []
