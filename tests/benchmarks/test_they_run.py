"""Benchmarks of Outgrow alone run from end to end, on the smallest graphs: they use the library as nobody else does."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import rounds

BENCHMARKS = Path(rounds.__file__).parent
FULL_GRAPH = ("--models", "gcn", "--scale", 8, "--rounds", 1, "--warmup", 1, "--epochs", 1)
ONE_EPOCH = ("--rounds", 1, "--warmup", 1, "--count", 1, "--trial", 1)
ONE_ROUND = ("--layers", 2, "--rounds", 1, "--epochs", 1, "--chunks", 4)
COMMANDS: dict[str, tuple[object, ...]] = {
    "full_graph.py": ("--rivals", "outgrow,outgrow-recompute", *FULL_GRAPH),
    "real_graphs.py": ("--rivals", "outgrow", "--graphs", "products@0.002", *ONE_EPOCH[:4], "--epochs", 1),
    "growth.py": ("--shares", "0.001,0.002", "--workers", "1,2", "--strategies", "full,sampled", "--epochs", 2),
    "workers.py": (*FULL_GRAPH, "--workers", "1,2", "--misset-epochs", 1),
    "minibatch.py": ("--only", "outgrow", "--graph", "products@0.002", *ONE_EPOCH),
    "sampling.py": ("--only", "outgrow", "--scale", 8, "--rounds", 1, "--count", 2, "--trial", 1, "--fanouts", "2-2"),
    "samplers.py": ("--graphs", "products@0.002", "--epochs", 1, "--seeds", 1, "--batch-size", 64),
    "callbacks.py": ("--graphs", "products@0.002", "--epochs", 2),
    "roofline.py": ("--model", "gat", "--scale", 8, "--epochs", 2),
    "batch_products.py": ("--graph", "products@0.002", "--batch-size", 64, "--fanout", 2, 2, "--hidden", 8),
    "startup.py": ("--models", "gcn", "--rounds", 1),
    "accumulation.py": ("--widths", 8, "--table-mib", 1, "--rounds", 1),
    "offload.py": ("ablation", "scaling", "--graph", "products@0.002", "--workers", 2, *ONE_ROUND),
    "orchestrate.py": ("steps", "--graphs", "products@0.002", "--batch-sizes", 16, "--epochs", 2),
    "layer_sizes.py": ("--graphs", "products@0.002", "--fanouts", "2,2", "--batch-size", 64),
    "breakdown.py": ("--graphs", "products@0.002", "--fanout", 2, 2, "--batch-size", 64, "--rounds", 1, "--epochs", 1),
    "convergence.py": ("--graphs", "products@0.002", "--seeds", 1, "--epochs", 2, "--hidden", 8),
    "narrow_sums.py": ("--graph", "products@0.002", "--columns", 8, "--rounds", 1),
}


def failures(found: Any) -> list[Any]:
    """Whatever a record calls failed."""
    if isinstance(found, dict):
        here = [found["failed"]] if found.get("failed") else []
        return here + [each for value in found.values() for each in failures(value)]
    return [each for value in found for each in failures(value)] if isinstance(found, list) else []


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_it_runs(name: str, tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    command = [sys.executable, str(BENCHMARKS / name), *map(str, COMMANDS[name]), "--out", str(out)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert failures(json.loads(out.read_text())) == []
