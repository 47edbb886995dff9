"""Options are of the types that they are annotated with."""

import numpy as np
import pytest

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_types


@pytest.mark.parametrize(
    ("value", "hint", "fits"),
    [
        (1, int, True),
        (True, int, False),
        (1, float, True),
        (True, float, False),
        (0.5, int, False),
        ("x", float, False),
        (True, bool, True),
        (1, bool, False),
        (None, int | None, True),
        ("x", int | None, False),
        ("adam", str, True),
        (np.zeros(1), list[int], True),
    ],
)
def test_types_of_values(value: object, hint: object, fits: bool) -> None:
    if fits:
        validate_types({"name": value}, {"name": hint})
        return
    with pytest.raises(InputError, match="name"):
        validate_types({"name": value}, {"name": hint})
