"""What is shown while training goes on."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from tests.app.conftest import Command

from outgrow.app.messages import open_messages
from outgrow.app.runs import progress
from outgrow.app.runs.progress import BarDisplay, LineDisplay, show_compilation
from outgrow.core.compile_clock import CompileClock, describe_compilation
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


def test_a_phase_of_unknown_length_has_no_total() -> None:
    with BarDisplay(4, "val acc", screen()) as bar:
        bar.on_progress(ProgressEvent("epoch 1", 0, 40))
        bar.on_progress(ProgressEvent("compiling kernel 1 (spmm)", interrupts=True))
        assert bar.progress.tasks[bar.phase_task].total is None
        bar.on_progress(ProgressEvent("epoch 1", 0, 40))
        assert bar.progress.tasks[bar.phase_task].total == 40


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
    lines.on_epoch(replace(REPORT, compile_seconds=14.2, compiled_kernels=9))
    lines.on_epoch(replace(REPORT, compile_seconds=0.25, compiled_kernels=1))
    lines.on_epoch(REPORT)
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == f"{third}  compiled 9 kernels in 14.20 s"
    assert second == f"{third}  compiled 1 kernel in 250 ms"


def test_a_log_says_now_and_then_what_training_waits_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter((100.0, 100.0, 109.0, 110.5, 110.5))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(now)))
    lines = LineDisplay(2, "val acc")
    for number in (1, 2, 3):
        lines.on_progress(ProgressEvent(describe_compilation(number, "_spmm"), interrupts=True))
        lines.on_progress(ProgressEvent("epoch 1"))
    assert capsys.readouterr().err == "compiling kernel 1 (spmm)\ncompiling kernel 3 (spmm)\n"


def test_kernels_that_read_the_graph_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = CompileClock()
    monkeypatch.setattr(progress, "compile_clock", clock)
    with open_messages(quiet=False, log_file=None), show_compilation():
        assert capsys.readouterr().err == ""
        with clock.record("_count_pairs"):
            assert capsys.readouterr().err == "compiling kernel 1 (count_pairs)\n"
    with open_messages(quiet=True, log_file=None), show_compilation(), clock.record("_count_pairs"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with show_compilation(), clock.record("_count_pairs"):
        pass
    assert "compiling kernel 3 (count_pairs)" in capsys.readouterr().err


def test_a_warning_before_memory_is_full(outgrow: Command, npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outgrow.app.runs.memory_monitor._OF_MACHINE", 0.0)
    result = outgrow("train", npz, "--epochs", 60)  # memory is looked at from time to time
    assert result.code == 0
    assert result.err.count("warning: worker 0 holds") == 1
    assert "--memory" in result.err
