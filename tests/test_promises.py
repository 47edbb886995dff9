"""Each broken promise is found by the tests of its kind. See promises.py."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mutants import ROOT
from promises import MUTANTS, VARIABLE


@pytest.mark.mutant
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(mutant: str) -> None:
    options = ["-q", "-x", "-m", "not slow and not mutant", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, MUTANTS[mutant].test],
        cwd=ROOT,
        env={**os.environ, "PYTEST_ADDOPTS": "", VARIABLE: mutant},
        capture_output=True,
        text=True,
        check=False,
    )
    # 1: a test has failed; any other code says that none was run, or that pytest itself has.
    assert done.returncode == 1, done.stdout + done.stderr
    assert " failed" in done.stdout.splitlines()[-1], done.stdout
