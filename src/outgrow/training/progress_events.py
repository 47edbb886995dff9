"""What is under way between the ends of epochs, for whoever shows it live."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple, Protocol

_SECONDS_BETWEEN = 0.1


class Moment(NamedTuple):
    """How far something is.

    Attributes:
        phase: What is done.
        done: How much of it; 0 when it begins.
        total: All of it; None if that is unknown.
    """

    phase: str
    done: int = 0
    total: int | None = None


class Watcher(Protocol):
    """Whoever wants to know what is under way."""

    def moment(self, moment: Moment) -> None:
        """Something has begun, or went on."""


class Moments:
    """Tells watchers: at once what begins, and a few times a second how far it is. Final.

    Args:
        watchers: Whom.
    """

    def __init__(self, watchers: Iterable[Watcher] = ()) -> None:
        self._watchers = tuple(watchers)
        self._told = 0.0

    def begin(self, phase: str, total: int | None = None) -> None:
        """Something begins; what was under way has ended."""
        self._tell(Moment(phase, 0, total))

    def reach(self, phase: str, done: int, total: int | None = None) -> None:
        """So much of it is done."""
        if self._watchers and (done == total or time.monotonic() - self._told >= _SECONDS_BETWEEN):
            self._tell(Moment(phase, done, total))

    def _tell(self, moment: Moment) -> None:
        self._told = time.monotonic()
        for watcher in self._watchers:
            watcher.moment(moment)
