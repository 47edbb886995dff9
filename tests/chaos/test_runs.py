"""Runs that are disturbed, as `runs.py` does it: a few that need no rights, and, being slow, all kinds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import runs
from faults.table import FAULTS
from workloads import STRATEGIES

from support import disk_folder

NEED_NOTHING = ["kill", "silent", "read-error", "file-limit"]


def disturb(tmp_path: Path, *words: str) -> list[dict[str, object]]:
    """What became of runs; none may be other than promised."""
    record = tmp_path / "chaos.json"
    code = runs.main([*words, "--folder", str(disk_folder() or tmp_path), "--json", str(record)])
    found = json.loads(record.read_text())["runs"]
    assert code == 0, [(row["fault"], row["strategy"], row["violations"], row.get("errors")) for row in found]
    return list(found)


@pytest.mark.timeout(1200)
def test_runs_that_are_disturbed(tmp_path: Path) -> None:
    found = disturb(tmp_path, "--runs", "4", "--strategies", "full", "--seed", "5", "--faults", *NEED_NOTHING)
    assert [row["fault"] for row in found] == NEED_NOTHING
    assert found[0]["outcome"] in ("resumed", "no checkpoint", "went on", "over")  # it may end before it is killed


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_fault(tmp_path: Path) -> None:
    found = disturb(tmp_path, "--runs", str(len(FAULTS)), "--strategies", "sampled", "--seed", "6", "--long-stops", "0")
    assert len(found) == len(FAULTS)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("fault", ["kill", "restart"])
def test_every_strategy(tmp_path: Path, fault: str) -> None:
    found = disturb(tmp_path, "--runs", str(len(STRATEGIES)), "--faults", fault, "--seed", "7")
    assert [row["strategy"] for row in found] == list(STRATEGIES)
