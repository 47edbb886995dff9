"""What kernels are made of lies where `ops/kernel_cache.py` looks: in `outgrow.ops`, or in the kernel's own folder."""

from __future__ import annotations

import ast
from pathlib import Path

import outgrow

SOURCE = Path(outgrow.__file__).parent
COMPILED = ("parallel_kernel", "reducing_kernel", "serial_kernel", "device_function", "overload", "intrinsic")


def foreign_parts(source: str, package: str) -> set[str]:
    """What compiled functions of a file in ``package`` use, at once or by way of constants, that lies elsewhere."""
    tree = ast.parse(source)
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    home = {name.asname or name.name: f"{node.module}.{name.name}" for node in froms for name in node.names}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    compiled = [each for each in functions if any(ast.unparse(mark) in COMPILED for mark in each.decorator_list)]
    used = {name for each in compiled for statement in each.body for name in names(statement)}
    constants = made_of(tree)
    seen: set[str] = set()
    while used - seen:
        seen |= used
        used = {name for each in seen for name in constants.get(each, ())}
    found = {home[name] for name in seen & home.keys()}
    return {name for name in found if name.startswith("outgrow.") and not counted(name, package)}


def counted(name: str, package: str) -> bool:
    """Whether a name belongs to `outgrow.ops` or to a module of the package."""
    return name.startswith("outgrow.ops.") or name.rsplit(".", 2)[0] == package


def made_of(tree: ast.Module) -> dict[str, set[str]]:
    """The names in the expression of each constant of a module."""
    found: dict[str, set[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for name in names(target):
                    found.setdefault(name, set()).update(names(node.value))
    return found


def names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def test_kernels_are_made_of_nothing_that_is_not_looked_at() -> None:
    """Else they would not be compiled again when it changes: move it to `outgrow.ops`, or into the kernel's folder."""
    files = [file for file in SOURCE.rglob("*.py") if file.parent.name != "gpu"]
    package = {file: ".".join(file.parent.relative_to(SOURCE.parent).parts) for file in files}
    assert not {file: found for file in files if (found := foreign_parts(file.read_text("utf-8"), package[file]))}


def test_foreign_parts_are_found() -> None:
    imports = "from outgrow.graph.topology import WIDTH\nfrom outgrow.ops.kernels.work_split import ROW\n"
    head = imports + "HALF = WIDTH // 2\nALL: int = HALF\n"
    direct = head + "@parallel_kernel\ndef f(x):\n    return WIDTH"
    hidden = head + "def g():\n    @serial_kernel\n    def f(x):\n        return ALL"
    for source in (direct, hidden):
        for package in ("outgrow.nn", "outgrow.graph.synthetic", "outgrow"):
            assert foreign_parts(source, package) == {"outgrow.graph.topology.WIDTH"}
        assert not foreign_parts(source, "outgrow.graph")
    unused = head + "@parallel_kernel\ndef f(x: WIDTH):\n    return ROW\n\ndef g():\n    return ALL"
    assert not foreign_parts(unused, "outgrow.nn")
