"""Tests can be collected on every machine, and draw the same numbers on each: see seeding.py."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parent
UNSEEDED = ("numpy.random.default_rng", "numpy.random.RandomState", "random.Random")
OPTIONAL = ("triton", "outgrow.ops.gpu")
LOSSES = ("CrossEntropyLoss", "BCEWithLogitsLoss", "MSELoss", "L1Loss", "HuberLoss")
WITHOUT_PARAMETERS = ("Model", "Layer", "NodeClassification", "MultiLabel", *LOSSES)
"""Modules of ours that have none but those they are given, and losses of torch, which have none."""


def imported(tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                first = name.name.partition(".")[0]
                found[name.asname or first] = name.name if name.asname else first
        elif isinstance(node, ast.ImportFrom):
            found |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    return found


def calls(node: ast.AST, home: dict[str, str], *, at_import: bool = False) -> Iterator[tuple[str, ast.Call]]:
    """Every call and the full name of what is called.

    With ``at_import`` only those that are made when the module is imported, and not by ``with apart(...):``.
    """
    if isinstance(node, ast.Call):
        first, dot, rest = ast.unparse(node.func).partition(".")
        yield home.get(first, "?") + dot + rest, node
    if at_import and (isinstance(node, ast.Lambda) or _is_apart(node)):
        return
    later = at_import and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for name, value in ast.iter_fields(node):
        if later and name == "body":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from calls(child, home, at_import=at_import)


def _is_apart(node: ast.AST) -> bool:
    return isinstance(node, ast.With) and ast.unparse(node.items[0].context_expr).startswith("apart(")


def draws(name: str) -> bool:
    """Whether what goes by a name makes a module of torch: a class, or a function of `outgrow.nn` in capitals."""
    module, _, last = name.rpartition(".")
    if not within(name, "torch.nn", "outgrow.nn") or last in WITHOUT_PARAMETERS:
        return False
    found = getattr(importlib.import_module(module), last)
    return issubclass(found, torch.nn.Module) if isinstance(found, type) else last[0].isupper()


def within(name: str, *packages: str) -> bool:
    """Whether a dotted name is one of the packages or lies in one."""
    return any(f"{name}.".startswith(f"{each}.") for each in packages)


def unseeded(tree: ast.Module) -> list[str]:
    """Generators without a seed."""
    found = []
    seeded = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "manual_seed" and isinstance(node.value, ast.Call)
    }
    for name, call in calls(tree, imported(tree)):
        without = not call.args and not call.keywords
        if (name in UNSEEDED and without) or (name == "torch.Generator" and id(call) not in seeded):
            found.append(f"line {call.lineno}: {name}() has no seed")
    return found


def made_at_import(tree: ast.Module) -> list[str]:
    """Modules of torch that are made, and draw their parameters, before a test can seed them."""
    made = calls(tree, imported(tree), at_import=True)
    return [f"line {call.lineno}: {name} is made at import" for name, call in made if draws(name)]


def optional_at_import(tree: ast.Module) -> list[str]:
    """Packages that a machine may lack, imported by the module itself."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names = [module + name.name for name in node.names]
            found += [name for name in names if within(name, *OPTIONAL)]
    return [f"{name} may be missing" for name in found]


CHECKS = (unseeded, made_at_import, optional_at_import)
SCRIPTS = ("ops/gpu/compile_kernels.py",)
"""Run by a test that needs what they do, and not collected."""


def test_every_file_of_the_tests_can_be_repeated() -> None:
    files = {file.relative_to(TESTS).as_posix(): file for file in sorted(TESTS.rglob("*.py"))}
    assert len(files) > 100
    trees = {path: ast.parse(file.read_text("utf-8")) for path, file in files.items() if path not in SCRIPTS}
    found = {path: [each for look in CHECKS for each in look(tree)] for path, tree in trees.items()}
    assert not {path: what for path, what in found.items() if what}


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\ndef f():\n    return np.random.default_rng()",
        "from numpy.random import default_rng\ndef f():\n    return default_rng()",
        "import random\ndef f():\n    return random.Random()",
        "import torch\ndef f():\n    generator = torch.Generator()",
        "from torch import nn\nLAYER = nn.Linear(3, 4)",
        "import pytest\nfrom outgrow.nn import GCN\n@pytest.mark.parametrize('x', [GCN(1, 2, 3)])\ndef test(x): ...",
        "from outgrow.nn import GCNConv\ndef f(x=GCNConv(3, 4)): ...",
        "import torch\nclass A:\n    rows = {1: torch.nn.Embedding(3, 4)}",
        "import triton",
        "import triton.language as tl",
        "from outgrow.ops.gpu import launch",
        "from outgrow.ops import gpu",
        "from outgrow.ops.gpu.launch import SEGMENT",
    ],
)
def test_what_cannot_be_repeated_is_found(source: str) -> None:
    assert sum(len(look(ast.parse(source))) for look in CHECKS) == 1


def test_what_can_is_not() -> None:
    source = """
import random
import numpy as np
import torch
from outgrow.nn import GCN, Epilogue
from torch import nn

RANDOM, OTHER = np.random.default_rng(3), random.Random(x)
GENERATOR = torch.Generator(device="cpu").manual_seed(3)
MAKE = {"gcn": lambda: GCN(1, 2, 3), "finish": Epilogue(activation=nn.functional.elu)}
def f(seed=nn.functional.relu):
    import triton
    from outgrow.ops.gpu import launch
    return nn.Linear(3, 4)
"""
    assert not [each for look in CHECKS for each in look(ast.parse(source))]


SUITE = {
    "test_at_import.py": "import torch\nX = torch.rand(3)\ndef test_it(): ...",
    "test_in_parameters.py": """
import numpy, pytest
@pytest.mark.parametrize("x", [numpy.random.rand()])
def test(x): ...
""",
    "test_well.py": """
import random
import numpy, pytest, torch
DRAWS = {"random": random.random, "numpy": numpy.random.rand, "torch": lambda: torch.rand(()).item()}
@pytest.fixture(scope="module", params=[1, 2])
def shared(request):
    return [draw() for draw in DRAWS.values()]
@pytest.mark.parametrize("count", [1, 2])
def test_well(shared, count):
    print("drawn", *shared, *(draw() for draw in DRAWS.values()))
""",
}


def suite(folder: Path, *options: str) -> str:
    """What pytest says of `SUITE`."""
    for name, source in SUITE.items():
        (folder / name).write_text(source)
    settings = {**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "seeding", "-p", "no:cacheprovider", "-sq", *options]
    return subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False).stdout


def test_a_module_that_draws_cannot_be_collected(tmp_path: Path) -> None:
    said = suite(tmp_path, "--collect-only")
    assert "test_at_import.py draws from torch when it is imported" in said
    assert "test_in_parameters.py draws from numpy.random when it is imported" in said
    assert "test_well.py draws" not in said


def test_a_test_draws_the_same_whatever_runs_before_it(tmp_path: Path) -> None:
    def drawn(*options: str) -> set[str]:
        lines = suite(tmp_path, "--continue-on-collection-errors", *options).splitlines()
        return {line.partition("drawn ")[2] for line in lines if "drawn " in line}

    every = drawn()
    assert len(every) == 4
    assert len({line.split()[0] for line in every}) == 2
    assert len({line.split()[5] for line in every}) == 4
    assert drawn() == every
    one = drawn("test_well.py::test_well[2-2]")
    assert len(one) == 1
    assert one < every
