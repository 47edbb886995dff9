"""Messages go through Python's `logging`: to standard error by default, to a file, or to a program's own handler."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.app.conftest import Command

import outgrow as og
from outgrow.app.messages import LOGGER, log_message

SMALL = ("--model", "gcn", "--hidden", 8, "--epochs", 2)


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    handlers, level = [*LOGGER.handlers], LOGGER.level
    yield
    LOGGER.handlers[:], LOGGER.level = handlers, level
    LOGGER.setLevel(level)


def test_quiet_shows_nothing(outgrow: Command, npz: Path) -> None:
    done = outgrow("train", npz, *SMALL, "--quiet", "--json")
    assert done.code == 0
    assert done.err == ""
    assert json.loads(done.out)["epochs"] == 2
    assert "run directory" in outgrow("train", npz, *SMALL).err


def test_quiet_shows_warnings_and_errors(outgrow: Command, npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outgrow.app.runs.memory_monitor._OF_MACHINE", 0.0)
    warned = outgrow("train", npz, "--epochs", 60, "--quiet")
    assert warned.err.startswith("warning: worker 0 holds")
    failed = outgrow("train", npz, *SMALL, "--quiet", "--lr", -1)
    assert failed.code == 2
    assert "error: option lr" in failed.err


def test_a_file_has_all_messages_with_times(outgrow: Command, npz: Path) -> None:
    shown = outgrow("train", npz, *SMALL, "--log-file", "log.txt")
    assert "epoch 2/2" in shown.err
    assert outgrow("train", npz, *SMALL, "--quiet", "--log-file", "log.txt").err == ""
    assert outgrow("train", npz, *SMALL, "--set", "head=3", "--log-file", "log.txt").code == 2
    lines = Path("log.txt").read_text().splitlines()
    assert len([line for line in lines if "epoch 2/2" in line]) == 2
    assert len([line for line in lines if "run directory" in line]) == 2
    assert len([line for line in lines if "ERROR unknown option 'head'" in line]) == 1
    assert lines[0].startswith("20")
    outgrow("train", npz, *SMALL)
    assert Path("log.txt").read_text().splitlines() == lines


def test_a_file_that_cannot_be_written(outgrow: Command, npz: Path) -> None:
    done = outgrow("train", npz, *SMALL, "--log-file", "nowhere/log.txt", "--out", "run")
    assert done.code == 2
    assert "cannot write nowhere/log.txt" in done.err
    assert not Path("run").exists()


def test_basic_config_shows_messages_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler()])
    log_message("once")
    assert capsys.readouterr().err == "once\n"
    monkeypatch.setattr(logging.root, "handlers", [])
    log_message("once")
    assert capsys.readouterr().err == "once\n"


def test_a_program_takes_the_messages(npz: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken: list[str] = []

    class Taking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            taken.append(record.getMessage())

    LOGGER.handlers[:] = [Taking()]
    graph = og.load(npz)
    og.train(graph, og.nn.GCN(graph.num_features, 8, graph.num_classes), epochs=1)
    assert any("epoch 1/1" in text for text in taken)
    assert capsys.readouterr().err == ""
    LOGGER.setLevel(logging.WARNING)
    taken.clear()
    log_message("nothing")
    assert taken == []
