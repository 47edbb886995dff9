"""What a process that trains loads: no library that it does not use, and kernels that are those it would compile."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.app.conftest import planted

COMPILER = ("torch._dynamo", "torch._inductor")
READERS = ("pyarrow", "pandas", "networkx", "torch_geometric", "ogb", "pymetis")
COMMAND_LINE = ("typer", "click", "rich")
METRICS = ("torchmetrics", "lightning_utilities")
CURVES = ("torch.utils.tensorboard", "tensorboard")

LIBRARY = """
import outgrow as og

graph = og.load("planted.npz")
model = og.nn.GCN(graph.num_features, 8, graph.num_classes)
for optimizer in ("adam", "adamw"):
    assert len(og.train(graph, model, epochs=1, optimizer=optimizer).loss) == 1
"""
COMMAND = """
import sys
from outgrow.__main__ import main

sys.argv = ["outgrow", {words}]
try:
    main()
except SystemExit as stop:
    assert not stop.code
"""
TRAIN = COMMAND.format(
    words='"train", "planted.npz", "--model", "gcn", "--hidden", "8", "--epochs", "1", "--out", "run"',
)
HELP = COMMAND.format(words='"--help"')
REPORT = """
import json
import sys

print(json.dumps(list(sys.modules)))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a small graph."""
    np.savez(tmp_path / "planted.npz", **planted())
    return tmp_path


def loaded(code: str, folder: Path) -> set[str]:
    """Names of the modules that a process has when it is done with ``code``."""
    done = subprocess.run(
        [sys.executable, "-c", code + REPORT], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_training_from_python(folder: Path) -> None:
    found = loaded(LIBRARY, folder)
    assert {"torch", "numba", "outgrow.training.trainer"} <= found
    unused = found & {*COMPILER, *READERS, *COMMAND_LINE, *CURVES, *METRICS}
    assert not unused


def test_training_from_the_command_line_with_checkpoints_and_curves(folder: Path) -> None:
    found = loaded(TRAIN, folder)
    assert {"outgrow.training.trainer", "typer", "tensorboard"} <= found
    assert list((folder / "run" / "checkpoint").iterdir())
    unused = found & {*COMPILER, *READERS, *METRICS}
    assert not unused


def test_help_loads_nothing_large(folder: Path) -> None:
    unused = loaded(HELP, folder) & {"numpy", "scipy", "torch", "numba", *READERS}
    assert not unused


FUSED = """
import hashlib, torch
from outgrow.ops.cross_entropy import cross_entropy
from outgrow.ops.epilogue import DropoutSpec, LayerNormSpec, epilogue
torch.manual_seed(0)
x = torch.randn(3000, 47, requires_grad=True)
weight, shift = torch.rand(47, requires_grad=True), torch.randn(47, requires_grad=True)
drop = DropoutSpec(torch.arange(3000), 5, 0.3)
y = epilogue(x, bias_F=shift, norm=LayerNormSpec(weight, shift, 1e-5), activation=torch.nn.functional.elu, drop=drop)
loss = cross_entropy(y, torch.arange(3000) % 47)
found = [y.detach(), loss.detach(), *torch.autograd.grad(loss, [x, weight, shift])]
print(hashlib.sha256(b"".join(each.numpy().tobytes() for each in found)).hexdigest())
"""


@pytest.mark.slow
def test_kernels_give_the_same_bits_when_they_are_compiled_and_when_they_are_loaded(tmp_path: Path) -> None:
    settings = {**os.environ, "OUTGROW_KERNEL_CACHE": str(tmp_path)}
    runs = [
        subprocess.run([sys.executable, "-c", FUSED], env=settings, stdout=subprocess.PIPE, check=True) for _ in "12"
    ]
    assert list(tmp_path.rglob("*.nbc"))
    assert runs[0].stdout == runs[1].stdout
