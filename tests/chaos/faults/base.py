"""What all faults have in common."""

from __future__ import annotations

from typing import Protocol

from command import Run
from judge import Promise


class UnavailableError(RuntimeError):
    """A fault cannot happen here; the message says why, in one line."""


class Fault(Protocol):
    """Something that happens to a run."""

    @property
    def words(self) -> list[str]:
        """Arguments that the command needs."""

    def ready(self, run: Run) -> None:
        """Prepare for it, before the command is started.

        Raises:
            UnavailableError: It cannot happen here.
        """

    def strike(self, run: Run) -> Promise | None:
        """Let it happen; what is promised then. None if the run was over."""

    def mend(self, run: Run) -> None:
        """Undo it, once the run has ended and before it goes on."""
