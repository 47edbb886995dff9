"""What is estimated to be held is what runs held, within 15 percent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outgrow.app.plan.question import PlanRequest, answer_request

pytestmark = pytest.mark.real_processes

PLAIN = {"epochs": 3, "seed": 0}
CASES: dict[str, tuple[str, str, int, str, dict[str, Any]]] = {
    "gcn": ("products@0.02", "gcn", 1, "full", {"hidden": 64, "layers": 3}),
    "wide gcn": ("products@0.02", "gcn", 1, "full", {"hidden": 256, "layers": 3}),
    "sage": ("products@0.02", "sage", 1, "full", {"hidden": 256}),
    "gat": ("products@0.02", "gat", 1, "full", {"hidden": 64}),
    "two workers": ("products@0.05", "sage", 2, "full", {"hidden": 64, "layers": 3}),
    "narrow rows of two": ("products@0.05", "sage", 2, "full", {"hidden": 64}),
    "wide rows of two": ("products@0.05", "gcn", 2, "full", {"hidden": 256, "layers": 3}),
    "dense graph": ("reddit@0.1", "gcn", 2, "full", {"hidden": 256}),
    "slices": ("reddit@0.1", "gcn", 2, "tensor", {"hidden": 256}),
    "sparse features": ("wordnet", "sage", 1, "full", {}),
    "batches": ("products@0.05", "sage", 1, "sampled", {"hidden": 256, "batch_size": 1024, "fanout": "10,10"}),
    "batches of two": ("products@0.05", "sage", 2, "sampled", {"hidden": 64, "batch_size": 4096, "fanout": "10,10"}),
    "split": ("products@0.05", "sage", 2, "split", {"hidden": 64, "batch_size": 4096, "fanout": "10,10"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_peaks(case: str, tmp_path: Path) -> None:
    graph, model, workers, strategy, options = CASES[case]
    words = [f"--{name.replace('_', '-')}={value}" for name, value in {**options, **PLAIN}.items()]
    command = f"train {graph} --model {model} --workers {workers} --strategy {strategy} --json --out {tmp_path / 'run'}"
    done = subprocess.run(
        [sys.executable, "-m", "outgrow", *command.split(), *words], capture_output=True, text=True, check=True
    )
    held = json.loads(done.stdout.splitlines()[-1])["peak_bytes"]["device"]
    asked = PlanRequest(
        graph=graph,
        model=model,
        options=options,
        workers=workers,
        hardware="2-core-cpu",
    )
    [found] = [each for each in answer_request(asked)[0].candidates if each.name == strategy]
    assert found.estimate is not None
    assert found.estimate.peak_bytes == pytest.approx(held, rel=0.15)
