"""Arguments are checked against names and annotations, and nothing that is right is refused."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError


@check_arguments()
def pool(rows: int, *, how: str | None = None, share: float = 0.5, on: Callable[[int], int] = abs) -> str:
    """Return what it was given."""
    return f"{rows} {how} {share} {on.__name__}"


@check_arguments(unchecked=("graph",))
def load(graph: int, **options: object) -> object:
    return graph, options


@check_arguments()
class Stack(nn.Module):
    def __init__(self, layers: Sequence[nn.Module], name: str | Path = "stack", *, deep: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.name, self.deep = name, deep

    @check_arguments()
    def grow(self, by: int) -> int:
        return len(self.layers) + by


@check_arguments()
@dataclass(frozen=True, kw_only=True)
class Options:
    width: int = 1


class Own(Stack):
    """A class of a user's, with arguments of its own."""

    def __init__(self, width: str) -> None:
        super().__init__([nn.Linear(2, 2)], width)


@pytest.mark.parametrize(
    ("call", "got"),
    [
        (lambda: pool(3), "3 None 0.5 abs"),
        (lambda: pool(np.int32(3), how="mean", share=np.float32(0.5)), "3 mean 0.5 abs"),
        (lambda: pool(rows=3, share=1, on=round), "3 None 1 round"),
        (lambda: load("any", colour=None), ("any", {"colour": None})),
        (lambda: Stack([nn.Linear(2, 2)]).grow(2), 3),
        (lambda: Stack(nn.ModuleList([nn.Linear(2, 2)]), Path("a"), deep=np.True_).grow(by=0), 1),
        (lambda: Stack(()).grow(1), 1),
        (lambda: Own("wide").name, "wide"),
        (lambda: replace(Options(width=2), width=3).width, 3),
        (lambda: pickle.loads(pickle.dumps(Options(width=2))), Options(width=2)),
        (lambda: copy.deepcopy(Own("wide")).grow(1), 2),
    ],
)
def test_what_is_right_is_called(call: Callable[[], Any], got: object) -> None:
    assert call() == got


def test_paths_of_other_libraries_are_paths(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    [entry] = os.scandir(tmp_path)
    assert Stack([], entry).name is entry  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [np.int64(3), np.float32(0.5), np.bool_(True)])
def test_numbers_of_numpy_reach_a_function_as_those_of_python(number: Any) -> None:
    given, options = load(number, option=number)  # type: ignore[misc]
    assert [type(given), type(options["option"])] == [type(number.item())] * 2
    assert given == options["option"] == number


@pytest.mark.parametrize(
    ("call", "what", "needed"),
    [
        (pool, "og.pool is called with wrong arguments", "og.pool(rows, *, how=None, share=0.5, on=abs)"),
        (lambda: pool(1, 2), "og.pool is called with wrong arguments", "og.pool(rows,"),
        (lambda: pool(1, rows=2), "og.pool is called with wrong arguments", "og.pool(rows,"),
        (lambda: pool(1, hwo="mean"), "unknown option of og.pool 'hwo'", "one of how, on, rows, share"),
        (lambda: pool(True), "option rows has a value of the wrong type", "a whole number"),
        (lambda: pool(2.0), "option rows has a value of the wrong type", "a whole number"),
        (lambda: pool(1, share="half"), "option share has a value of the wrong type", "a number"),
        (lambda: pool(1, how=b"mean"), "option how has a value of the wrong type", "a string or None"),
        (lambda: pool(1, on=3), "option on has a value of the wrong type", "a function"),
        (load, "og.load is called with wrong arguments", "og.load(graph, **options)"),
        (lambda: Stack(3), "option layers has a value", "a sequence, each element an object of class Module"),
        (lambda: Stack([3]), "option layers has a value", "a sequence, each element an object of class Module"),
        (lambda: Stack("ab"), "option layers has a value", "a sequence, each element an object of class Module"),
        (lambda: Stack({}), "option layers has a value", "a sequence, each element an object of class Module"),
        (lambda: Stack([], 3), "option name has a value of the wrong type", "a string or a path"),
        (lambda: Stack([], deep=1), "option deep has a value of the wrong type", "true or false"),
        (lambda: Stack(self=3), "unknown option of og.Stack 'self'", "one of deep, layers, name"),
        (lambda: Stack([]).grow("2"), "option by has a value of the wrong type", "a whole number"),
        (lambda: Options(width="2"), "option width has a value of the wrong type", "a whole number"),
        (lambda: Options(2), "og.Options is called with wrong arguments", "og.Options(*, width=1)"),
        (lambda: replace(Options(), width=None), "option width has a value of the wrong type", "a whole number"),
    ],
)
def test_what_is_wrong_is_refused(call: Callable[[], Any], what: str, needed: str) -> None:
    with pytest.raises(InputError) as refused:
        call()
    assert refused.value.what.startswith(what)
    assert refused.value.needed.startswith(needed)


def test_what_was_given_is_shown_in_a_line() -> None:
    with pytest.raises(InputError) as refused:
        pool(nn.Sequential(*(nn.Linear(2, 2) for _ in range(50))))  # type: ignore[arg-type]
    assert "\n" not in refused.value.got
    assert len(refused.value.got) <= 100


def test_help_shows_what_was_written() -> None:
    assert str(inspect.signature(pool)).startswith("(rows: 'int', *, how: 'str | None' = None")
    assert list(inspect.signature(Stack).parameters) == ["layers", "name", "deep"]
    assert pool.__doc__ == "Return what it was given."
