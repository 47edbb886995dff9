"""A process that trains loads no library that it does not use: each costs a start tenths of seconds, or whole ones."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.app.conftest import planted

COMPILER = ("torch._dynamo", "torch._inductor")
READERS = ("pyarrow", "pandas", "networkx", "torch_geometric", "ogb", "pymetis")
COMMAND_LINE = ("typer", "click", "rich")
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

sys.argv = ["outgrow", "train", "planted.npz", "--model", "gcn", "--hidden", "8", "--epochs", "1", "--out", "run"]
try:
    main()
except SystemExit as stop:
    assert not stop.code
"""
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
    unused = found & {*COMPILER, *READERS, *COMMAND_LINE, *CURVES}
    assert not unused


def test_training_from_the_command_line_with_checkpoints_and_curves(folder: Path) -> None:
    found = loaded(COMMAND, folder)
    assert {"outgrow.training.trainer", "typer", "tensorboard"} <= found
    assert list((folder / "run" / "checkpoint").iterdir())
    unused = found & {*COMPILER, *READERS}
    assert not unused
