"""Signals that end a run with a checkpoint: Ctrl-C, and what schedulers send before they take a machine away."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from outgrow.core.process import exit_code, exit_on_signal

ENDING = tuple(
    number for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if (number := getattr(signal, name, None)) is not None
)
"""Signals that are caught; Slurm warns by SIGUSR1 if it is asked to, Kubernetes and spot machines by SIGTERM."""


GRACE_SECONDS = 30.0
"""How long training may go on after a signal of a scheduler, unless a user says otherwise."""
# Handlers that nobody has chosen; the last is that of a worker of torchrun while it does not train.
_DEFAULT = (signal.SIG_DFL, signal.default_int_handler, exit_on_signal)


class Interruption:
    """Whether a signal has asked to end a run, and which. Final."""

    def __init__(self) -> None:
        self.number: int | None = None

    def is_set(self) -> bool:
        """Whether a signal has come."""
        return self.number is not None


@contextmanager
def catch_interruption(grace_seconds: float) -> Iterator[Interruption]:
    """Context in which the first of `ENDING` only asks to end the run; a second one ends the process at once.

    Other than after Ctrl-C, which a person has typed who can type it again, the process ends by itself after
    ``grace_seconds``: those who send the other signals kill it soon after. Signals that the program ignores, or has
    handlers of its own for, are left to it.
    """
    interruption = Interruption()
    # Python allows only the main thread to set signal handlers.
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: handler for number in ENDING if (handler := signal.getsignal(number)) in _DEFAULT}
    timer: threading.Timer | None = None

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal timer
        interruption.number = number
        restore()
        if number != signal.SIGINT:
            timer = threading.Timer(grace_seconds, os.kill, (os.getpid(), number))
            timer.daemon = True
            timer.start()

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield interruption
    finally:
        # The checkpoint is written: what is left takes no longer than the end of any program.
        if timer is not None:
            timer.cancel()
        restore()


@contextmanager
def exit_on_ending_signals() -> Iterator[None]:
    """Context in which signals of `ENDING` that would end the process at once end it as an exception does.

    Files are thus removed. For Ctrl-C Python does so itself. Signals that the program ignores, or has handlers of
    its own for, are left to it.

    Raises:
        SystemExit: There was such a signal; the exit code is the one that a shell gives for it.
    """
    # Python allows only the main thread to set signal handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    fatal = [number for number in ENDING if signal.getsignal(number) == signal.SIG_DFL]
    for number in fatal:
        signal.signal(number, exit_on_signal)
    try:
        yield
    finally:
        for number in fatal:
            signal.signal(number, signal.SIG_DFL)


def raise_as_signal(number: int) -> NoReturn:
    """Raise what ends a program, and any loop in it, as a signal would have.

    Raises:
        KeyboardInterrupt: The signal is that of Ctrl-C.
        SystemExit: It is another one.
    """
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(exit_code(number))
