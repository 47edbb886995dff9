"""Plans say what compiling will take, from what was trained on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Command

import outgrow as og
from outgrow.app.plan import compilation
from outgrow.app.plan.machine_profiles import compile_log_path

GCN = ("--model", "gcn", "--hidden", 8)
FULL = ("--strategy", "full")
BATCHES = ("--batch-size", 50, "--fanout", "4,3")


def planned_seconds(outgrow: Command, npz: Path, *options: object) -> float | None:
    """Seconds of compiling before training by the chosen strategy on one worker."""
    found = outgrow("plan", npz, *options, "--workers", 1, "--json").summary
    seconds: float | None = found["strategies"][0]["compile_seconds"]
    return seconds


def change_log(seconds: float) -> list[dict[str, Any]]:
    """Let all runs have compiled for so long; return them."""
    path = compile_log_path()
    log = json.loads(path.read_text())
    for run in log["runs"]:
        run["seconds"] = seconds
    path.write_text(json.dumps(log))
    runs: list[dict[str, Any]] = log["runs"]
    return runs


def test_a_run_teaches_what_the_next_compiles(
    outgrow: Command, npz: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert planned_seconds(outgrow, npz, *GCN) is None
    assert "nothing like this was trained here" in outgrow("plan", npz, *GCN, "--workers", 1).out
    trained = outgrow("train", npz, *GCN, *FULL, "--epochs", 2, "--json").summary
    assert json.loads(compile_log_path().read_text())["runs"][0]["seconds"] == trained["compile_seconds"]
    assert planned_seconds(outgrow, npz, *GCN) == 0
    assert "no time to compile kernels" in outgrow("plan", npz, *GCN, "--workers", 1).out
    (run,) = change_log(2.5)
    assert run["kernels"] == trained["compiled_kernels"]
    assert planned_seconds(outgrow, npz, *GCN) == 0
    # Another width may need other kernels; another model or in batches, nothing is known.
    assert planned_seconds(outgrow, npz, "--model", "gcn", "--hidden", 16) == 2.5
    assert planned_seconds(outgrow, npz, "--model", "gat") is None
    assert planned_seconds(outgrow, npz, *GCN, *BATCHES) is None
    monkeypatch.setattr(compilation, "state_folder", lambda: tmp_path / "kernels of changed sources")
    assert planned_seconds(outgrow, npz, *GCN) == 2.5
    assert "up to 2.5 s to compile kernels" in outgrow("plan", npz, *GCN, "--workers", 1).out


def test_a_plan_for_another_machine_says_nothing(outgrow: Command, npz: Path) -> None:
    outgrow("train", npz, *GCN, *FULL, "--epochs", 2)
    assert planned_seconds(outgrow, npz, *GCN, "--hardware", "2-core-cpu") is None


def test_a_run_that_is_too_short_teaches_nothing(outgrow: Command, npz: Path) -> None:
    outgrow("train", npz, *GCN, *FULL, "--epochs", 1)
    assert not compile_log_path().exists()
    outgrow("train", npz, *GCN, *BATCHES, "--epochs", 1, "--strategy", "sampled")
    assert compile_log_path().exists()


def test_loops_on_one_thread_are_other_kernels(outgrow: Command, npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outgrow("train", npz, *GCN, *FULL, "--epochs", 2)
    monkeypatch.setenv("OUTGROW_KERNELS", "parallel")
    assert planned_seconds(outgrow, npz, *GCN) is None


def test_from_python_too(npz: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    graph = og.load(npz)
    model = og.nn.GCN(graph.num_features, 8, graph.num_classes)
    assert og.plan(graph, model, workers=1).plan.candidates[0].compile_seconds is None
    og.train(graph, model, epochs=2, strategy="full")
    assert og.plan(graph, model, workers=1).plan.candidates[0].compile_seconds == 0


def test_a_log_that_cannot_be_written_is_no_error(
    outgrow: Command, npz: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(compilation, "compile_log_path", lambda: tmp_path / "file" / "here.json")
    assert outgrow("train", npz, *GCN, *FULL, "--epochs", 2).code == 0
