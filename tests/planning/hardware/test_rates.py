"""Rates at widths that were not measured, and seconds on a link."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outgrow.planning.hardware.profile import LinkRate, RateByWidth

RATES = RateByWidth({64: 8e9, 4: 1e9, 16: 2e9})


@pytest.mark.parametrize(("width", "rate"), [(1, 1e9), (4, 1e9), (8, 2**0.5 * 1e9), (16, 2e9), (32, 4e9), (999, 8e9)])
def test_between_two_widths_the_rate_lies_on_a_line_of_logarithms(width: int, rate: float) -> None:
    assert RATES.rate_at(width) == pytest.approx(rate)


@given(
    st.dictionaries(st.integers(1, 4096), st.floats(1, 1e15), min_size=1),
    st.floats(0.5, 8192),
)
def test_a_rate_is_never_outside_those_that_were_measured(rates: dict[int, float], width: float) -> None:
    found = RateByWidth(rates).rate_at(width)
    assert min(rates.values()) * (1 - 1e-9) <= found <= max(rates.values()) * (1 + 1e-9)


def test_rates_are_told_apart() -> None:
    same, other = RateByWidth({4: 1e9, 16: 2e9, 64: 8e9}), RateByWidth({4: 1e9})
    assert same == RATES
    assert other != RATES
    assert len({RATES, same, other}) == 2
    assert other != {4: 1e9}


def test_a_link_takes_time_for_bytes_and_for_messages() -> None:
    assert LinkRate(bytes_per_second=1e6, message_seconds=0.5).transfer_seconds(2_000_000, 3) == 3.5
    assert LinkRate(bytes_per_second=1e6).transfer_seconds(500_000) == 0.5
