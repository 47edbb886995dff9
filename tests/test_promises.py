"""Each broken promise is found by the tests of its kind. See promises.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mutants import ROOT
from outgrow.ops.kernel_cache import MODE_VARIABLE
from promises import MUTANTS, STARTUP, VARIABLE


@pytest.mark.slow
@pytest.mark.mutant
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(mutant: str, tmp_path: Path) -> None:
    settings = {**os.environ, "PYTEST_ADDOPTS": "", VARIABLE: mutant}
    if MUTANTS[mutant].test.startswith("tests/ops"):  # which are not run with serial kernels
        settings.pop(MODE_VARIABLE, None)
    if MUTANTS[mutant].in_programs:
        (tmp_path / "sitecustomize.py").write_text(STARTUP)
        settings["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT / "tests")])
    options = ["-q", "-x", "-m", "not slow and not mutant", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, MUTANTS[mutant].test],
        cwd=ROOT,
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )
    # 1: a test has failed; any other code says that none was run, or that pytest itself has.
    assert done.returncode == 1, done.stdout + done.stderr
    assert " failed" in done.stdout.splitlines()[-1], done.stdout
