"""``outgrow warm``: afterwards a run compiles nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.app.conftest import Command, planted

from outgrow.ops.compile_processes import NUMBER_VARIABLE
from outgrow.ops.kernel_cache import MODE_VARIABLE
from outgrow.ops.kernel_folder import FOLDER_VARIABLE

OPTIONS = ("--model", "gcn", "--hidden", "64")


def call(folder: Path, mode: str, *words: str) -> tuple[Any, str]:
    """What ``outgrow WORDS --json`` printed last, and what it told; kernels are kept in the folder."""
    settings = {name: value for name, value in os.environ.items() if name != NUMBER_VARIABLE}
    settings |= {MODE_VARIABLE: mode, FOLDER_VARIABLE: str(folder / "kernels"), "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "outgrow", *words, "--json"],
        cwd=folder,
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def check_warm(folder: Path, nodes: int, mode: str) -> str:
    """Warm, train, warm; return what the first said."""
    np.savez(folder / "planted.npz", **planted(nodes))
    first, told = call(folder, mode, "warm", "planted.npz", *OPTIONS)
    assert first["compiled"] > 5
    assert first["found"] == 0
    assert first["folder"] == str(folder / "kernels")
    assert sorted(each.name for each in folder.iterdir()) == ["kernels", "planted.npz"]
    trained, _ = call(folder, mode, "train", "planted.npz", *OPTIONS, "--epochs", "3", "--out", "run")
    assert trained["compile_seconds"] == 0
    again, _ = call(folder, mode, "warm", "planted.npz", *OPTIONS)
    assert again["compiled"] == 0
    assert 5 < again["found"] <= first["compiled"]
    return told


@pytest.mark.real_processes
def test_a_run_compiles_nothing_after_it(tmp_path: Path) -> None:
    told = check_warm(tmp_path, 240, "serial")
    assert "kernels compiled in" in told
    assert "compiling kernel 1 of" not in told


@pytest.mark.slow
@pytest.mark.real_processes
@pytest.mark.skipif(os.name != "posix" or (os.cpu_count() or 1) < 2, reason="needs another process on another core")
def test_the_forms_for_all_threads_are_compiled_by_other_processes(tmp_path: Path) -> None:
    assert "compiling kernel 2 of" in check_warm(tmp_path, 20_000, "auto")


def test_what_cannot_be_trained_is_refused(outgrow: Command, npz: Path) -> None:
    for words in (("no-such-graph",), (npz, "--model", "no-such"), (npz, "--task", "edges")):
        result = outgrow("warm", *words)
        assert result.code == 2
        assert "needed:" in result.err
