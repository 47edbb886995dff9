"""Old names work, each with one warning."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest

from outgrow.core.deprecation import renamed_members, renamed_options, use_new_names
from outgrow.core.errors import InputError


@renamed_options(ahead="prefetch")
@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of which one was renamed."""

    prefetch: int = 4


@renamed_options(columns="values")
class Pair(NamedTuple):
    """A tuple of which one field was renamed."""

    values: int


@renamed_members(weigh="edge_weight", widths="spec", sparse="accepts_sparse")
class Base:
    """A class for users' subclasses."""

    spec: int
    accepts_sparse = True

    def edge_weight(self) -> int:
        """A method that was renamed."""
        return 1


def one_warning(action: Callable[[], object], text: str) -> object:
    """What an action gives, that warns once."""
    with pytest.warns(DeprecationWarning, match=text) as seen:
        result = action()
    assert len(seen) == 1
    assert seen[0].filename == __file__
    return result


def test_an_old_option_is_accepted_and_read() -> None:
    options = one_warning(lambda: Options(ahead=2), "option ahead of Options is now called prefetch")  # type: ignore[call-arg]
    assert options == Options(prefetch=2)
    assert one_warning(lambda: options.ahead, "Options.ahead is now called prefetch") == 2  # type: ignore[attr-defined]
    assert replace(Options(), prefetch=3).prefetch == 3
    pair = one_warning(lambda: Pair(columns=5), "columns")  # type: ignore[call-arg]
    assert pair == Pair(5)
    assert one_warning(lambda: pair.columns, "columns") == 5  # type: ignore[attr-defined]


def test_records_are_read_silently() -> None:
    assert use_new_names(Options, {"ahead": 2}) == {"prefetch": 2}
    with pytest.raises(InputError, match="option prefetch of Options is given twice"):
        use_new_names(Options, {"ahead": 2, "prefetch": 2})


def test_a_subclass_may_define_old_names() -> None:
    def define() -> type[Base]:
        class Old(Base):
            def weigh(self) -> int:
                return 1 + super().weigh()  # type: ignore[misc, no-any-return]

        return Old

    made = one_warning(define, "Base.weigh is now called edge_weight")
    assert isinstance(made, type)
    assert one_warning(lambda: made().edge_weight(), "weigh") == 2


def test_attributes_of_a_subclass_by_old_names() -> None:
    with pytest.warns(DeprecationWarning, match="sparse"):

        class Old(Base):
            sparse = False

            def __init__(self) -> None:
                self.widths = 3

    with pytest.warns(DeprecationWarning, match="Base.widths is now called spec"):
        made = Old()
    assert made.spec == 3
    assert not made.accepts_sparse


def test_a_new_subclass_may_use_an_old_name_for_something_else() -> None:
    with warnings.catch_warnings(action="error"):

        class New(Base):
            weigh = 7

    assert New().weigh == 7
    assert New().edge_weight() == 1
