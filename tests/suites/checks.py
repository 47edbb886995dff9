"""Many small checks in one task of several workers."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import pytest

from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.distributed.worker import WorkerContext
from pool import run_workers

Check = Callable[[Comm], None]


def named(*checks: Check) -> dict[str, Check]:
    """Checks by the names of their functions."""
    return {check.__name__: check for check in checks}


def on_workers(
    checks: Mapping[str, Check], workers: int, run: Callable[..., list[Any]] = run_workers
) -> Callable[[str], None]:
    """A test for each check: it must not fail on any worker. All of them are one task: see `run_checks`.

    Args:
        checks: By name.
        workers: How many.
        run: Gives them the task: the pool, or the library's own launcher.
    """

    @cache
    def found() -> list[dict[str, str]]:
        return run(partial(run_checks, checks=checks), workers)

    @pytest.mark.parametrize("name", checks)
    def test(name: str) -> None:
        failures = [of_worker[name] for of_worker in found()]
        assert failures == [""] * workers, "\n".join(failures)

    return test


def run_checks(place: WorkerContext, checks: Mapping[str, Check]) -> dict[str, str]:
    """The traceback of each check that failed on this worker, and an empty text for the others.

    All workers run the same checks in the same order. A check talks first and judges afterwards, so that one that
    fails on some workers does not leave others waiting.
    """
    found = {}
    for name, check in checks.items():
        try:
            check(place.comm)
            found[name] = ""
        except AssertionError:
            found[name] = traceback.format_exc()
        place.comm.barrier()
    return found
