"""A worker is killed within an epoch: the run goes on from the last saved step, to the losses of one that was not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.app.conftest import Command

BATCHES = ("--hidden", "8", "--model", "sage", "--batch-size", "10", "--fanout", "3,3")
pytestmark = pytest.mark.usefixtures("launched")
SHORT = ("--workers", "2", "--epochs", "3")
SAVED = ("--set", "checkpoint_steps=2", "--set", "checkpoint_every=1000")


def workers_of(run: int) -> list[psutil.Process]:
    """The worker processes of a run."""
    below = psutil.Process(run).children(recursive=True)
    return [process for process in below if "outgrow.runtime.distributed.worker_main" in process.cmdline()]


def killed_after(saved: str, args: list[str], out: Path) -> int:
    """The exit code of a run whose second worker is killed once a checkpoint of that name was written."""
    command = [sys.executable, "-m", "outgrow", *args, "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 90
        while not list(out.glob(f"checkpoint/{saved}")):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.002)
        workers_of(process.pid)[-1].kill()
    return process.returncode


@pytest.mark.parametrize(
    "strategy",
    [
        ("split",),
        pytest.param(("migrate", "--set", "move_model=true", "--set", "merge=false"), marks=pytest.mark.slow),
        pytest.param(("orchestrate", "--set", "super_batch=1", "--set", "hot_ratio=0.5"), marks=pytest.mark.slow),
    ],
)
def test_the_losses_are_the_same(outgrow: Command, npz: Path, tmp_path: Path, strategy: tuple[str, ...]) -> None:
    args = ["train", str(npz), *BATCHES, *SHORT, *SAVED, "--strategy", *strategy]
    whole = outgrow(*args, "--out", "whole", "--json").summary
    out = tmp_path / "killed"
    assert killed_after("epoch-00000001-step-*.pt", args, out) == 1
    assert not (out / "summary.json").exists()
    newest = max(path.name for path in (out / "checkpoint").iterdir())
    assert "-step-" in newest
    resumed = outgrow("train", "--out", out, "--resume", "--json").summary
    assert resumed["loss"] == whole["loss"]
    assert resumed["test_accuracy"] == whole["test_accuracy"]
