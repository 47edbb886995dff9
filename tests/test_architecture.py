"""Files import lower layers or their own folder, and some packages are used in few places: see docs/architecture.md."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "outgrow"
LAYER = {
    "core": 0,
    "ops": 1,
    "graph": 2,
    "nn": 2,
    "runtime": 2,
    "engine": 3,
    "strategies": 4,
    "inference": 5,
    "planning": 6,
    "training": 6,
}
LAYER |= {"app": 7}  # and the files of the package itself, which are the application's
MAPS = ("numpy.memmap", "numpy.lib.format.open_memmap", "mmap", "torch.from_file", "pyarrow.memory_map", "mmap_mode=")
READS = ("numpy.fromfile", "os.pread", "os.preadv")
MAPPED = (
    "graph/",
    "runtime/storage/shared_memory.py",
    "runtime/system/process_memory.py",
    "training/embedding_files.py",
)
ONLY_IN = {
    "torch.distributed": (
        "runtime/distributed/comm.py",
        "runtime/distributed/rendezvous.py",
        "runtime/distributed/process_group.py",
        "runtime/distributed/worker.py",
    ),
    "torch.cuda": ("runtime/", "ops/backend.py"),
    "triton": ("ops/gpu/",),
    "os.replace": ("core/files.py",),
    "os.fsync": ("core/files.py", "graph/store/writer.py", "planning/hardware/measure_links.py"),
    **dict.fromkeys(MAPS, MAPPED),
    **dict.fromkeys(READS, ("graph/", "runtime/system/process_memory.py", "runtime/storage/row_file.py")),
    **dict.fromkeys(("print", "typer", "rich"), ("app/", "__main__.py")),
}
IN_FUNCTIONS = ("pymetis", "pyarrow", "ogb", "torch_geometric", "networkx", "yaml")


class Reader(ast.NodeVisitor):
    """Collects what a file imports and uses.

    Attributes:
        imports: Full name of each import, and whether it runs inside a function only.
        aliases: What each imported local name stands for.
        uses: Dotted names as they are written, and arguments of calls as ``name=``.
    """

    def __init__(self, source: str) -> None:
        self.imports: list[tuple[str, bool]] = []
        self.aliases: dict[str, str] = {"print": "print"}
        self.uses: list[str] = []
        self.depth = 0
        self.visit(ast.parse(source))

    def names(self) -> list[str]:
        """The full names of all that is imported or used."""
        split = [use.partition(".") for use in self.uses]
        used = [self.aliases.get(first, first if "=" in first else "?") + dot + rest for first, dot, rest in split]
        return [full for full, _ in self.imports] + used

    def visit_Import(self, node: ast.Import) -> None:
        for name in node.names:
            self.imports.append((name.name, self.depth > 0))
            first = name.name.partition(".")[0]
            self.aliases[name.asname or first] = name.name if name.asname else first

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for name in node.names:
            full = f"{'.' * node.level}{node.module or ''}.{name.name}"
            self.imports.append((full, self.depth > 0))
            self.aliases[name.asname or name.name] = full

    def visit_Call(self, node: ast.Call) -> None:
        self.uses += [f"{keyword.arg}=" for keyword in node.keywords]
        if ast.unparse(node.func).endswith("import_module") and isinstance(node.args[0], ast.Constant):
            self.imports.append((str(node.args[0].value), self.depth > 0))
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.uses.append(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.uses.append(ast.unparse(node))
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.If) -> None:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_If(self, node: ast.If) -> None:
        only_for_types = ast.unparse(node.test).endswith("TYPE_CHECKING")
        self.visit_FunctionDef(node) if only_for_types else self.generic_visit(node)


def violations(path: str, source: str) -> list[str]:
    """What the file at ``path`` (inside src/outgrow) does against the rules."""
    read = Reader(source)
    found = [f"{full} {why}" for full, _ in read.imports if (why := wrong_direction(path, full))]
    for rule, places in ONLY_IN.items():
        if not path.startswith(places) and any(within(name, rule) for name in read.names()):
            found.append(f"{rule} is for {', '.join(places)}")
    for full, in_function in read.imports:
        if not in_function and within(full, *IN_FUNCTIONS):
            found.append(f"{full} is imported outside a function")
    return [f"{path}: {what}" for what in found]


def wrong_direction(path: str, full: str) -> str | None:
    """Why the file must not import a name; None if it may."""
    if not within(full, "outgrow"):
        return "is a relative import" if full.startswith(".") else None
    here, there = path.removesuffix(".py").split("/"), full.split(".")[1:]
    mine = here[0] if len(here) > 1 else "app"
    theirs = there[0] if there and there[0] in LAYER else "app"
    if mine not in LAYER:
        return f"is imported by {mine}/, which has no layer"
    if LAYER[theirs] > LAYER[mine]:
        return "is of a higher layer"
    if LAYER[theirs] == LAYER[mine] and theirs != mine:
        return "is of another folder of the layer"
    if mine == theirs == "strategies" and here[1] != "__init__" and there[1:2] not in (["base"], [here[1]]):
        return "belongs to another strategy"
    return None


def within(name: str, *packages: str) -> bool:
    """Whether a dotted name is one of the packages or lies in one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def imported_modules(modules: dict[str, str]) -> dict[str, set[str]]:
    """Which modules of the package each one imports, by full names.

    Args:
        modules: Source of each module.
    """
    found: dict[str, set[str]] = {}
    for module, source in modules.items():
        full = [name for name, _ in Reader(source).imports]
        # ``from a.b import c`` is read as ``a.b.c``: the module is that, or ``a.b``.
        found[module] = {name if name in modules else name.rpartition(".")[0] for name in full} & set(modules) - {
            module
        }
    return found


def cycle_of(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one import cycle; none if there is none."""
    done: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> list[str]:
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return []
        path.append(module)
        for other in sorted(graph[module]):
            if found := visit(other):
                return found
        done.add(path.pop())
        return []

    return next((found for module in sorted(graph) if (found := visit(module))), [])


def users_of_engine(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The strategies that import each module of ``engine/``, directly or through others of it; ``base`` serves all."""
    users: dict[str, set[str]] = {module: set() for module in graph if module.startswith("outgrow.engine.")}
    for module in graph:
        if not module.startswith("outgrow.strategies."):
            continue
        left, seen = [module], set()
        while left:
            below = {name for name in graph[left.pop()] if name in users} - seen
            seen |= below
            left += below
        for name in seen:
            users[name].add(module.split(".")[2])
    return users


def sources() -> dict[str, str]:
    """Source of each module, by its full name."""
    found = {}
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = file.read_text("utf-8")
    return found


def test_every_file_keeps_the_rules() -> None:
    paths = {file.relative_to(SOURCE).as_posix(): file.read_text("utf-8") for file in sorted(SOURCE.rglob("*.py"))}
    assert len(paths) > 10
    found = [what for path, source in paths.items() for what in violations(path, source)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "why"),
    [
        ("core/x.py", "from outgrow.ops.backend import as_numpy", "higher layer"),
        ("ops/x.py", "def f():\n    from outgrow import graph", "higher layer"),
        ("nn/x.py", "import outgrow", "higher layer"),
        ("engine/x.py", "import importlib\nimportlib.import_module('outgrow.app.api')", "higher layer"),
        ("graph/x.py", "if TYPE_CHECKING:\n    from outgrow.nn.layer import Conv", "another folder"),
        ("graph/ingest/x.py", "import outgrow.runtime.system.process_memory as m", "another folder"),
        ("training/x.py", "from outgrow.planning import planner", "another folder"),
        ("nn/x.py", "from .layer import Conv", "relative"),
        ("utils/x.py", "from outgrow.core import errors", "no layer"),
        ("strategies/split/strategy.py", "from outgrow.strategies.full import Full", "another strategy"),
        ("strategies/split/x.py", "from outgrow.strategies import Full", "another strategy"),
        ("strategies/base.py", "import outgrow.strategies.full", "another strategy"),
        ("engine/x.py", "import torch.distributed as dist", "torch.distributed"),
        ("runtime/system/hardware.py", "from torch import distributed", "torch.distributed"),
        ("training/x.py", "import torch as t\nt.distributed.barrier()", "torch.distributed"),
        ("engine/x.py", "import torch\ntorch.cuda.synchronize()", "torch.cuda"),
        ("ops/x.py", "from torch.cuda import Stream", "torch.cuda"),
        ("ops/x.py", "import triton.language as tl", "triton"),
        ("ops/backend.py", "def f():\n    import triton", "triton"),
        ("training/x.py", "import numpy as np\nnp.memmap('x')", "numpy.memmap"),
        ("runtime/distributed/comm.py", "from numpy.lib.format import open_memmap", "open_memmap"),
        ("engine/x.py", "import numpy as np\nnp.load(p, mmap_mode='r')", "mmap_mode="),
        ("ops/x.py", "def f(p):\n    import os\n    os.preadv(p, [], 0)", "os.preadv"),
        ("runtime/storage/row_file.py", "import mmap", "mmap"),
        ("app/x.py", "import os\nos.replace(a, b)", "os.replace"),
        ("training/x.py", "from os import fsync", "os.fsync"),
        ("runtime/distributed/job_files.py", "from os import preadv", "os.preadv"),
        ("core/x.py", "print(1)", "print"),
        ("training/x.py", "from rich.progress import Progress", "rich"),
        ("graph/x.py", "def f():\n    import typer", "typer"),
        ("graph/x.py", "import pyarrow.parquet as pq", "outside a function"),
        ("graph/x.py", "class A:\n    from networkx import Graph", "outside a function"),
        ("app/x.py", "try:\n    import ogb\nexcept ImportError:\n    pass", "outside a function"),
        ("nn/x.py", "from torch_geometric.nn import GATConv", "outside a function"),
        ("graph/x.py", "import pymetis", "outside a function"),
    ],
)
def test_a_violation_is_found(path: str, source: str, why: str) -> None:
    assert why in "".join(violations(path, source))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("app/cli/x.py", "import typer\nfrom rich import console\nfrom outgrow.training import config\nprint(1)"),
        ("app/x.py", "import outgrow\nfrom outgrow import nn"),
        ("__main__.py", "import typer\nfrom outgrow.app.cli import main"),
        ("ops/gpu/x.py", "import triton\nimport triton.language as tl\nfrom outgrow.ops.gpu import launch"),
        ("graph/ingest/x.py", "from outgrow.graph.store.reader import write\nfrom outgrow.ops import sparse"),
        ("graph/x.py", "import numpy as np\nnp.load(p, mmap_mode='r')\nnp.lib.format.open_memmap(p)"),
        ("graph/x.py", "if TYPE_CHECKING:\n    import networkx\n\nasync def f():\n    import pyarrow.parquet"),
        ("runtime/distributed/comm.py", "import torch.distributed as dist\ndist.barrier()"),
        ("runtime/system/process_memory.py", "import torch\ntorch.cuda.synchronize()\nimport mmap"),
        ("runtime/storage/row_file.py", "import os\nos.preadv(p, [], 0)\nos.pwrite(p, b'', 0)"),
        (
            "strategies/split/x.py",
            "from outgrow.strategies.base import A\nfrom outgrow.strategies.split.y import B",
        ),
        ("strategies/__init__.py", "from outgrow.strategies.full import Full"),
        ("engine/x.py", "rich = typer = mmap = 1\nself.print(rich, typer.x, mmap)"),
    ],
)
def test_what_is_allowed_passes(path: str, source: str) -> None:
    assert violations(path, source) == []


def test_no_files_import_each_other() -> None:
    assert cycle_of(imported_modules(sources())) == []


def test_engine_holds_what_strategies_share() -> None:
    packages = {file.parent for file in (SOURCE / "engine").rglob("__init__.py")}
    assert packages
    users = users_of_engine(imported_modules(sources()))
    alone = {name: used for name, used in users.items() if "base" not in used and len(used) < 2}
    assert set(alone) <= {"outgrow.engine.features", "outgrow.engine.embeddings"}, alone


def test_cycles_and_unshared_modules_are_found() -> None:
    modules = {
        "outgrow.engine.a": "from outgrow.engine.b import x",
        "outgrow.engine.b": "def f():\n    from outgrow.engine import c",
        "outgrow.engine.c": "import outgrow.engine.a",
        "outgrow.engine.d": "",
        "outgrow.strategies.full": "from outgrow.engine.a import x",
        "outgrow.strategies.split.layers": "from outgrow.engine.c import y\nfrom outgrow.engine import d",
    }
    graph = imported_modules(modules)
    assert set(cycle_of(graph)) == {"outgrow.engine.a", "outgrow.engine.b", "outgrow.engine.c"}
    assert users_of_engine(graph)["outgrow.engine.a"] == {"full", "split"}
    assert users_of_engine(graph)["outgrow.engine.d"] == {"split"}
    assert cycle_of({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
