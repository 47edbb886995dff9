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


def test_what_a_layer_of_a_user_defines_by_an_old_name_is_called() -> None:
    with pytest.warns(DeprecationWarning, match="Mine") as told:

        class Mine(og.nn.GCNConv):
            takes_half = False

            def weigh(self, *given: object) -> str:
                return "mine"

    assert ["weigh is now called edge_weight" in str(each.message) for each in told] == [True, False]
    layer = Mine(2, 3)
    assert layer.edge_weight() == "mine"
    assert layer.accepts_half is False
    with pytest.warns(DeprecationWarning, match="widths is now called spec"):
        assert layer.widths is layer.spec
    with pytest.warns(DeprecationWarning, match="fixed_weight is now called static_edge_weight"):
        spec = og.nn.ConvSpec(
            in_features=1, out_features=1, source=(1, 1), aggregate=(1, 1), fixed_weight=True, reads_target=False
        )
    assert spec.static_edge_weight


def test_what_a_strategy_of_a_user_defines_by_an_old_name_is_called() -> None:
    with pytest.warns(DeprecationWarning, match="Mine.takes_batches is now called uses_minibatches"):

        class Mine(og.Full):
            takes_batches = True

    assert Mine.uses_minibatches


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
