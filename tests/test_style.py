"""The rules of style that a linter does not know: see CONTRIBUTING.md."""

import ast
import re
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "outgrow"
FILE_LINES, FUNCTION_LINES, PARAMETERS, KERNEL_PARAMETERS = 350, 40, 8, 12
MACHINE = re.compile(r"(?<![\w.~}/])/(?:work|home|root|opt|Users|mnt)/\w")
REGISTRY = re.compile(r"pypi\.[a-z]+\b|pythonhosted\.|download\.pytorch\.|conda\.[a-z]+\b|npmjs\.")
COMPILED = ("parallel_kernel", "reducing_kernel", "serial_kernel", "gpu_dispatch", "triton_kernel")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def trees() -> dict[str, ast.Module]:
    """Every file of the package as a syntax tree."""
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 10
    return {file.relative_to(SOURCE).as_posix(): ast.parse(file.read_text("utf-8")) for file in files}


def functions(tree: ast.AST) -> Iterator[Function]:
    """Every function and method."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def marked(function: Function, *marks: str) -> bool:
    """Whether a function has one of these decorators."""
    return any(ast.unparse(mark) in marks for mark in function.decorator_list)


def too_many_parameters(tree: ast.AST, twins: Collection[str] = ()) -> list[str]:
    """Functions that take too many; compiled loops and their twins may take more: arrays cannot be grouped there."""
    found = []
    for function in functions(tree):
        given = function.args
        count = sum(arg.arg not in ("self", "cls") for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs))
        compiled = function.name in twins or marked(function, *COMPILED)
        if count > (KERNEL_PARAMETERS if compiled else PARAMETERS):
            found.append(f"{function.name} takes {count} parameters")
    return found


def asks_for_attributes(tree: ast.AST) -> list[str]:
    """Calls of ``hasattr``."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "hasattr"]
    return [f"line {call.lineno} calls hasattr" for call in calls]


def concrete_bases(files: dict[str, ast.Module]) -> list[str]:
    """Classes that extend a class of ours which is neither abstract nor an error."""
    bases: dict[str, list[str]] = {}
    for path, tree in files.items():
        module = "outgrow." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        nodes = list(ast.walk(tree))
        known = {node.name: f"{module}.{node.name}" for node in nodes if isinstance(node, ast.ClassDef)}
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                known |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                written = [ast.unparse(base).partition("[")[0] for base in node.bases]
                bases[known[node.name]] = [known.get(base, base) for base in written]
    abstract = {name for name, above in bases.items() if {"abc.ABC", "ABC", "typing.Protocol"} & set(above)}
    errors = {name for name in bases if is_error(name, bases)}
    return [
        f"{name} extends {base}, which is neither abstract nor an error"
        for name, above in bases.items()
        for base in above
        if base in bases and base not in abstract | errors
    ]


def is_error(name: str, bases: dict[str, list[str]]) -> bool:
    """Whether a class descends from an exception."""
    return name.endswith(("Exception", "Error")) and (
        name not in bases or any(is_error(base, bases) for base in bases[name])
    )


def foreign_places(text: str) -> list[str]:
    """Paths of one machine and hosts of package registries in a text."""
    return [found.group() for rule in (MACHINE, REGISTRY) for found in rule.finditer(text)]


def test_files_are_short() -> None:
    folders = (SOURCE, ROOT / "tests", ROOT / "benchmarks")
    files = [file for folder in folders for file in folder.rglob("*.py")]
    lengths = {file.relative_to(ROOT): len(file.read_text("utf-8").splitlines()) for file in files}
    assert not {file: length for file, length in lengths.items() if length > FILE_LINES}


def test_nine_of_ten_functions_are_short() -> None:
    every = [(path, function) for path, tree in trees().items() for function in functions(tree)]
    lengths = {(path, f.name, f.lineno): (f.end_lineno or 0) - f.lineno + 1 for path, f in every}
    long = {where: length for where, length in lengths.items() if length >= FUNCTION_LINES}
    assert len(long) <= len(lengths) / 10, long


def test_no_class_extends_a_concrete_one() -> None:
    assert concrete_bases(trees()) == []


def test_nothing_asks_for_attributes() -> None:
    assert not {path: found for path, tree in trees().items() if (found := asks_for_attributes(tree))}


def test_few_parameters() -> None:
    checked = {path: tree for path, tree in trees().items() if not path.startswith("app/cli")}
    twinned = {f.name for tree in checked.values() for f in functions(tree) if marked(f, "gpu_dispatch")}
    twins = {path: twinned if path.startswith("ops/gpu/") else () for path in checked}
    found = {path: found for path, tree in checked.items() if (found := too_many_parameters(tree, twins[path]))}
    # Models have an option for each thing that users of PyG look for by name, such as edge_dim or alpha.
    assert found == {
        "nn/attention.py": ["__init__ takes 9 parameters"],
        "nn/decoupled.py": ["Decoupled takes 9 parameters"],
        "nn/zoo.py": ["GAT takes 9 parameters"],
    }


def test_no_machine_and_no_registry_is_named() -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("needs a git checkout, to know which files belong to the project")
    files = [ROOT / name for name in listed.stdout.splitlines() if name != "tests/test_style.py"]
    texts = {file: file.read_bytes() for file in files if file.is_file()}
    found = {file: foreign_places(data.decode("utf-8")) for file, data in texts.items() if b"\0" not in data}
    assert not {file.relative_to(ROOT): places for file, places in found.items() if places}


def test_the_checks_find_what_they_look_for() -> None:
    nine = ", ".join("abcdefghi")
    assert too_many_parameters(ast.parse(f"def f({nine}): ..."))
    assert not too_many_parameters(ast.parse(f"def f(self, {nine[:-3]}): ..."))
    assert not too_many_parameters(ast.parse(f"@parallel_kernel\ndef f({nine}): ..."))
    assert not too_many_parameters(ast.parse(f"def f({nine}): ..."), {"f"})
    assert too_many_parameters(ast.parse(f"def f({nine}): ..."), {"g"})
    assert asks_for_attributes(ast.parse("def f(x):\n    return hasattr(x, 'y')"))
    places = ["/home/me/x", "see /work/main", "https://pypi.org/simple", "'/Users/x'"]
    assert all(foreign_places(place) for place in places)
    assert not foreign_places("~/work/x https://example.org/home/x /tmp/x /usr/bin/env docs/work/x")


@pytest.mark.parametrize(
    ("base", "allowed"),
    [("class A(ABC): ...", True), ("class A(Generic[T], Protocol): ...", True), ("class A: ...", False)],
)
def test_only_abstract_classes_are_extended(base: str, allowed: bool) -> None:
    a = ast.parse(f"from abc import ABC\nfrom typing import Generic, Protocol\n{base}")
    b = ast.parse("from outgrow.core.a import A as Base\nclass B(Base[int], Exception): ...")
    assert (concrete_bases({"core/a.py": a, "ops/b.py": b}) == []) == allowed


def test_errors_may_be_extended() -> None:
    errors = ast.parse("class AError(Exception): ...\nclass BError(AError): ...\nclass CError(BError): ...")
    assert concrete_bases({"core/errors.py": errors}) == []
