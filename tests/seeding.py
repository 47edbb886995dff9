"""Tests draw the same numbers in every run, in whatever order: global generators begin anew for each of them.

A module that draws while it is imported or collected cannot be helped so, and is an error.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from generators import apart, seed_all, states


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    """Each test draws as its name says."""
    seed_all(request.node.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """What several tests share draws as its own name says, and not as that of the test that happens to come first."""
    if fixturedef.scope == "function":
        return (yield)
    with apart(f"{request.node.nodeid}::{fixturedef.argname}[{request.param_index}]"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module that draws is reported as one that cannot be collected."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    with apart("collection"):
        before = states()
        report = yield
        moved = [name for name, state in states().items() if state != before[name]]
    if moved and report.passed:
        report.outcome = "failed"
        report.longrepr = (
            f"{collector.nodeid} draws from {', '.join(moved)} when it is imported or collected: every run would test "
            "something else, and parametrized objects would depend on what was collected before. Draw in the test, "
            "`with apart(...):` of generators.py, or from a generator with a seed."
        )
    return report
