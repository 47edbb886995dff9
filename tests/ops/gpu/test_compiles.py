"""The compiler takes every kernel: it refuses some of what the interpreter runs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parents[1]
TWINS = TESTS.parent / "src" / "outgrow" / "ops" / "gpu"


def kernels() -> set[str]:
    """The kernels of the twins, as ``module.name``."""
    trees = {path.stem: ast.parse(path.read_text("utf-8")) for path in TWINS.glob("*.py")}
    return {
        f"{module}.{node.name}"
        for module, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and "triton_kernel" in [ast.unparse(mark) for mark in node.decorator_list]
    }


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["80", "90", "100"])
def test_every_kernel(capability: str, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="the twins need triton")
    paths = os.pathsep.join([str(TESTS), str(TESTS / "nn"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(HERE / "compile_kernels.py"), capability],
        env={**os.environ, "PYTHONPATH": paths, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == kernels()
    assert len(kernels()) > 10
