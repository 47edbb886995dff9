"""Training in a group that torchrun has started: by the command, by a script, and again after a worker has died."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.app.conftest import Command

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SCRIPT = """
import sys, torch
import outgrow as og
graph = og.load(sys.argv[1])
curves = []
for out in ("first", "second"):
    torch.manual_seed(0)
    model = og.nn.GCN(graph.num_features, 8, graph.num_classes)
    run = og.train(graph, model, epochs=3, out=sys.argv[2] + out)
    assert (run.logits is None) == (run.directory is None)
    curves.append(run.loss)
assert curves[0] == curves[1]
"""

OWN_GROUP = """
import sys, torch, torch.distributed as dist
import outgrow as og
graph = og.load(sys.argv[1])
if len(sys.argv) == 3:
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=int(sys.argv[4]), world_size=2)
curves = []
for _ in range(2):
    torch.manual_seed(dist.get_rank())
    model = og.nn.GCN(graph.num_features, 8, graph.num_classes)
    run = og.train(graph, model, epochs=3, progress=False)
    assert run.summary["workers"] == 2
    curves.append(run.loss)
assert curves[0] == curves[1]
ones = torch.ones(1)
dist.all_reduce(ones)
assert ones.item() == 2, "the group of the program is as it was"
with open(f"{sys.argv[2]}{dist.get_rank()}", "w") as file:
    file.write(repr(curves[0]))
dist.destroy_process_group()
"""


def torchrun(*words: object) -> subprocess.Popen[str]:
    settings = {name: value for name, value in os.environ.items() if not name.endswith("NUM_THREADS")}
    command = [*TORCHRUN, *map(str, words)]
    return subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str], seconds: float = 120) -> tuple[str, str]:
    try:
        return process.communicate(timeout=seconds)
    finally:
        process.kill()


def summary_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def test_a_script_may_train_twice(npz: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = torchrun(script, npz, f"{tmp_path}/")
    _, err = ended(process)
    assert process.returncode == 0, err
    found = summary_of(tmp_path / "first")
    assert found["workers"] == 2
    assert found["ledger"]["peer"]["activations"] > 0
    assert (tmp_path / "second" / "checkpoint").is_dir()


@pytest.mark.parametrize("launched", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_group_that_the_program_has_is_joined(launched: bool, npz: Path, tmp_path: Path) -> None:
    """Of torchrun, or of processes that only the program knows."""
    script, out = tmp_path / "script.py", tmp_path / "curve-"
    script.write_text(OWN_GROUP)
    if launched:
        started = [torchrun(script, npz, out)]
    else:
        command = [sys.executable, str(script), str(npz), str(out), str(tmp_path / "store")]
        started = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank in range(2)
        ]
    for process in started:
        _, err = ended(process)
        assert process.returncode == 0, err
    first, second = (Path(f"{out}{rank}").read_text() for rank in range(2))
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize("checkpoints", [1000, 5])
def test_a_group_that_is_started_again_gives_the_same_curve(
    checkpoints: int, outgrow: Command, npz: Path, tmp_path: Path
) -> None:
    """Whether it died before its first checkpoint, and so begins again, or after it, and so goes on."""
    options = ("--model", "gcn", "--hidden", 8, "--epochs", 150, "--set", f"checkpoint_every={checkpoints}")
    run = tmp_path / "run"
    process = torchrun("--max-restarts", 1, "-m", "outgrow", "train", npz, *options, "--out", run, "--json")
    lines = run / "metrics.jsonl"
    while not lines.exists() or len(lines.read_text().splitlines()) < 12:
        assert process.poll() is None
        time.sleep(0.02)
    workers = [child for child in psutil.Process(process.pid).children() if "outgrow" in child.cmdline()]
    workers[-1].send_signal(signal.SIGKILL)
    out, err = ended(process)
    assert process.returncode == 0, err
    found = summary_of(run)
    assert json.loads(out.splitlines()[-1]) == found
    assert len(lines.read_text().splitlines()) == 150
    whole = outgrow("train", npz, *options, "--workers", 2, "--out", "whole", "--json").summary
    assert found["loss"] == whole["loss"]


CAUGHT = """
import sys
import outgrow as og
graph = og.load(sys.argv[1])
for out in (sys.argv[2], None):
    try:
        og.train(graph, og.nn.GCN(graph.num_features, 8, graph.num_classes), epochs=3, out=out, progress=False)
    except og.InputError:
        print("caught", flush=True)
"""


@pytest.mark.slow
def test_a_process_whose_training_has_failed_does_not_train_again(npz: Path, tmp_path: Path) -> None:
    """Worker 0 alone is refused, and goes on with another training, in which the other is not."""
    used = tmp_path / "used"
    used.mkdir()
    (used / "file").touch()
    (tmp_path / "script.py").write_text(CAUGHT)
    process = torchrun(tmp_path / "script.py", npz, used)
    out, err = ended(process, 60)
    assert process.returncode == 1
    assert out.splitlines() == ["caught"]
    assert "this process cannot train again" in err


@pytest.mark.slow
@pytest.mark.parametrize("by_script", [False, True])
def test_a_restart_does_not_go_on_with_the_run_of_another_job(
    by_script: bool, outgrow: Command, npz: Path, tmp_path: Path
) -> None:
    """The first start is refused, since the directory is in use; torchrun starts again what is refused."""
    outgrow("train", npz, "--model", "gcn", "--hidden", 8, "--epochs", 3, "--out", tmp_path / "first", "--json")
    before = {path: path.read_bytes() for path in (tmp_path / "first").rglob("*") if path.is_file()}
    if by_script:
        (tmp_path / "script.py").write_text(SCRIPT)
        process = torchrun("--max-restarts", 1, tmp_path / "script.py", npz, f"{tmp_path}/")
    else:
        options = ("--model", "gcn", "--hidden", 8, "--epochs", 5, "--out", tmp_path / "first")
        process = torchrun("--max-restarts", 1, "-m", "outgrow", "train", npz, *options)
    _, err = ended(process)
    assert process.returncode == 1
    assert "is in use" in err
    assert {path: path.read_bytes() for path in (tmp_path / "first").rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_another_number_of_workers_than_torchrun_has_started(npz: Path, tmp_path: Path) -> None:
    process = torchrun("-m", "outgrow", "train", npz, "--workers", 3, "--out", tmp_path / "run")
    _, err = ended(process)
    assert process.returncode == 1
    assert "torchrun has started another number of workers" in err
    assert "leave the number of workers out" in err
    assert not (tmp_path / "run").exists()
