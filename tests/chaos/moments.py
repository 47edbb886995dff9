"""When a run is disturbed: random moments of several kinds."""

from __future__ import annotations

import time
from collections.abc import Callable

from command import Run
from place import children, words_of
from workloads import EPOCHS

MOMENTS = ("epochs", "start", "checkpoint", "partition", "end")
_LOOK_SECONDS = 0.002


def wait_for(run: Run, moment: str) -> bool:
    """Wait until the moment has come; False if the run was over before."""
    due = _due(run, moment)
    while not run.over:
        if due():
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def _due(run: Run, moment: str) -> Callable[[], bool]:
    """Whether the moment has come; what is random of it is drawn here."""
    place = run.place
    if moment == "start":
        # Before hosts have met, the timeouts of torchrun count.
        begun = place.out / "config.json"
        met = begun.exists if run.lab else lambda: bool(run.victims())
        late = _after(met, run.draw.uniform(0, run.first_seconds))
        return lambda: late() or (met() and place.epochs > 0)
    if moment == "partition":
        return lambda: place.epochs > 0 or _partitions(run)
    if moment == "checkpoint":
        after = run.draw.randrange(EPOCHS - 1)
        return lambda: place.epochs > after and any(place.out.glob("checkpoint/*.partial"))
    if moment == "end":
        return _after(lambda: place.epochs >= EPOCHS, run.draw.uniform(0, 0.3))
    at = run.draw.randrange(1, EPOCHS)
    return _after(lambda: place.epochs >= at, run.draw.uniform(0, 0.5))


def _partitions(run: Run) -> bool:
    return any(word.endswith("metis_child.py") for child in children(run.processes) for word in words_of(child))


def _after(reached: Callable[[], bool], seconds: float) -> Callable[[], bool]:
    """Whether something was reached so long ago."""
    since: list[float] = []

    def due() -> bool:
        if not since and reached():
            since.append(time.monotonic())
        return bool(since) and time.monotonic() - since[0] >= seconds

    return due
