"""Optimizers, schedules and what else becomes of gradients: from the command line and from Python, in whole runs."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.app.conftest import Command

import outgrow as og

SMALL = ("--model", "gcn", "--hidden", 8, "--epochs", 4)
LOOP = (
    "optimizer=sgd", "momentum=0.9", "schedule=cosine", "warmup=1", "clip_grad_norm=1", "accumulate=2", "ema=0.9",
)  # fmt: skip
BATCHES = ("--batch-size", 32, "--fanout", "3,3")


def sets(*assignments: str) -> list[str]:
    return [word for each in assignments for word in ("--set", each)]


def test_from_the_command_line(outgrow: Command, npz: Path) -> None:
    done = outgrow("train", npz, *SMALL, *BATCHES, "--out", "run", "--json", "--set", *LOOP)
    assert done.code == 0, done.err
    assert "sgd lr 0.01 weight decay 0.01, momentum 0.9, schedule cosine warmup 1 per epoch" in done.err
    record = json.loads(Path("run/config.json").read_text())["train"]
    assert (record["optimizer"], record["optimizer_options"]) == ("sgd", {"momentum": 0.9})
    assert done.summary["train"] == record
    again = outgrow("train", "--out", "run", "--resume", "--epochs", 6)
    assert again.code == 2
    assert "another optimizer or schedule" in again.err  # the length of cosine is that of training
    more = outgrow("train", npz, *SMALL, "--out", "more", *sets("optimizer=SGD", "schedule=step", "step_size=2"))
    assert more.code == 0, more.err
    refused = outgrow("train", "--out", "more", "--resume", *sets("step_size=3"))
    assert refused.code == 2
    assert "cannot go on with another step_size" in refused.err
    assert outgrow("train", "--out", "more", "--resume", "--epochs", 6, *sets("step_size=2")).code == 0
    assert outgrow("predict", "more", "--out", "classes.npy").code == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("optimizer=sdg",), "sgd"),
        (("optimizer=sgd", "momentun=0.9"), "momentum"),
        (("momentum=0.9",), "momentum"),
        (("schedule=cosine", "warmup=9"), "longer than the training"),
        (("warmup=2",), "no schedule"),
        (("accumulate=2",), "more batches"),
        (("clip_grad_norm=0",), "clip_grad_norm"),
        (("ema=1",), "ema"),
        (("schedule=plateau", "eval=none"), "plateau"),
        (('param_groups={"layers.7.*": {"lr": 0.1}}',), "matches no parameter"),
    ],
)
def test_what_the_command_refuses(outgrow: Command, npz: Path, given: tuple[str, ...], message: str) -> None:
    done = outgrow("train", npz, *SMALL, "--out", "run", *sets(*given))
    assert done.code == 2
    assert message in done.err
    assert done.err.count("error:") == 1
    assert not Path("run").exists()


def test_an_option_of_the_model_comes_first(outgrow: Command, npz: Path) -> None:
    """A decoupled model and an exponential schedule both have a `gamma`."""
    given = sets("schedule=exponential", "gamma=0.2", 'schedule_options={"gamma": 0.8}')
    done = outgrow("train", npz, "--model", "decoupled", "--epochs", 1, "--out", "run", *given)
    assert done.code == 0, done.err
    record = json.loads(Path("run/config.json").read_text())
    assert record["model"]["options"]["gamma"] == 0.2
    assert record["train"]["schedule_options"] == {"gamma": 0.8}


@pytest.fixture
def graph(npz: Path) -> og.Graph:
    return og.load(npz)


def model_of(graph: og.Graph) -> Any:
    torch.manual_seed(0)
    return og.nn.GCN(graph.num_features, 8, graph.num_classes)


def make_sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


@pytest.mark.usefixtures("pooled")
def test_functions_reach_the_workers_and_a_run_goes_on_with_them(graph: og.Graph, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        "schedule": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
        "clip_grad_norm": 1.0,
        "progress": False,
    }
    straight = og.train(graph, model_of(graph), epochs=6, **options)
    out = tmp_path / "run"
    og.train(graph, model_of(graph), epochs=3, out=out, **options)
    run = og.train(graph, model_of(graph), epochs=6, workers=2, out=out, resume=True, **options)
    assert run.loss == pytest.approx(straight.loss, abs=1e-5)
    record = json.loads((out / "config.json").read_text())["train"]
    assert re.fullmatch(r".*test_training_loop\.test_functions.*<lambda>", record["optimizer"]["given_as"])
    with pytest.raises(og.InputError, match="another optimizer or schedule"):
        og.train(graph, model_of(graph), epochs=7, out=out, resume=True, **{**options, "optimizer": make_sgd})


def test_forms_in_python(graph: og.Graph) -> None:
    forms: list[dict[str, Any]] = [
        {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9},
        {"optimizer": torch.optim.SGD, "lr": 0.1, "momentum": 0.9},
        {"optimizer": functools.partial(torch.optim.SGD, momentum=0.9), "lr": 0.1},
        {"optimizer": make_sgd},
        {"config": og.TrainConfig(optimizer="sgd", lr=0.1, optimizer_options={"momentum": 0.9})},
    ]
    losses = [og.train(graph, model_of(graph), epochs=3, progress=False, **form).loss for form in forms]
    assert all(loss == losses[0] for loss in losses)


def test_what_python_refuses(graph: og.Graph, tmp_path: Path) -> None:
    model = model_of(graph)
    made = torch.optim.SGD(model.parameters(), lr=0.1)
    given: list[tuple[dict[str, Any], str]] = [
        ({"optimizer": made}, "exists already"),
        ({"schedule": torch.optim.lr_scheduler.StepLR(made, 2)}, "exists already"),
        ({"optimizer": make_sgd, "momentum": 0.9}, "momentum"),
        ({"accumulate": 2}, "more batches"),
    ]
    for options, message in given:
        with pytest.raises(og.InputError) as caught:
            og.train(graph, model, out=tmp_path / "run", progress=False, **options)
        assert message in str(caught.value)
        assert not (tmp_path / "run").exists()


def test_a_plan_takes_the_options_of_the_loop(outgrow: Command, npz: Path) -> None:
    done = outgrow("plan", npz, "--model", "gcn", *sets(*LOOP[:4], "clip_grad_norm=1", "ema=0.9"))
    assert done.code == 0, done.err
    assert outgrow("plan", npz, "--model", "gcn", *sets("momentum=0.9")).code == 2


@pytest.mark.slow
@pytest.mark.real_processes
def test_torchrun_takes_functions_and_callbacks(npz: Path, tmp_path: Path) -> None:
    """Each process has its own; what worker 0's callback holds is in its process."""
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import torch, outgrow as og

class History(og.Callback):
    losses = []
    def on_epoch(self, report):
        self.losses.append(report.loss)

graph = og.load({str(npz)!r})
torch.manual_seed(0)
model = og.nn.GCN(graph.num_features, 8, graph.num_classes)
options = dict(optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), clip_grad_norm=1.0)
run = og.train(graph, model, epochs=3, progress=False, callbacks=[History()], **options)
if run.summary["workers"] == 2 and History.losses:
    assert History.losses == run.loss
    print("losses", *run.loss)
"""
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("losses")]
    graph = og.load(npz)
    alone = og.train(graph, model_of(graph), epochs=3, optimizer=make_sgd, clip_grad_norm=1.0, progress=False)
    assert [float(word) for word in line.split()[1:]] == pytest.approx(alone.loss, abs=1e-5)
