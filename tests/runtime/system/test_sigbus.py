"""A process that reads a mapped file which has become shorter says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

READ = """
import os, sys
import numpy as np
from outgrow.runtime.system.sigbus import explain_bus_errors

def read(path):
    rows = np.memmap(path, mode="r")
    os.truncate(path, 10)
    return rows.sum()

with explain_bus_errors():
    pass
if "inside" in sys.argv:
    with explain_bus_errors():
        read(sys.argv[1])
else:
    read(sys.argv[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the handler is for Linux")
@pytest.mark.parametrize(("where", "code"), [("inside", 2), ("outside", -7)])
def test_what_it_says(tmp_path: Path, where: str, code: int) -> None:
    path = tmp_path / "rows"
    path.write_bytes(bytes(100_000))
    done = subprocess.run([sys.executable, "-c", READ, str(path), where], capture_output=True, text=True, check=False)
    assert done.returncode == code
    said = done.stderr.splitlines()
    if where == "inside":
        assert said[0] == "error: a file that is mapped into memory cannot be read any more (SIGBUS)"
        assert [line.split(":")[0].strip() for line in said[1:]] == ["needed", "got", "repair"]
    else:
        assert said == []
