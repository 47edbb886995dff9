"""What is shown while training goes on."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.app.conftest import Command

from outgrow.app.runs.progress import BarDisplay, LineDisplay
from outgrow.training.progress_events import ProgressEvent
from outgrow.training.trainer import EpochReport

REPORT = EpochReport(epoch=2, loss=0.5, val_score=0.75, seconds=1.0, edges_per_second=2.5e6, best_epoch=2)


def screen() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_bars_of_all_epochs_and_of_what_is_under_way() -> None:
    console = screen()
    bar = BarDisplay(4, "val acc", console)
    with bar:
        bar.on_progress(ProgressEvent("dealing out nodes"))
        bar.progress.refresh()
        bar.on_progress(ProgressEvent("epoch 2", 0, 40))
        bar.on_progress(ProgressEvent("epoch 2", 10, 40))
        bar.progress.refresh()
        bar.on_epoch(REPORT)
        bar.progress.refresh()
    text = shown(console)
    for words in ("dealing out nodes", "epoch 2", "10/40", "2/4", "loss 0.5000", "val acc 0.7500", "2.5 M edges/s"):
        assert words in text


def test_one_step_an_epoch_needs_no_bar_of_its_own() -> None:
    console = screen()
    with BarDisplay(4, "val acc", console) as bar:
        bar.on_progress(ProgressEvent("epoch 1", 0, 1))
        bar.progress.refresh()
    assert "epoch 1" not in shown(console)


def test_logs_have_lines_of_epochs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    lines = LineDisplay(2, "val acc")
    lines.on_progress(ProgressEvent("preparing"))
    lines.on_epoch(REPORT)
    assert capsys.readouterr().err == "epoch 2/2  loss 0.5000  val acc 0.7500 (best epoch 2)  2.5 M edges/s\n"


def test_a_line_says_what_compiling_took(capsys: pytest.CaptureFixture[str]) -> None:
    lines = LineDisplay(2, "val acc")
    lines.on_epoch(replace(REPORT, compile_seconds=14.2))
    lines.on_epoch(replace(REPORT, compile_seconds=0.2))
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"{second}  14 s of compiling"


def test_a_warning_before_memory_is_full(outgrow: Command, npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outgrow.app.runs.memory_monitor._OF_MACHINE", 0.0)
    result = outgrow("train", npz, "--epochs", 60)  # memory is looked at from time to time
    assert result.code == 0
    assert result.err.count("warning: worker 0 holds") == 1
    assert "--memory" in result.err
