"""What is under way between the ends of epochs, for whoever shows it live."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple, Protocol

_SECONDS_BETWEEN = 0.1


class ProgressEvent(NamedTuple):
    """How far something is.

    Attributes:
        phase: What is done.
        done: How much of it; 0 when it begins.
        total: All of it; None if that is unknown.
    """

    phase: str
    done: int = 0
    total: int | None = None


class ProgressCallback(Protocol):
    """Whoever wants to know what is under way."""

    def on_progress(self, event: ProgressEvent) -> None:
        """Something has begun, or went on."""


class ProgressReporter:
    """Tells watchers: at once what begins, and a few times a second how far it is. Final.

    Args:
        callbacks: Whom.
    """

    def __init__(self, callbacks: Iterable[ProgressCallback] = ()) -> None:
        self._callbacks = tuple(callbacks)
        self._last_sent = 0.0

    def start_phase(self, phase: str, total: int | None = None) -> None:
        """Something begins; what was under way has ended."""
        self._send_event(ProgressEvent(phase, 0, total))

    def advance_to(self, phase: str, done: int, total: int | None = None) -> None:
        """So much of it is done."""
        if self._callbacks and (done == total or time.monotonic() - self._last_sent >= _SECONDS_BETWEEN):
            self._send_event(ProgressEvent(phase, done, total))

    def _send_event(self, event: ProgressEvent) -> None:
        self._last_sent = time.monotonic()
        for watcher in self._callbacks:
            watcher.on_progress(event)
