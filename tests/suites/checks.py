"""Many small checks on the workers of one launch, since to start processes takes seconds."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from functools import partial

from outgrow.runtime.comm import Comm
from outgrow.runtime.launch import run_workers
from outgrow.runtime.worker import Workplace

Check = Callable[[Comm], None]


def named(*checks: Check) -> dict[str, Check]:
    """Checks by the names of their functions."""
    return {check.__name__: check for check in checks}


def failures_of(checks: Mapping[str, Check], workers: int) -> dict[str, list[str]]:
    """Of each check, what failed on each of some new workers: see `run_checks`."""
    found = run_workers(partial(run_checks, checks=checks), workers)
    return {name: [of_worker[name] for of_worker in found] for name in checks}


def run_checks(place: Workplace, checks: Mapping[str, Check]) -> dict[str, str]:
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
