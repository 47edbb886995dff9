"""`tensor` within a limit of memory, on the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Command

from outgrow.graph.builders.to_store import convert_to_store
from outgrow.graph.datasets import resolve_source

pytestmark = pytest.mark.real_processes

SHORT = ("--epochs", 3, "--hidden", 8, "--model", "gcn", "--seed", 1, "--strategy", "tensor")
MIB = 1 << 20


@pytest.mark.usefixtures("pooled")
def test_files_give_the_same_run(outgrow: Command, npz: Path, disk: Path) -> None:
    losses = []
    for files in ("nothing", "edges", "slices"):
        place = ("--set", f"on_disk={files}", "--set", f"scratch_dir={disk}", "--out", files)
        result = outgrow("train", npz, *SHORT, "--workers", 2, *place, "--json")
        assert result.code == 0, result.err
        losses.append(result.summary["loss"])
    assert losses[1] == losses[2] == pytest.approx(losses[0], abs=1e-5)
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--memory", "1MiB"), ("too small", "--memory")),
        (("--memory", "lots"), ("lots",)),
        (("--set", "on_disk=everything"), ("on_disk", "edges")),
        (("--set", "on_disk=edges", "--model", "gatv2"), ("GATv2Conv", "offload")),
        (("--set", "on_disk=edges", "--set", "scratch_dir=/dev/shm"), ("memory", "disk")),
    ],
)
def test_mistakes(outgrow: Command, npz: Path, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    result = outgrow("train", npz, *SHORT, *options, "--out", "run")
    assert result.code == 2
    assert all(word in result.err for word in ("needed:", "got:", "repair:", *words)), result.err
    assert not Path("run").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_keeps_to_its_memory(tmp_path: Path, disk: Path) -> None:
    store, found = tmp_path / "store", resolve_source("reddit@0.1")
    convert_to_store(found.source, store, undirected=found.undirected)
    args = (store, "--model", "decoupled", "--hidden", 64, "--epochs", 2, "--strategy", "tensor", "--workers", 2)
    args = (*args, "--set", f"scratch_dir={disk}", "--json")
    refused = alone(*args, "--memory", "1MiB", "--out", tmp_path / "refused")
    assert refused.returncode == 2
    (least,) = map(int, re.findall(r"needed: +([\d,]+) MiB", refused.stderr.replace(",", "")))
    whole = summary_of(alone(*args, "--out", tmp_path / "whole"))
    assert whole["peak_bytes"]["device"] > least * MIB
    edges = least + (whole["peak_bytes"]["device"] // MIB - least) * 9 // 10
    for memory, level in ((least, "rows"), (edges, "edges")):
        summary = summary_of(alone(*args, "--memory", f"{memory}MiB", "--out", tmp_path / level))
        assert summary["found"]["in_files"] == level
        assert summary["peak_bytes"]["device"] <= memory * MIB
        assert summary["loss"] == pytest.approx(whole["loss"], rel=1e-5)


def alone(*args: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "outgrow", "train", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def summary_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
