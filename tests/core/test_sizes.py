"""Sizes as people write them."""

import pytest

from outgrow.core.errors import InputError
from outgrow.core.memory_limits import parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 512 << 20), ("1g", 1 << 30), ("0.5 KiB", 512), ("0", 0), (str(3 << 20), 3 << 20), (" 3 B ", 3)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1GiB", "1TiBs", "MiB", "1e999", "nan"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(InputError, match="not a size"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["2", "0.5e3", "1048575"])
def test_small_numbers_without_a_unit_mean_something_else(text: str) -> None:
    with pytest.raises(InputError, match="has no unit"):
        parse_bytes(text)
