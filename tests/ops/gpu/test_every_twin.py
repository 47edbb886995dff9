"""Every function that sends CUDA tensors to its twin has one, which takes the same arguments."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

OPS = Path(__file__).parents[3] / "src" / "outgrow" / "ops"


def functions(path: Path) -> dict[str, ast.FunctionDef]:
    """The functions of a module."""
    tree = ast.parse(path.read_text("utf-8")) if path.exists() else ast.Module([], [])
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def twinned(path: Path) -> dict[str, ast.FunctionDef]:
    """The functions of a module that are decorated with ``gpu_dispatch``."""
    return {
        name: node
        for name, node in functions(path).items()
        if "gpu_dispatch" in [ast.unparse(mark) for mark in node.decorator_list]
    }


MODULES = [path for path in sorted(OPS.rglob("*.py")) if path.parent.name != "gpu" and twinned(path)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_twin(path: Path) -> None:
    twins = functions(OPS / "gpu" / path.name)
    assert {name: ast.unparse(node.args) for name, node in twinned(path).items()} == {
        name: ast.unparse(twins[name].args) for name in twinned(path) if name in twins
    }


def test_there_are_twins() -> None:
    assert len(MODULES) > 5


def test_no_two_have_the_same_twin() -> None:
    """A twin is found by the last part of a module's name."""
    assert len({path.name for path in MODULES}) == len(MODULES)
