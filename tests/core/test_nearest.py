"""Unknown names are answered with the nearest known ones."""

import pytest

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice

CHOICES = {"full": 1, "offload": 2, "orchestrate": 3}


def test_a_known_name_is_returned() -> None:
    assert [validate_choice("strategy", name, CHOICES) for name in CHOICES] == [1, 2, 3]


@pytest.mark.parametrize(("typed", "meant"), [("ofload", "offload"), ("orchestra", "orchestrate"), ("ful", "full")])
def test_the_nearest_name_is_offered(typed: str, meant: str) -> None:
    with pytest.raises(InputError) as caught:
        validate_choice("strategy", typed, CHOICES)
    assert f"did you mean {meant}" in caught.value.repair
    assert caught.value.what == f"unknown strategy '{typed}'"
    assert caught.value.needed == "one of full, offload, orchestrate"


@pytest.mark.parametrize("typed", ["zzzz", ""])
def test_nothing_near_is_not_guessed(typed: str) -> None:
    with pytest.raises(InputError) as caught:
        validate_choice("strategy", typed, CHOICES)
    assert "did you mean" not in caught.value.repair
