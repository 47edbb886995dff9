"""What links are estimated to hold is what runs held, within 15 percent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outgrow.app.plan.question import PlanRequest, answer_request

pytestmark = pytest.mark.real_processes

EPOCHS = 3
SHARED = {"link_loss": "softmax", "negative_sampling": "shared", "negatives": 500}
BATCHES = {"batch_size": 4096, "fanout": "10,10", "hidden": 64, "ranking_candidates": 200}
CASES: dict[str, tuple[str, str, int, str, dict[str, Any]]] = {
    "whole graph": ("products@0.02", "sage", 1, "full", {"hidden": 64}),
    "whole graph of two": ("products@0.02", "sage", 2, "full", {"hidden": 64}),
    "slices": ("products@0.02", "sage", 2, "tensor", {"hidden": 64}),
    "steps, candidates in common": ("products@0.02", "sage", 1, "full", {"hidden": 64, "link_steps": 4, **SHARED}),
    "batches": ("arxiv@0.3", "sage", 1, "sampled", {**BATCHES, **SHARED}),
    "batches of two": ("arxiv@0.3", "sage", 2, "sampled", {**BATCHES, **SHARED}),
    "split": ("arxiv@0.3", "sage", 2, "split", {**BATCHES, **SHARED}),
    "relations": ("wordnet", "gcn", 2, "full", {"hidden": 64}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_peaks(case: str, tmp_path: Path) -> None:
    graph, model, workers, strategy, options = CASES[case]
    settings = {**options, "epochs": EPOCHS, "eval_every": EPOCHS, "seed": 0}
    words = [f"--set={name}={value}" for name, value in settings.items()]
    command = f"train {graph} --task links --model {model} --workers {workers} --strategy {strategy}"
    done = subprocess.run(
        [sys.executable, "-m", "outgrow", *command.split(), "--json", "--out", str(tmp_path / "run"), *words],
        capture_output=True,
        text=True,
        check=True,
    )
    held = json.loads(done.stdout.splitlines()[-1])["peak_bytes"]["device"]
    asked = PlanRequest(
        graph=graph, model=model, options={**settings, "decoder": "auto"}, workers=workers, hardware="2-core-cpu"
    )
    [found] = [each for each in answer_request(asked)[0].candidates if each.name == strategy]
    assert found.estimate is not None
    assert found.estimate.peak_bytes == pytest.approx(held, rel=0.15)
