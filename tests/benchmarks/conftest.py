"""Benchmarks are scripts, not a package: tests find them, and what tests of a folder share, by path."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parents[1] / "benchmarks")]


@pytest.fixture(scope="session")
def possible() -> None:
    import netlab_links

    reason = netlab_links.unavailable()
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def lab(possible: None) -> Iterator[Any]:
    import netlab

    with netlab.network(3, "200mbit") as made:
        yield made
