"""Names, as CONTRIBUTING.md asks for them: what can be counted is counted here."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "outgrow"
ONE_WORD_FUNCTIONS, ONE_WORD_CLASSES = 0.35, 0.30
API_AND_COMMAND = {"append", "convert", "datasets", "plan", "predict", "report", "train"}
"""Names of commands, which are those of the functions of the API that they call."""
ENTRY_POINTS = {"main"}
ALLOWED = {"Decoupled", "Gated", "Sampled", "chosen"}
"""Published names of a model, an aggregation and a strategy, and an attribute of plans that users read."""
VERBS = {"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "spread"}
"""Words in -ed that are no participles, or are verbs as well."""
IRREGULAR = {
    *("begun", "bought", "built", "chosen", "done", "drawn", "found", "given", "gone", "grown", "heard", "held"),
    *("kept", "known", "laid", "left", "lent", "lost", "made", "met", "paid", "seen", "sent", "shown", "sought"),
    *("spelled", "spoken", "taken", "taught", "told", "thrown", "written"),
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def trees() -> dict[str, ast.Module]:
    """Every file of the package as a syntax tree."""
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 10
    return {file.relative_to(SOURCE).as_posix(): ast.parse(file.read_text("utf-8")) for file in files}


def functions(tree: ast.AST) -> Iterator[str]:
    """Names of all functions and methods but those that Python calls."""
    return (n.name for n in ast.walk(tree) if isinstance(n, Function) and not n.name.startswith("__"))


def classes(tree: ast.AST) -> Iterator[str]:
    """Names of all classes."""
    return (n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef))


def words_of(name: str) -> list[str]:
    """The words of a name, in lower case."""
    separate = name.strip("_").split("_")
    return [word.lower() for part in separate for word in re.findall("[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", part)]


def is_participle(name: str) -> bool:
    """Whether a name is a bare participle: it says what has happened, and not to what or what happens."""
    words = words_of(name)
    if name in ALLOWED:
        return False
    return len(words) == 1 and (words[0] in IRREGULAR or (words[0].endswith("ed") and words[0] not in VERBS))


def public_names(files: dict[str, ast.Module]) -> dict[str, list[str]]:
    """The files in which each public function or class of a module stands."""
    found = defaultdict(list)
    for path, tree in files.items():
        for node in tree.body:
            if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    return found


def have_two_meanings(files: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Public names in two files that are not an op and its kernel on a GPU, or a command and its function."""
    found = {}
    for name, paths in public_names(files).items():
        others = [path for path in paths if not path.startswith("ops/gpu/")]
        if name in API_AND_COMMAND:
            others = [path for path in others if not path.startswith("app/cli/")]
        if len(others) > 1 and name not in ENTRY_POINTS:
            found[name] = paths
    return found


def test_no_public_name_has_two_meanings() -> None:
    assert have_two_meanings(trees()) == {}


@pytest.mark.parametrize(("names_of", "most"), [(functions, ONE_WORD_FUNCTIONS), (classes, ONE_WORD_CLASSES)])
def test_few_names_are_one_word(names_of, most) -> None:
    names = [name for tree in trees().values() for name in names_of(tree)]
    one_word = [name for name in names if len(words_of(name)) == 1]
    assert len(one_word) <= most * len(names), sorted(one_word)


def test_no_name_is_a_bare_participle() -> None:
    found = {
        path: [name for name in (*functions(tree), *classes(tree)) if is_participle(name)]
        for path, tree in trees().items()
    }
    assert not {path: names for path, names in found.items() if names}


def test_the_checks_find_what_they_look_for() -> None:
    two = {"a.py": ast.parse("class Part: ..."), "b.py": ast.parse("class Part: ...\nclass _Own: ...")}
    assert have_two_meanings(two) == {"Part": ["a.py", "b.py"]}
    assert not have_two_meanings(
        {"ops/film.py": ast.parse("def f(): ..."), "ops/gpu/film.py": ast.parse("def f(): ...")}
    )
    assert not have_two_meanings(
        {"app/api.py": ast.parse("def plan(): ..."), "app/cli/plan.py": ast.parse("def plan(): ...")}
    )
    assert [is_participle(name) for name in ("drawn", "_packed", "Held", "embed", "draw_rows", "held_bytes")] == [
        *(True, True, True),
        *(False, False, False),
    ]
    assert words_of("_CSCGraph") == ["csc", "graph"]
    assert words_of("all_to_all") == ["all", "to", "all"]
