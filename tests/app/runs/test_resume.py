"""What a run may go on with, and that a refusal changes nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Command

BATCHES = ("--batch-size", 40, "--fanout", "5,5", "--set", "checkpoint_every=1")
SMALL = ("--model", "sage", "--hidden", 16)


def recorded(run: str) -> dict[str, Any]:
    return json.loads(Path(run, "config.json").read_text())


@pytest.mark.parametrize(
    ("first", "others", "loop"),
    [
        ("full", [("offload", "--set", "chunks=3"), ("tensor",), ("full", "--set", "partition=hash")], ()),
        ("sampled", [("split",), ("migrate",), ("orchestrate", "--set", "hot_ratio=0.0")], BATCHES),
    ],
)
def test_by_another_strategy(
    outgrow: Command, npz: Path, first: str, others: list[tuple[str, ...]], loop: tuple[object, ...]
) -> None:
    whole = outgrow("train", npz, *SMALL, *loop, "--strategy", first, "--epochs", 8, "--out", "whole", "--json")
    assert outgrow("train", npz, *SMALL, *loop, "--strategy", first, "--epochs", 2, "--out", "parts").code == 0
    for epochs, (name, *options) in zip((4, 6, 8), others, strict=True):
        result = outgrow(
            "train", "--out", "parts", "--resume", "--epochs", epochs, "--strategy", name, *options, "--json"
        )
        assert result.code == 0, result.err
        assert recorded("parts")["strategy"]["name"] == name
    assert result.summary["strategy"] == others[-1][0]
    assert result.summary["loss"] == pytest.approx(whole.summary["loss"], abs=1e-5)
    assert result.summary["test_accuracy"] == pytest.approx(whole.summary["test_accuracy"], abs=0.02)


def test_options_of_the_strategy_stay_with_it(outgrow: Command, npz: Path) -> None:
    start = ("train", npz, *SMALL, "--strategy", "offload", "--set", "chunks=3", "--epochs", 1, "--out", "run")
    assert outgrow(*start).code == 0
    assert outgrow("train", "--out", "run", "--resume", "--epochs", 2, "--set", "sharing=false").code == 0
    options = recorded("run")["strategy"]["options"]
    assert (options["chunks"], options["sharing"]) == (3, False)
    assert outgrow("train", "--out", "run", "--resume", "--epochs", 3, "--strategy", "auto").code == 0
    assert recorded("run")["strategy"]["name"] == "full"
    refused = outgrow("train", "--out", "run", "--resume", "--epochs", 4, "--set", "chunks=3")
    assert refused.code == 2
    assert "unknown option" in refused.err
    assert recorded("run")["train"]["epochs"] == 3


def test_a_strategy_that_trains_something_else_is_refused(outgrow: Command, npz: Path) -> None:
    assert outgrow("train", npz, *SMALL, *BATCHES, "--epochs", 1, "--out", "run").code == 0
    before = recorded("run")
    for name, why in (("offload", "all nodes and neighbours at once"), ("everything", "everything")):
        refused = outgrow("train", "--out", "run", "--resume", "--epochs", 2, "--strategy", name)
        assert refused.code == 2
        assert why in refused.err
    assert recorded("run") == before


def test_a_checkpoint_of_another_model_changes_nothing(outgrow: Command, npz: Path) -> None:
    assert outgrow("train", npz, *SMALL, "--epochs", 1, "--out", "run").code == 0
    assert outgrow("train", npz, "--model", "gcn", "--hidden", 16, "--epochs", 9, "--out", "other").code == 0
    shutil.copy("other/checkpoint/epoch-00000009.pt", "run/checkpoint")
    before = recorded("run")
    refused = outgrow("train", "--out", "run", "--resume", "--epochs", 20, "--lr", 0.5)
    assert refused.code == 2
    assert "is of another model" in refused.err
    assert recorded("run") == before
    assert not Path("run/.lock").exists()
    Path("run/checkpoint/epoch-00000009.pt").unlink()
    assert outgrow("train", "--out", "run", "--resume").code == 0


def test_copies_of_ones_own_are_left_alone(outgrow: Command, npz: Path) -> None:
    assert outgrow("train", npz, *SMALL, "--epochs", 1, "--out", "run").code == 0
    mine = Path("run/checkpoint/epoch-good.pt")
    shutil.copy("run/checkpoint/epoch-00000001.pt", mine)
    assert outgrow("train", "--out", "run", "--resume", "--epochs", 4, "--set", "checkpoint_every=1").code == 0
    assert mine.exists()


def test_a_torn_line_of_metrics_is_of_no_epoch(outgrow: Command, npz: Path) -> None:
    assert outgrow("train", npz, *SMALL, "--epochs", 2, "--out", "run").code == 0
    with Path("run/metrics.jsonl").open("ab") as file:
        file.write(b'{"epoch": 3, "lo\xff\xfe')
    assert outgrow("train", "--out", "run", "--resume", "--epochs", 3).code == 0
    assert [json.loads(line)["epoch"] for line in Path("run/metrics.jsonl").read_text().splitlines()] == [1, 2, 3]


def test_a_disk_that_does_not_give_a_checkpoint_is_not_a_torn_one(
    outgrow: Command, npz: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert outgrow("train", npz, *SMALL, "--epochs", 2, "--set", "checkpoint_every=1", "--out", "run").code == 0
    newest, read = Path("run/checkpoint/epoch-00000002.pt"), Path.read_bytes

    def stale(path: Path) -> bytes:
        if path.name == newest.name:
            raise OSError(116, "Stale file handle")
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", stale)
        refused = outgrow("train", "--out", "run", "--resume", "--epochs", 3)
    assert refused.code == 2
    assert "Stale file handle" in refused.err
    assert newest.exists()
    assert outgrow("train", "--out", "run", "--resume", "--epochs", 3).code == 0
