"""Processes that are killed by SIGKILL."""

from __future__ import annotations

from contextlib import suppress

import psutil
from command import Run
from judge import Promise

_AGAIN = r"start again \(restart 1\)"


class Kill:
    """A worker is killed: the run ends and names it; with restarts it goes on by itself. Alone, it is the run itself.

    Args:
        restarts: How often workers may start again.
    """

    def __init__(self, restarts: int = 0) -> None:
        self._restarts = restarts

    @property
    def words(self) -> list[str]:
        return ["--max-restarts", str(self._restarts)] if self._restarts else []

    def ready(self, run: Run) -> None:
        """Nothing to prepare."""

    def strike(self, run: Run) -> Promise | None:
        victims = run.victims()
        if not victims:
            return None
        rank = run.draw.choice(sorted(victims))
        done = run.done(rank)
        with suppress(psutil.NoSuchProcess):
            victims[rank].kill()
        number = run.workload.workers
        what = f"worker {rank} of {number} was killed by SIGKILL"
        if number == 1:
            return Promise(what=what, ends=None if done else True, codes=(-9, 137), mute=True, torn=True)
        if self._restarts:
            return Promise(what=what, ends=None if done else False, said=_AGAIN, torn=True)
        return Promise(what=what, ends=None if done else True, said=what, codes=(1,), torn=True)

    def mend(self, run: Run) -> None:
        """Nothing to mend."""


class KillLauncher:
    """The process that has started the workers is killed: they end themselves."""

    words: list[str] = []  # noqa: RUF012

    def ready(self, run: Run) -> None:
        """Nothing to prepare."""

    def strike(self, run: Run) -> Promise | None:
        if run.over:
            return None
        run.processes[0].kill()
        return Promise(what="the launcher was killed by SIGKILL", ends=True, codes=(-9,), mute=True, torn=True)

    def mend(self, run: Run) -> None:
        """Nothing to mend."""
