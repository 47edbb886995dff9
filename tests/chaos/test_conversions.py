"""Conversions that are killed, as `conversions.py` does it: a few, and, being slow, many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("conversions.py")


def kill_some(folder: Path, kills: int, seed: int) -> dict[str, object]:
    """What became of conversions in a process of their own, whose children are forks of it."""
    words = ["--kills", str(kills), "--seed", str(seed), "--folder", str(folder)]
    # Kernels with threads would be compiled anew in every fork.
    env = {**os.environ, "OUTGROW_KERNELS": "serial"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words], env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.stdout, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("kills", "seed"),
    [(6, 0), pytest.param(20, 1, marks=pytest.mark.slow), pytest.param(120, 2, marks=pytest.mark.slow)],
)
def test_a_killed_conversion_leaves_the_old_store_or_the_new_one(tmp_path: Path, kills: int, seed: int) -> None:
    found = kill_some(tmp_path, kills, seed)
    assert found["violations"] == []
    # Some end before the moment comes that was drawn for them.
    assert isinstance(found["killed"], int)
    assert found["killed"] >= kills // 2
