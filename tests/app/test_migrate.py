"""Models that travel, on the command line: what is found out is kept beside the run, and taken up when it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Command

from outgrow.app.runs.directory import HintsWriter, RunDirectory
from outgrow.training.trainer import EpochReport

SHORT = ("--hidden", 8, "--model", "gcn", "--batch-size", 60, "--fanout", "4,3")
MIGRATE = (*SHORT, "--strategy", "migrate")
TRAVEL = (*MIGRATE, "--set", "move_model=true")
REPORT = EpochReport(epoch=1, loss=1.0, val_score=None, seconds=1.0, edges_per_second=1.0, best_epoch=0)


def hints_in(folder: str = "run") -> dict[str, Any]:
    """What was found out by a run."""
    return json.loads(Path(folder, "hints.json").read_text())


@pytest.mark.usefixtures("launched")
def test_what_is_found_out_is_kept(outgrow: Command, npz: Path) -> None:
    """Epochs take turns from the second on. Another number of workers lets it be."""
    result = outgrow("train", npz, *TRAVEL, "--workers", 3, "--epochs", 4, "--out", "run", "--json")
    assert result.code == 0, result.err
    found, hint = result.summary["found"], hints_in()["migrate"]
    assert hint["size"] == 3
    assert found["time_steps"] == hint["log"]
    assert found["time_step_decisions"] == []
    assert [steps for steps, _ in hint["log"]] == [3, 2, 2]
    alone = outgrow("train", "--out", "run", "--resume", "--workers", 1, "--epochs", 5, "--json")
    assert (alone.code, alone.summary["epochs"]) == (0, 5)
    assert hints_in()["migrate"] == hint


def resumed(outgrow: Command, npz: Path, hints: str, workers: int) -> dict[str, Any]:
    """The summary of a run that goes on for two epochs, on several workers, with a file of hints."""
    outgrow("train", npz, *TRAVEL, "--epochs", 1, "--out", "run")
    Path("run/hints.json").write_text(hints)
    result = outgrow("train", "--out", "run", "--resume", "--workers", workers, "--epochs", 3, "--json")
    assert result.code == 0, result.err
    assert (result.summary["workers"], result.summary["epochs"]) == (workers, 3)
    return result.summary


@pytest.mark.usefixtures("pooled")
def test_what_is_settled_is_taken_up(outgrow: Command, npz: Path) -> None:
    """In one time step models do not move, so no gradients travel but their sum."""
    log = [[steps, float(steps)] for steps in (3, 2, 2, 3, 3, 2, 2, 1, 1, 2, 2, 1)]
    told = {"size": 3, "log": log}
    summary = resumed(outgrow, npz, json.dumps({"migrate": told}), 3)
    assert summary["found"]["time_steps"] == log
    assert [each["merges"] for each in summary["found"]["time_step_decisions"]] == [True, True]
    assert "gradients" not in summary["ledger"]["peer"]
    assert hints_in() == {"migrate": told}


@pytest.mark.usefixtures("pooled")
def test_broken_hints_are_ignored_and_replaced(outgrow: Command, npz: Path) -> None:
    """Models move, and the second of the epochs is judged."""
    summary = resumed(outgrow, npz, '{"migrate": {"size": 2, "dropped": 1,', 2)
    assert summary["ledger"]["peer"]["gradients"] > 0
    log = summary["found"]["time_steps"]
    assert [steps for steps, _ in log] == [2]
    assert hints_in() == {"migrate": {"size": 2, "log": log}}


def test_a_run_without_journeys_leaves_no_hints(outgrow: Command, npz: Path) -> None:
    result = outgrow("train", npz, *TRAVEL, "--epochs", 2, "--out", "run", "--json")
    sampled = outgrow("train", npz, *SHORT, "--strategy", "sampled", "--epochs", 2, "--out", "sampled", "--json")
    assert result.code == sampled.code == 0
    assert result.summary["loss"] == sampled.summary["loss"]
    assert "time_steps" not in result.summary["found"]
    assert not Path("run/hints.json").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--memory", "1MiB"), "memory"),
        (("--set", "cache=2"), "a cache cannot hold"),
        (("--set", "time_steps=0"), "time_steps"),
        (("--set", "move_model=perhaps"), "move_model"),
        (("--set", "time_steps=2"), "add move_model=true"),
        (("--set", "partition=meti"), "metis-edges"),
        (("--fanout", "4"), "2 hops, one for each layer"),
    ],
)
def test_mistakes(options: tuple[object, ...], said: str, outgrow: Command, npz: Path) -> None:
    result = outgrow("train", npz, *MIGRATE, "--epochs", 2, "--workers", 3, *options, "--out", "run")
    assert result.code == 2
    assert said in result.err
    assert result.err.count("needed:") == result.err.count("repair:") == 1
    assert "Traceback" not in result.err
    assert not Path("run").exists()


def run_in(folder: Path) -> RunDirectory:
    return RunDirectory.create(folder / "run", {"graph": {}, "model": {}, "train": {}, "strategy": {}})


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"[1, 2]", b"3", b"null", b'"migrate"', b"\xff\xfe\x00", b'{"migrate": }']
)
def test_hints_that_cannot_be_read_are_none(content: bytes | None, tmp_path: Path) -> None:
    run = run_in(tmp_path)
    if content is not None:
        (run.path / "hints.json").write_bytes(content)
    assert run.resume_hints == {}


def test_a_folder_in_the_place_of_hints_is_none(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    (run.path / "hints.json").mkdir()
    assert run.resume_hints == {}


def test_hints_are_written_after_epochs_that_changed_them(tmp_path: Path) -> None:
    run, hints = run_in(tmp_path), dict[str, object]()
    path, keeper = run.path / "hints.json", HintsWriter(run, hints)
    keeper.on_epoch(REPORT)
    assert not path.exists()
    for known in ({"dropped": 1}, {"dropped": 2}):
        hints["migrate"] = known
        keeper.on_epoch(REPORT)
        assert run.resume_hints == {"migrate": known}
        path.unlink()
        keeper.on_epoch(REPORT)
        assert not path.exists()


def test_hints_of_the_run_so_far_are_not_written_again(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    HintsWriter(run, {"migrate": {"dropped": 1}}).on_epoch(REPORT)
    assert run.resume_hints == {}
