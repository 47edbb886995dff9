"""Errors say what, needed, got and repair, also after a trip between processes."""

import pickle

import pytest

from outgrow.core.errors import InputError, OutgrowError, StoreError, TrainingError


@pytest.mark.parametrize("kind", [OutgrowError, InputError, StoreError, TrainingError])
def test_errors_survive_pickling(kind: type[OutgrowError]) -> None:
    error = kind("it broke", needed="3 nodes", got="2 nodes", repair="add one")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.what, again.needed, again.got, again.repair) == ("it broke", "3 nodes", "2 nodes", "add one")
    assert again.args == ("it broke",)
    assert str(again) == str(error)


def test_errors_print_all_four_parts() -> None:
    lines = str(InputError("it broke", needed="3 nodes", got="2 nodes", repair="add one")).splitlines()
    assert lines == ["it broke", "  needed: 3 nodes", "  got:    2 nodes", "  repair: add one"]


def test_what_exits_with_which_code_is_told_by_the_class() -> None:
    assert issubclass(StoreError, InputError)
    assert not issubclass(TrainingError, InputError)
