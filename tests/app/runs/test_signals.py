"""Signals end a run with a checkpoint, from which it goes on as if nothing had been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import outgrow as og
from outgrow.app.runs import signals
from outgrow.app.runs.signals import ENDING, catch_interruption

EPOCHS = 100_000
STRATEGIES = {
    "full": (),
    "offload": (),
    "tensor": (),
    "sampled": ("--batch-size", 60, "--fanout", "4,4"),
    "split": ("--batch-size", 60, "--fanout", "4,4"),
    "migrate": ("--batch-size", 60, "--fanout", "4,4"),
    "orchestrate": ("--batch-size", 10, "--fanout", "4,4"),
}


def ended_by(number: int, out: Path, arguments: list[str], *, after: float = 0.0) -> subprocess.CompletedProcess[str]:
    """A run that gets a signal some seconds after its first epoch."""
    command = [sys.executable, "-m", "outgrow", "train", *arguments, "--epochs", str(EPOCHS), "--out", str(out)]
    command += ["--set", f"checkpoint_every={EPOCHS}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 100
        while not (out / "metrics.jsonl").exists() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        time.sleep(after)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=100)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


@pytest.mark.parametrize(
    ("number", "workers"),
    [
        (signal.SIGTERM, 1),
        pytest.param(signal.SIGTERM, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, 1, marks=pytest.mark.slow),
    ],
)
def test_a_run_ends_with_a_checkpoint_and_the_exit_code_of_its_signal(
    number: int, workers: int, npz: Path, tmp_path: Path, outgrow: Callable[..., Any]
) -> None:
    out = tmp_path / "run"
    done = ended_by(number, out, [str(npz), "--hidden", "8", "--workers", str(workers)])
    assert done.returncode == 128 + number, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["stopped"] == "interrupted"
    assert (out / "checkpoint" / f"epoch-{summary['epochs']:08d}.pt").exists()
    longer = summary["epochs"] + 2
    again = outgrow("train", "--out", out, "--resume", "--epochs", longer, "--json").summary
    assert again["loss"][: summary["epochs"]] == summary["loss"]


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_curve_is_the_undisturbed_one_wherever_a_run_is_ended(
    strategy: str, npz: Path, tmp_path: Path, outgrow: Callable[..., Any]
) -> None:
    arguments = [str(npz), "--hidden", "8", "--strategy", strategy, *map(str, STRATEGIES[strategy])]
    random = np.random.default_rng(list(STRATEGIES).index(strategy))
    for number, after in enumerate(random.random(20)):
        out, whole = tmp_path / f"run-{number}", tmp_path / f"whole-{number}"
        done = ended_by(signal.SIGTERM, out, arguments, after=float(after))
        assert done.returncode == 143, done.stderr
        epochs = json.loads((out / "summary.json").read_text())["epochs"] + 3
        resumed = outgrow("train", "--out", out, "--resume", "--epochs", epochs, "--json").summary
        undisturbed = outgrow("train", *arguments, "--epochs", epochs, "--out", whole, "--json").summary
        assert resumed["loss"] == undisturbed["loss"]


def graph() -> og.Graph:
    random = np.random.default_rng(0)
    return og.from_arrays(
        random.integers(0, 60, (2, 300)),
        features=random.normal(size=(60, 4)).astype("f4"),
        labels=random.integers(0, 3, 60),
        split={"train": np.arange(30), "val": np.arange(30, 60)},
    )


def send_once_trained(number: int, out: Path) -> None:
    while not (out / "metrics.jsonl").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
@pytest.mark.parametrize("workers", [1, 2])
def test_in_python_a_loop_ends(number: int, raised: type[BaseException], workers: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    sender = threading.Thread(target=send_once_trained, args=(number, out))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
    sender.start()
    try:
        torch.manual_seed(0)
        with pytest.raises(raised) as ended:
            og.train(graph(), og.nn.GCN(4, 8, 3), epochs=EPOCHS, out=out, workers=workers, progress=False)
    finally:
        sender.join()
        signal.signal(signal.SIGINT, before)
    if number != signal.SIGINT:
        assert ended.value.code == 143  # type: ignore[attr-defined]
    epochs = json.loads((out / "summary.json").read_text())["epochs"]
    assert (out / "checkpoint" / f"epoch-{epochs:08d}.pt").exists()


def test_only_the_first_signal_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = list[int]()
    monkeypatch.setattr(signals.os, "kill", lambda process, number: killed.append(number))
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    with catch_interruption(0.05) as interruption:
        assert not interruption.is_set()
        signal.raise_signal(signal.SIGUSR1)
        assert interruption.number == signal.SIGUSR1
        # A second one would do what it does without us.
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
        time.sleep(0.3)
        assert killed == [signal.SIGUSR1]
    killed.clear()
    with catch_interruption(0.2):
        signal.raise_signal(signal.SIGUSR1)
    time.sleep(0.4)
    assert killed == []  # it has ended in time


def test_handlers_of_the_program_are_left_to_it() -> None:
    came = list[int]()
    before = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with catch_interruption(30) as interruption:
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGHUP)
            assert not interruption.is_set()
        assert came == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)
        signal.signal(signal.SIGHUP, ignored)
    assert signal.SIGTERM in ENDING


def test_resume_auto_starts_and_goes_on(npz: Path, tmp_path: Path, outgrow: Callable[..., Any]) -> None:
    arguments = ("train", npz, "--hidden", 8, "--out", tmp_path / "run", "--resume", "auto", "--json")
    first = outgrow(*arguments, "--epochs", 3).summary
    again = outgrow(*arguments, "--epochs", 5).summary
    assert again["loss"][:3] == first["loss"]
    assert len(again["loss"]) == 5
    assert outgrow("train", npz, "--hidden", 8, "--resume", "auto").code == 2
    run = og.train(graph(), og.nn.GCN(4, 8, 3), epochs=2, out=tmp_path / "own", resume="auto", progress=False)
    more = og.train(graph(), og.nn.GCN(4, 8, 3), epochs=4, out=tmp_path / "own", resume="auto", progress=False)
    assert more.loss[:2] == run.loss
    with pytest.raises(og.InputError, match="resume is not understood"):
        og.train(graph(), og.nn.GCN(4, 8, 3), epochs=4, out=tmp_path / "own", resume="yes", progress=False)


def test_a_run_without_a_checkpoint_starts_from_the_beginning(
    npz: Path, tmp_path: Path, outgrow: Callable[..., Any]
) -> None:
    out = tmp_path / "run"
    whole = outgrow("train", npz, "--hidden", 8, "--epochs", 4, "--out", out, "--json").summary
    for path in (out / "checkpoint").iterdir():
        path.unlink()
    again = outgrow("train", "--out", out, "--resume", "--json")
    assert "has no checkpoint yet: it starts from the beginning" in again.err
    assert again.summary["loss"] == whole["loss"]
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 4
