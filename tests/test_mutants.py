"""No mutant is lost: each has a test that runs it, and still changes what it did. See mutants.py."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType

from mutants import ROOT, Mutant, list_mutants
from suites import links
from suites.embedding_mutants import MUTANTS as EMBEDDINGS
from suites.mutants import MUTANTS as GRADIENTS
from suites.orchestrate_mutants import MUTANTS as WARM_EPOCHS
from suites.typed_mutants import MUTANTS as TYPED

TESTS = Path(__file__).parent
NUMBERS = {
    "tests/suites/test_exactness.py": 69,
    "tests/suites/test_objectives.py": 5,
    "tests/suites/test_links.py": 7,
    "tests/suites/test_link_steps.py": 15,
    "tests/suites/test_edge_targets.py": 3,
    "tests/suites/test_held_out.py": 5,
    "tests/suites/test_loop.py": 4,
    "tests/suites/test_evaluation.py": 4,
    "tests/app/runs/test_trials.py": 3,
    "tests/planning/hardware/test_corrections.py": 2,
    "tests/app/test_append.py": 4,
    "tests/engine/test_constant.py": 1,
    "tests/inference/test_link_ranking.py": 4,
    "tests/app/test_predict_workers.py": 2,
    "tests/graph/builders/test_edge_features.py": 2,
    "tests/graph/readers/test_id_encoder.py": 3,
    "tests/graph/readers/test_forms_tables.py": 8,
    "tests/graph/readers/test_typed_mutants.py": 7,
    "tests/graph/sampling/test_self_loops.py": 2,
    "tests/graph/sampling/test_temporal.py": 4,
    "tests/graph/statistics/test_statistics.py": 3,
    "tests/graph/test_node_ids.py": 2,
    "tests/suites/test_edge_features.py": 3,
    "tests/suites/test_node_embeddings.py": 4,
    "tests/suites/test_leaks.py": 1,
    "tests/suites/test_metrics.py": 5,
    "tests/suites/test_samplers.py": 7,
    "tests/suites/test_typed.py": 6,
    "tests/suites/test_typed_traffic.py": 2,
    "tests/suites/test_disagreements.py": 4,
    "tests/test_promises.py": 20,
    "tests/nn/test_conformance.py": 8,
    "tests/nn/test_edge_layers.py": 3,
    "tests/nn/test_hetero_gradients.py": 5,
    "tests/nn/test_typed_layers.py": 7,
    "tests/engine/features/test_block_rows.py": 3,
    "tests/planning/test_link_traffic.py": 4,
    "tests/strategies/split/test_threads.py": 2,
    "tests/strategies/orchestrate/test_warm_epochs.py": 6,
    "tests/suites/test_parts.py": 1,
    "tests/planning/test_typed_traffic.py": 4,
    "tests/core/test_files.py": 14,
    "tests/fuzz/test_readers.py": 11,
}
"""How many there are, so that a table which loses some is noticed."""


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def parameters_of(nodeid: str) -> list[str]:
    return nodeid.partition("[")[2].removesuffix("]").split("-")


def unlike(collected: list[str], mutants: list[Mutant]) -> list[str]:
    """Mutants that no test of theirs runs, and tests that run other than one mutant of the list."""
    runs = {(nodeid.partition("[")[0], name) for nodeid in collected for name in parameters_of(nodeid)}
    wrong = [
        f"{mutant.test} does not run {mutant.name}" for mutant in mutants if (mutant.test, mutant.name) not in runs
    ]
    for nodeid in collected:
        known = {mutant.name for mutant in mutants if file_of(mutant.test) == file_of(nodeid)}
        if len(known.intersection(parameters_of(nodeid))) != 1:
            wrong.append(f"{nodeid} does not run one mutant of the list")
    return wrong


def unmarked(tree: ast.Module) -> list[str]:
    """Tests that speak of a mutant, in their name or their parameters, and are not marked as tests of mutants."""
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if "mutant" in f"{node.name} {ast.unparse(node.args)}"
        if not any(ast.unparse(mark) == "pytest.mark.mutant" for mark in node.decorator_list)
    ]


def unlisted(modules: Iterable[ModuleType], listed: Collection[object]) -> list[str]:
    """Contexts that break code, by their type, and are in no table."""
    return [
        f"{module.__name__}.{name}"
        for module in modules
        for name, made in vars(module).items()
        if inspect.isfunction(made) and made.__module__ == module.__name__ and not name.startswith("_")
        if made.__annotations__["return"] in ("Iterator[Hits]", "AbstractContextManager[Hits]") and made not in listed
    ]


def test_every_mutant_has_a_test_that_runs_it() -> None:
    marked = [file for file in TESTS.rglob("test_*.py") if "@pytest.mark.mutant\n" in file.read_text("utf-8")]
    files = sorted(file.relative_to(ROOT).as_posix() for file in marked if file != Path(__file__))
    options = ["--collect-only", "-q", "-m", "mutant", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=ROOT,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    collected = [line for line in done.stdout.splitlines() if "::" in line]
    assert collected
    assert unlike(collected, list_mutants()) == []


def test_names_reasons_and_numbers() -> None:
    mutants = list_mutants()
    assert [name for name, count in Counter(mutant.name for mutant in mutants).items() if count > 1] == []
    assert [mutant.name for mutant in mutants if not mutant.name.isidentifier()] == []
    assert [mutant.name for mutant in mutants if len(mutant.breaks.split()) < 3 or mutant.breaks[-1] != "."] == []
    assert Counter(file_of(mutant.test) for mutant in mutants) == NUMBERS


def test_what_mutants_change_is_still_there() -> None:
    for mutant in list_mutants():
        try:
            with mutant.apply():
                pass
        except Exception as error:
            error.add_note(f"{mutant.name} changes what is no longer there")
            raise


def test_no_mutant_is_left_out_of_its_table() -> None:
    modules = [links, *(import_module(f"suites.{file.stem}") for file in TESTS.glob("suites/*_mutants.py"))]
    listed = {*links.MUTANTS.values(), *(mutant.broken for mutant in GRADIENTS.values())}
    listed |= {broken for broken, *_ in TYPED.values()} | {*EMBEDDINGS.values()} | {*WARM_EPOCHS.values()}
    assert unlisted(modules, listed) == []
    for each in listed:
        assert len(unlisted(modules, listed - {each})) == 1


def test_tests_of_mutants_are_marked() -> None:
    files = {file.relative_to(TESTS).as_posix(): file for file in TESTS.rglob("test_*.py") if file != Path(__file__)}
    found = {path: unmarked(ast.parse(file.read_text("utf-8"))) for path, file in files.items()}
    assert not {path: names for path, names in found.items() if names}


def test_the_checks_find_what_they_look_for() -> None:
    one = [list_mutants()[0]._replace(name="one", test="tests/test_a.py::test_it")]
    assert unlike(["tests/test_a.py::test_it[one-3]"], one) == []
    assert len(unlike(["tests/test_a.py::test_it[two-3]"], one)) == 2
    assert len(unlike(["tests/test_a.py::test_it[one]", "tests/test_b.py::test_it[one]"], one)) == 1
    assert len(unlike(["tests/test_a.py::test_that[one]"], one)) == 1
    assert unmarked(ast.parse("def test_it(mutant): ..."))
    assert unmarked(ast.parse("@pytest.mark.slow\ndef test_a_mutant_is_found(): ..."))
    assert not unmarked(ast.parse("@pytest.mark.mutant\ndef test_it(mutant): ..."))
