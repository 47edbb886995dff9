"""The script for the first hour of a GPU runs all of its parts on a CPU, and says which one has failed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpu
import pytest
from record import ROOT

FAST = ("kernels", "full", "strategies")


def run(folder: Path, *parts: str) -> tuple[int, dict[str, Any]]:
    """Exit code, and the figures that were written."""
    out = folder / "gpu.json"
    command = [sys.executable, "benchmarks/gpu.py", "--dry", "--parts", ",".join(parts), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert out.exists(), done.stdout + done.stderr
    return done.returncode, json.loads(out.read_text())["parts"]


def check(folder: Path, *parts: str) -> None:
    code, found = run(folder, *parts)
    assert {name: part["exit_code"] for name, part in found.items()} == dict.fromkeys(parts, 0), found
    assert code == 0
    assert all(part["figures"] for name, part in found.items() if name not in ("kernels", "tests"))


@pytest.mark.slow
def test_the_fast_parts(tmp_path: Path) -> None:
    check(tmp_path, *FAST)


@pytest.mark.slow
def test_the_other_parts(tmp_path: Path) -> None:
    check(tmp_path, *(name for name in gpu.PARTS if name not in FAST))


def test_a_part_that_fails_does_not_end_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = gpu.Part("nothing", "", "-c raise(SystemExit(3))", 1)
    slow = gpu.Part("nothing", "", "-c __import__('time').sleep(60)", 0)
    fine = gpu.Part("something", "", "-c print(7)", 1)
    monkeypatch.setattr(gpu, "PARTS", {"broken": broken, "slow": slow, "fine": fine})
    monkeypatch.setattr(
        sys, "argv", ["gpu.py", "--dry", "--parts", "broken,slow,fine", "--out", str(tmp_path / "gpu.json")]
    )
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 1
    found = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert {name: part["exit_code"] for name, part in found.items()} == {"broken": 3, "slow": None, "fine": 0}
    assert "7" in found["fine"]["output"]
