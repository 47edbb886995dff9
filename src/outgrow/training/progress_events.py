"""Progress events within an epoch, for live displays."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

_SECONDS_BETWEEN = 0.1


class ProgressEvent(NamedTuple):
    """Progress of a phase.

    Attributes:
        phase: Name of the phase.
        done: Units of work done; 0 at the start.
        total: Total units of work; None if unknown.
        note: A fact about the run, to be shown at once; empty for none.
        interrupts: Whether training waits for this phase, which is none of its own.
    """

    phase: str
    done: int = 0
    total: int | None = None
    note: str = ""
    interrupts: bool = False


class ProgressCallback(Protocol):
    """Receiver of progress events."""

    def on_progress(self, event: ProgressEvent) -> None:
        """Handle the start or the progress of a phase."""


class ProgressReporter:
    """Sends progress events: the start of a phase at once, its progress a few times per second. Final.

    Args:
        callbacks: Receivers of the events.
    """

    def __init__(self, callbacks: Iterable[ProgressCallback] = ()) -> None:
        self._callbacks = tuple(callbacks)
        self._last_sent = 0.0
        self._phase = ""

    def start_phase(self, phase: str, total: int | None = None) -> None:
        """Report the start of a phase, and thereby the end of the previous one."""
        self._phase = phase
        self._send_event(ProgressEvent(phase, 0, total))

    @contextmanager
    def interrupt_phase(self, phase: str) -> Iterator[None]:
        """Report another phase within the context, and then the one before again."""
        before = self._phase
        self._send_event(ProgressEvent(phase, interrupts=True))
        try:
            yield
        finally:
            self.start_phase(before)

    def advance_to(self, phase: str, done: int, total: int | None = None) -> None:
        """Report progress, unless the last event was sent just before."""
        # The last step is always reported, so that displays reach 100 %.
        if self._callbacks and (done == total or time.monotonic() - self._last_sent >= _SECONDS_BETWEEN):
            self._send_event(ProgressEvent(phase, done, total))

    def show_note(self, note: str) -> None:
        """Report a fact about the run."""
        self._send_event(ProgressEvent(self._phase, note=note))

    def _send_event(self, event: ProgressEvent) -> None:
        self._last_sent = time.monotonic()
        for callback in self._callbacks:
            callback.on_progress(event)
