"""Old names of options and of classes work, with one warning; files of older versions give none."""

import warnings
from dataclasses import replace

import pytest

import outgrow as og
from outgrow.app.strategy_registry import STRATEGIES, make_strategy
from outgrow.core.deprecation import translate_options
from outgrow.core.errors import InputError

OLD = {
    "offload": {"scratch": None},
    "tensor": {"constant": False, "files": "auto", "nn": "cpu", "scratch": None},
    "sampled": {"ahead": 2, "cache_over": "host", "threads": 3},
    "split": {"ahead": 2, "partial": False},
    "migrate": {"ahead": 2, "threads": 3, "travel": True},
    "orchestrate": {"newest": True, "threads": 3},
}
EACH = [(name, old, value) for name, options in OLD.items() for old, value in options.items()]


@pytest.mark.parametrize(("name", "old", "value"), EACH)
def test_an_old_option_works_with_one_warning(name: str, old: str, value: object) -> None:
    kind = STRATEGIES[name]
    new = kind.RENAMED_OPTIONS[old]
    with pytest.warns(DeprecationWarning, match=f"{old} is now called {new}") as told:
        strategy = kind(**{old: value})
    assert len(told) == 1
    assert told[0].filename == __file__
    assert strategy.options()[new] == value
    assert old not in strategy.options()
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(strategy, old) == value


@pytest.mark.parametrize("name", OLD)
def test_what_an_older_version_recorded_is_read_without_a_warning(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strategy = make_strategy(STRATEGIES[name], OLD[name])
        assert replace(strategy) == strategy  # type: ignore[type-var]
    assert set(OLD[name]) == set(STRATEGIES[name].RENAMED_OPTIONS)


def test_an_option_is_not_given_twice() -> None:
    with pytest.raises(InputError, match="given twice"):
        translate_options({"ahead": "prefetch"}, {"ahead": 2, "prefetch": 3})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Chain", "SequentialEncoder"),
        ("Dense", "LinearEncoder"),
        ("Finish", "Epilogue"),
        ("Rows", "NodeMessages"),
        ("Scores", "AttentionScores"),
        ("Widths", "ConvSpec"),
    ],
)
def test_old_classes_of_nn_are_the_new_ones(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(og.nn, old) is getattr(og.nn, new)
